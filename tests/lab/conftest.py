"""What the lab's tests share."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LOCK = Path(tempfile.gettempdir()) / "ringstep-lab-tests.lock"


@pytest.fixture
def only_lab() -> Iterator[None]:
    """Hold the machine's one lab: its interfaces and marked processes are everybody's to see."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
