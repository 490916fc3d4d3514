"""The tagger and the mock under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import BuildError, build_tagger, missing_tools

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def test_whole_suite_of_the_tagger_under_sanitizers() -> None:
    missing = missing_tools()
    if missing is not None:
        pytest.skip(missing)
    try:
        built = build_tagger(sanitize="address;undefined")
    except BuildError as error:
        if "cannot find" in str(error) or "unrecognized" in str(error):
            pytest.skip("needs the compiler's sanitizer libraries; gcc brings them")
        raise
    found = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": found,
        "ASAN_OPTIONS": "detect_leaks=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "RINGSTEP_TEST_TAGGER": str(built.folder),
    }
    files = ("test_port_arithmetic.py", "test_setting_ports.py", "test_probe.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
         "--deselect", f"{HERE}/test_probe.py::test_only_its_own_symbols_are_exported",
         *(str(HERE / name) for name in files)],
        capture_output=True, text=True, env=environment, cwd=HERE.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
