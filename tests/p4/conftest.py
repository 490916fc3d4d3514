"""Makes the helpers beside these tests and those of the golden vectors importable, and BMv2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "vectors", HERE.parent / "softswitch" / "p4rt"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from committed_program import Bench, Programmed, WireBench  # noqa: E402 - the path first
from engines import WHY_NOT, Bmv2, Engine, SoftSwitch, find_bmv2  # noqa: E402

# Where BMv2 is missing, one test says so (test_every_engine.py) instead of all.
ENGINES = ["softswitch", "bmv2"] if find_bmv2() else ["softswitch"]


@pytest.fixture(scope="session")
def bmv2() -> Iterator[Bmv2]:
    """One process of BMv2 for all tests; it runs what the last one left in it."""
    binary = find_bmv2()
    if binary is None:
        pytest.skip(WHY_NOT)
    running = Bmv2(binary)
    yield running
    running.close()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Each engine in turn, with its P4Runtime client."""
    if request.param == "bmv2":
        yield request.getfixturevalue("bmv2")
        return
    soft = SoftSwitch()
    yield soft
    soft.close()


@pytest.fixture(params=ENGINES)
def empty(request: pytest.FixtureRequest) -> Programmed:
    """The program with empty tables: in the software switch in memory, and on BMv2."""
    if request.param == "softswitch":
        return Bench()
    return WireBench(request.getfixturevalue("bmv2"))
