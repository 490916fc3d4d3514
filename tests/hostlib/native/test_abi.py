"""What the library shows to the outside."""

import shutil
import subprocess

import pytest

from ringstep.hostlib.native.build import Built
from ringstep.hostlib.native.caller import Plugin

TUNERS = {f"ncclTunerPlugin_v{v}" for v in (3, 4, 5, 6)}
PROFILERS = {f"ncclProfiler_v{v}" for v in (4, 5, 6)}


def tool(name: str, *arguments: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}; `apt-get install binutils`")
    done = subprocess.run([name, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_exports_the_plugin_symbols_and_nothing_else(built: Built) -> None:
    rows = [
        line.split() for line in tool("nm", "-D", "--defined-only", str(built.plugin)).splitlines()
    ]
    assert {row[2] for row in rows} == TUNERS | PROFILERS
    assert {row[1] for row in rows} <= {"D", "R"}  # data, as NCCL looks them up


def test_needs_the_c_library_alone(built: Built) -> None:
    dynamic = tool("readelf", "-d", str(built.plugin))
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert all("libc.so" in line or "libpthread" in line for line in needed)


def test_starts_no_thread_and_registers_nothing_that_outlives_it(built: Built) -> None:
    undefined = tool("nm", "-D", "--undefined-only", str(built.plugin))
    for forbidden in (
        "pthread_create", "atexit", "signal", "sigaction", "malloc", "_ZTI", "setenv", "putenv",
    ):  # fmt: skip
        assert f" {forbidden}" not in undefined


def test_talks_to_nobody_and_depends_on_no_locale(built: Built) -> None:
    """No socket or pipe that could raise SIGPIPE; no number with a decimal point is read."""
    undefined = tool("nm", "-D", "--undefined-only", str(built.plugin))
    names = {line.split()[-1].partition("@")[0] for line in undefined.splitlines()}
    assert not names & {
        "socket", "connect", "send", "sendto", "sendmsg", "write", "writev", "pipe", "pipe2",
        "fopen", "fwrite", "printf", "fprintf", "strtod", "strtof", "strtold", "atof", "scanf",
        "sscanf", "__isoc99_sscanf", "setlocale", "localeconv",
    }  # fmt: skip


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_every_tuner_struct_is_complete(plugin: Plugin, version: int) -> None:
    struct = plugin.tuner(version)
    assert struct.name == b"ringstep"
    assert all((struct.init, struct.get_coll_info, struct.finalize))


@pytest.mark.parametrize("version", [4, 5, 6])
def test_every_profiler_struct_is_complete(plugin: Plugin, version: int) -> None:
    struct = plugin.profiler(version)
    assert struct.name == b"ringstep"
    assert all((struct.init, struct.start_event, struct.stop_event, struct.record_event_state,
                struct.finalize))  # fmt: skip
