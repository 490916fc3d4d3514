"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Let ctrl-C reach the programs under test.

    A runner started in the background ignores SIGINT, and so would every process a test starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
