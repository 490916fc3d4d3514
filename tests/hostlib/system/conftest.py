"""Three hosts in network namespaces, with the real plugin and the real coordinator."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringstep.hostlib.native.build import Built, build, build_engine, missing_tools
from ringstep.hostlib.nethosts import NetHosts, missing

from .world import World


@pytest.fixture(scope="session")
def built() -> Built:
    reason = missing_tools("C++") or missing_tools()
    if reason is not None:
        pytest.skip(reason)
    build_engine()
    return build()


@pytest.fixture
def n_hosts() -> int:
    """The fewest that are neither all of a pair nor all alike in a tree; a module may want more."""
    return 3


@pytest.fixture
def world(built: Built, n_hosts: int) -> Iterator[World]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with NetHosts(n_hosts) as hosts, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        made = World(hosts, built, Path(folder))
        try:
            yield made
        finally:
            made.close()
