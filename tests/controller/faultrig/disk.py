"""A disk that is small enough to be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from faultrig.processes import RigError


def why_not() -> str:
    """Return why no small disk can be had here, and what would help; empty where one can."""
    if os.geteuid() != 0:
        return "only root may mount a tmpfs to fill; run as root"
    return ""


class SmallDisk:
    """A tmpfs at ``path``.

    Raises:
        RigError: it cannot be mounted.
    """

    def __init__(self, path: Path, mib: int = 24) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "ringstep-small", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RigError(f"mount: {done.stderr.strip()}")

    def fill(self) -> None:
        """Write until nothing more fits."""
        with (self.path / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        """Take away what :meth:`fill` wrote."""
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it; what it holds is lost."""
        self.free()
        # Lazily: a process that is being killed may still hold a file.
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)
