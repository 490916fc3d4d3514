"""The native code under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import BuildError, Built, build, missing_tools
from ringstep.hostlib.shm import Decision, DecisionTable, ShmFile
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

DRIVER = Path(__file__).with_name("driver.c")
HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def sanitized(kind: str) -> Built:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        return build(sanitize=kind, driver=DRIVER)
    except BuildError as error:
        if "cannot find" in str(error) or "unrecognized" in str(error):
            pytest.skip(f"needs the compiler's sanitizer libraries ({kind}); gcc brings them")
        raise


def run(built: Built, *arguments: str) -> None:
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:exitcode=98",
    }
    done = subprocess.run(
        [str(built.driver), *arguments], capture_output=True, text=True, env=environment
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer does not know this kernel's memory map; "
                    "`sysctl vm.mmap_rnd_bits=28` or a newer compiler")  # fmt: skip
    assert done.returncode == 0, done.stderr


def with_decisions(shm: ShmFile) -> None:
    table = DecisionTable()
    table.set(Collective.ALL_REDUCE, range(64), Decision(Algo.RING, Proto.LL, 2))
    shm.write_static(table)


def test_driver_under_address_and_undefined_behaviour(shm: ShmFile) -> None:
    with_decisions(shm)
    built = sanitized("address;undefined")
    run(built, "cycles", str(built.plugin), "20")
    run(built, "threads", str(built.plugin), "8", "300")


def test_threads_under_thread_sanitizer(shm: ShmFile) -> None:
    """Communicators of one process, in threads, in one file and one ring."""
    with_decisions(shm)
    built = sanitized("thread")
    run(built, "threads", str(built.plugin), "8", "300")


def test_whole_suite_of_the_plugin_under_address_sanitizer(tmp_path: Path) -> None:
    """The tests of decisions, profiler events and agreement, on the instrumented library."""
    built = sanitized("address;undefined")
    found = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": found,
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "RINGSTEP_TEST_LIBRARY": str(built.folder),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path),
    }
    files = ("test_decisions.py", "test_profiler.py", "test_agreement.py",
             "test_agreement_stateful.py")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         *(str(HERE / name) for name in files)],
        capture_output=True, text=True, env=environment, cwd=HERE.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
