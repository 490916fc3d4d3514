"""Scenarios that several tests start from."""

import pytest

LEAF_SPINE = """
[fabric]
kind = "leaf_spine"
leaves = 2
spines = 2
hosts_per_leaf = 4
rate = "10G"
"""

RING = """
[[job]]
collective = "all_reduce"
chunk = "64KiB"
placement = "striped"
"""


@pytest.fixture
def leaf_spine() -> str:
    """Two ToRs with four hosts each, two spines, 10G."""
    return LEAF_SPINE


@pytest.fixture
def ring() -> str:
    """The same with a ring AllReduce over all hosts, every hop across the spine."""
    return LEAF_SPINE + RING
