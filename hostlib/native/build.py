"""Builds the native parts where they are missing, once per state of the sources.

Three parts, each a CMake project: the plugin for NCCL (this folder, plain C), the CPU collective
engine (``engine/``, C++20) and the tagger for real NICs (``tagger/``, plain C). They are not part
of the wheel and not of ``pip install``: they have no Python in them, NCCL finds its plugin by path,
and a checkout without a compiler has to install all the same. They lie in a cache folder named
after a digest of the sources, so a changed source can never meet an old library, and several
checkouts or test workers do not disturb one another.

Needs a compiler and CMake 3.18 (``pip install cmake`` where the system has none).
``python -m ringstep.hostlib.native.build`` builds and prints the plugin's path;
``… build engine`` and ``… build tagger`` the others'.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

__all__ = [
    "BuildError",
    "Built",
    "BuiltEngine",
    "BuiltTagger",
    "build",
    "build_engine",
    "build_tagger",
    "built",
    "cache_folder",
    "missing_tools",
]

SOURCES: Final = Path(__file__).resolve().parent
_INCLUDE: Final = SOURCES / "include"
_PLUGIN: Final = "NCCL plugin"
_SUFFIXES: Final = {".c", ".cpp", ".h", ".map", ".txt"}


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


@dataclass(frozen=True)
class BuiltEngine:
    """Where the CPU collective engine lies."""

    folder: Path

    @property
    def perf(self) -> Path:
        """``ringstep-perf``, which runs and times collectives."""
        return self.folder / "ringstep-perf"

    @property
    def library(self) -> Path:
        """The engine with its C interface (``engine/ringstep_engine.h``)."""
        return self.folder / "libringstep-engine.so"


@dataclass(frozen=True)
class BuiltTagger:
    """Where the tagger for real NICs lies."""

    folder: Path

    @property
    def library(self) -> Path:
        """The library that an application links or loads (``tagger/ringstep_tag.h``)."""
        return self.folder / "libringstep-tag.so"

    @property
    def mock(self) -> Path:
        """A provider that records the calls, for machines without a NIC."""
        return self.folder / "libringstep-mock-mlx5.so"


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def missing_tools(language: str = "C") -> str | None:
    """Return what is missing to build and how to get it, None where nothing is.

    Args:
        language: "C" or "C++".
    """
    if _tool("cmake") is None:
        return "needs CMake; `pip install cmake` or `apt-get install cmake`"
    if language == "C++":
        if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"))):
            return "needs a C++20 compiler; `apt-get install g++`"
    elif not any(map(shutil.which, (os.environ.get("CC", "cc"), "cc", "gcc", "clang"))):
        return "needs a C compiler; `apt-get install gcc libc6-dev`"
    return None


def _sources(*folders: Path) -> tuple[Path, ...]:
    found = (p for folder in folders for p in folder.rglob("*") if p.suffix in _SUFFIXES)
    return tuple(sorted(found))


def _digest(sources: tuple[Path, ...], options: str) -> str:
    found = hashlib.sha256(options.encode())
    for path in sources:
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def cache_folder() -> Path:
    """Return where builds are kept: RINGSTEP_NATIVE_DIR, else a folder of the user's cache."""
    set_folder = os.environ.get("RINGSTEP_NATIVE_DIR")
    if set_folder:
        return Path(set_folder)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ringstep" / "native"


def build(*, sanitize: str = "", driver: Path | None = None) -> Built:
    """Return the plugin for NCCL, building it where this state of the sources never was.

    Args:
        sanitize: for ``-fsanitize=``, separated by semicolons; "" for none.
        driver: source of the test driver to build beside it.

    Raises:
        BuildError: no compiler or CMake, or one of them failed.
    """
    options = _options(driver)
    return Built(_made(_PLUGIN, "C", SOURCES, _plugin_sources(driver), sanitize, options))


