"""The folder that a calibration leaves, whole or not at all, for ``--policy dynamic:FOLDER``."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ringstep.hostlib.dynamic.plug import CALIBRATION_FILE

CARD_FILE: Final = "calibration-card.json"
CLUSTER_FILE: Final = "cluster.json"


class FolderError(ValueError):
    """A folder that cannot be written; the message says why and what would be right."""


def check_target(out: Path, replace: bool) -> None:
    """Refuse a place where no calibration can be put, before anything is measured.

    Raises:
        FolderError: it is taken, or its parent is missing.
    """
    if not out.absolute().parent.is_dir():
        raise FolderError(f"{out}: {out.absolute().parent}: no such folder")
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_dir():
        raise FolderError(f"{out}: is there and is no folder")
    if any(out.iterdir()):
        if not (out / CARD_FILE).is_file():
            raise FolderError(f"{out}: not empty, and not a calibration: choose another --out")
        if not replace:
            raise FolderError(f"{out}: a calibration is there; --replace puts a new one in place")


@contextmanager
def written_whole(out: Path) -> Iterator[Path]:
    """Yield a folder beside ``out`` that takes its place when all went well, and vanishes if not.

    Raises:
        OSError: it cannot be made or put in place; what was there stays.
    """
    out = out.absolute()
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        made.chmod(0o755)
        yield made
        _put(made, out)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _put(made: Path, out: Path) -> None:
    if not out.exists():
        made.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    try:
        out.rename(old)  # onto an empty folder
        try:
            made.rename(out)
        except OSError:
            old.rename(out)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def expected_file(path: Path) -> Path:
    """Return the calibration that a file or a folder names."""
    return path / CALIBRATION_FILE if path.is_dir() else path
