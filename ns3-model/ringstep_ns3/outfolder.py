"""Result folders: checked before a run, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ringstep.fabric.tomlfile import FileError


class OutputError(FileError):
    """A folder that results cannot go to; the text says why and what would help."""


def check_folder(folder: Path, mark: str, *, replace: bool = False) -> None:
    """Check that results can be put into ``folder``, without leaving a trace.

    ``mark`` is the file by which a result folder is known; one that has it is taken where
    ``replace`` says so, any other that holds something never.

    Raises:
        OutputError: its parent is missing or cannot be written to, or the folder holds something.
    """
    where = str(folder)
    parent = folder.absolute().parent
    if not parent.is_dir():
        what = "is no folder" if parent.exists() else "is not there"
        raise OutputError(
            where, [f"--out {where}: {parent} {what}; make it first, or name another folder"]
        )
    if folder.exists() and not folder.is_dir():
        raise OutputError(where, [f"--out {where}: is a file; name a folder"])
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / mark).is_file():
            raise OutputError(
                where, [f"--out {where}: holds something that is no result; name another folder"]
            )
        if not replace:
            raise OutputError(
                where,
                [f"--out {where}: holds results already; name another folder, or add --force"],
            )
    for place in (parent, folder):
        try:
            if place.is_dir():
                with tempfile.TemporaryFile(dir=place):
                    pass
        except OSError as error:
            raise OutputError(
                where,
                [f"--out {where}: {place} cannot be written to ({error.strerror}); name another"],
            ) from None


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put files into ``folder``, in place of what it held: all of them, or none.

    Raises:
        OutputError: it cannot be written.
    """
    folder = folder.absolute()
    try:
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, content in files.items():
                (fresh / name).write_bytes(content)
            fresh.chmod(0o777 & ~_umask())
            if folder.is_dir() and any(folder.iterdir()):
                old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
                folder.replace(old / "old")
                fresh.replace(folder)
                shutil.rmtree(old)
            else:
                fresh.replace(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            str(folder), [f"{folder}: cannot be written ({error.strerror}); name another folder"]
        ) from None


def write_file(path: Path, content: bytes) -> None:
    """Put a file in place: the whole of it, or what was there before.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        fresh = Path(name)
        fresh.chmod(0o666 & ~_umask())
        fresh.replace(path)
    except OSError as error:
        raise OutputError(str(path), [f"{path}: cannot be written ({error.strerror})"]) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
