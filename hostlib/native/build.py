"""Builds the native libraries where they are missing, once per state of the sources.

The libraries are not part of the wheel and not of ``pip install``: they have no Python in them,
NCCL finds them by path, and a checkout without a compiler has to install all the same. They lie in
a cache folder named after a digest of the sources, so a changed source can never meet an old
library, and several checkouts or test workers do not disturb one another.

Needs a C compiler and CMake 3.18 (``pip install cmake`` where the system has none); takes a few
seconds. ``python -m ringstep.hostlib.native.build`` builds and prints the plugin's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["BuildError", "Built", "build", "missing_tools"]

SOURCES: Final = Path(__file__).resolve().parent
_SUFFIXES: Final = {".c", ".h", ".map", ".txt"}


class BuildError(RuntimeError):
    """The libraries could not be built; the message ends with what the tool said."""


@dataclass(frozen=True)
class Built:
    """Where the native parts lie."""

    folder: Path

    @property
    def plugin(self) -> Path:
        """What NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN are set to."""
        return self.folder / "libnccl-tuner-ringstep.so"

    @property
    def host(self) -> Path:
        """The coordinator's helper (:mod:`ringstep.hostlib.shm`)."""
        return self.folder / "libringstep-host.so"

    @property
    def driver(self) -> Path:
        """The test driver, where it was asked for."""
        return self.folder / "driver"


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def missing_tools() -> str | None:
    """Return what is missing to build and how to get it, None where nothing is."""
    if _tool("cmake") is None:
        return "needs CMake; `pip install cmake` or `apt-get install cmake`"
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "cc", "gcc", "clang"))):
        return "needs a C compiler; `apt-get install gcc libc6-dev`"
    return None


def _digest(extra: tuple[Path, ...], options: str) -> str:
    found = hashlib.sha256(options.encode())
    inside = [path for path in SOURCES.rglob("*") if path.suffix in _SUFFIXES]
    for path in (*sorted(inside), *extra):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def _cache() -> Path:
    set_folder = os.environ.get("RINGSTEP_NATIVE_DIR")
    if set_folder:
        return Path(set_folder)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ringstep" / "native"


def build(*, sanitize: str = "", driver: Path | None = None) -> Built:
    """Return the libraries, building them where this state of the sources never was.

    Args:
        sanitize: for ``-fsanitize=``, separated by semicolons; "" for none.
        driver: source of the test driver to build beside them.

    Raises:
        BuildError: no compiler or CMake, or one of them failed.
    """
    extra = () if driver is None else (driver,)
    cache = _cache()
    target = cache / _digest(extra, f"{sanitize}|{driver is not None}")
    built = Built(target)
    if built.plugin.exists():
        return built
    missing = missing_tools()
    if missing is not None:
        raise BuildError(f"cannot build the NCCL plugin: {missing}")
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.plugin.exists():
            work = Path(tempfile.mkdtemp(dir=cache))
            try:
                _compile(work, sanitize, driver)
                work.rename(target)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
    return built


def _compile(folder: Path, sanitize: str, driver: Path | None) -> None:
    cmake = _tool("cmake")
    assert cmake is not None
    ninja = ["-G", "Ninja"] if _tool("ninja") else []
    configure = [
        cmake, "-S", str(SOURCES), "-B", str(folder), *ninja,
        f"-DRINGSTEP_SANITIZE={sanitize}",
        f"-DRINGSTEP_DRIVER={driver or ''}",
    ]  # fmt: skip
    for command in (configure, [cmake, "--build", str(folder), "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise BuildError(f"building the NCCL plugin failed ({' '.join(command)}):\n{said}")


if __name__ == "__main__":
    print(build().plugin)