def built() -> Built | None:
    """Return the plugin where this state of the sources was built already; builds nothing."""
    target = _target(_PLUGIN, _plugin_sources(None), "", _options(None))
    return Built(target) if target.exists() else None


def _plugin_sources(driver: Path | None) -> tuple[Path, ...]:
    beside = tuple(sorted(p for p in SOURCES.iterdir() if p.suffix in _SUFFIXES))
    return (*beside, *_sources(_INCLUDE, SOURCES / "src"), *([driver] if driver else []))


def _options(driver: Path | None) -> tuple[str, ...]:
    return (f"-DRINGSTEP_DRIVER={driver or ''}",)


def build_engine(*, sanitize: str = "") -> BuiltEngine:
    """Return the CPU collective engine; arguments and errors as :func:`build`."""
    folder = SOURCES / "engine"
    sources = _sources(_INCLUDE, folder)
    return BuiltEngine(_made("collective engine", "C++", folder, sources, sanitize))


def build_tagger(*, sanitize: str = "") -> BuiltTagger:
    """Return the tagger for real NICs; arguments and errors as :func:`build`."""
    folder = SOURCES / "tagger"
    return BuiltTagger(_made("tagger", "C", folder, _sources(folder), sanitize))


def _target(what: str, sources: tuple[Path, ...], sanitize: str, options: tuple[str, ...]) -> Path:
    return cache_folder() / _digest(sources, f"{what}|{sanitize}|{options}")


def _made(
    what: str,
    language: str,
    project: Path,
    sources: tuple[Path, ...],
    sanitize: str,
    options: tuple[str, ...] = (),
) -> Path:
    target = _target(what, sources, sanitize, options)
    cache = target.parent
    if target.exists():
        return target
    missing = missing_tools(language)
    if missing is not None:
        raise BuildError(f"cannot build the {what}: {missing}")
    with _lock(cache, target.name) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            work = Path(tempfile.mkdtemp(dir=cache))
            try:
                _compile(what, project, work, (f"-DRINGSTEP_SANITIZE={sanitize}", *options))
                work.rename(target)
            except BaseException:
                shutil.rmtree(work, ignore_errors=True)
                raise
    return target


def _lock(cache: Path, name: str) -> IO[str]:
    """Return the open file that this build is locked by.

    Raises:
        BuildError: the cache folder cannot be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return (cache / f"{name}.lock").open("w")
    except OSError as error:
        raise BuildError(
            f"cannot build in {cache}: {error.strerror}; set RINGSTEP_NATIVE_DIR to a folder of "
            "your own"
        ) from error


def _compile(what: str, project: Path, folder: Path, options: tuple[str, ...]) -> None:
    cmake = _tool("cmake")
    assert cmake is not None
    ninja = ["-G", "Ninja"] if _tool("ninja") else []
    configure = [cmake, "-S", str(project), "-B", str(folder), *ninja, *options]
    for command in (configure, [cmake, "--build", str(folder), "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise BuildError(f"building the {what} failed ({' '.join(command)}):\n{said}")


def _main() -> int:
    """Build what the command line names and print where it is."""
    ways: dict[str, Callable[[], Path]] = {
        "plugin": lambda: build().plugin,
        "engine": lambda: build_engine().perf,
        "tagger": lambda: build_tagger().library,
    }
    parser = argparse.ArgumentParser(
        prog="python -m ringstep.hostlib.native.build",
        description="Build a native part where this state of the sources never was, and print "
        "its path. The cache is $RINGSTEP_NATIVE_DIR, else ~/.cache/ringstep/native.",
        epilog="example: plugin=$(python -m ringstep.hostlib.native.build)",
    )
    parser.add_argument(
        "part", nargs="?", choices=tuple(ways), default="plugin",
        help="plugin: for NCCL (the default); engine: prints ringstep-perf, with "
        "libringstep-engine.so beside it; tagger: libringstep-tag.so",
    )  # fmt: skip
    wanted = parser.parse_args().part
    try:
        print(ways[wanted]())
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(_main())
