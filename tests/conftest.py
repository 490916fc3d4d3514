"""What holds for every test."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for free_ports

# Tests start Python by the hundred, and a run has several workers: let each find what another has
# compiled (and pytest what it has rewritten), even where the environment asks for no such files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test here judges by the clock, so neither may hypothesis: the machine may be busy. A run of
# continuous integration repeats; on a developer's machine the search goes on.
settings.register_profile(
    "ringstep",
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
# A long search: pytest --hypothesis-profile=long -k fuzz
settings.register_profile("long", settings.get_profile("ringstep"), max_examples=5000)
settings.load_profile("ringstep")


def pytest_configure() -> None:
    """Let ctrl-C reach the programs under test.

    A runner started in the background ignores SIGINT, and so would every process a test starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage: everything that is imported and collected is kept.

    Nor need later searches, of which tests cause many, look at it again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
