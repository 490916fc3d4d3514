"""What holds for every test."""

import os
import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for free_ports

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
