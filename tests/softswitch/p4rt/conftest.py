"""A P4Runtime server on a real channel, in front of a switch that runs tests/softswitch/data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from p4rt_rig import Client, Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A server without a pipeline."""
    running = Rig()
    yield running
    running.close()


@pytest.fixture
def client(rig: Rig) -> Client:
    """The primary of a server that runs the entities program."""
    one = rig.primary(election_id=1)
    one.push()
    return one
