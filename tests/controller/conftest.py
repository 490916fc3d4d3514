"""Fabric, programs and switches that the tests of this folder share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from fake_switch import FakeSwitch  # noqa: E402
from postgres import own_postgres, postgres_server, postgres_url, store_url  # noqa: E402, F401

from ringstep.controller.config import ControllerConfig, P4RuntimeConfig  # noqa: E402
from ringstep.controller.fabricview import FabricView, fabric_view  # noqa: E402
from ringstep.controller.p4rt import Timing  # noqa: E402
from ringstep.controller.pipeline import Pipeline, load_pipeline  # noqa: E402
from ringstep.controller.store import Store  # noqa: E402
from ringstep.fabric import Topology, parse_topology  # noqa: E402
from ringstep.fabric.routing import RouteTable, route_tables  # noqa: E402

FABRIC = """
[[switch]]
name = "tor1"
device_id = 1
role = "tor"
mac = "02:00:00:00:01:00"
ecmp_seed = 101

[[switch]]
name = "tor2"
device_id = 2
role = "tor"
mac = "02:00:00:00:02:00"
ecmp_seed = 102

[[switch]]
name = "spine1"
device_id = 11
role = "spine"
mac = "02:00:00:00:11:00"
ecmp_seed = 111

[[switch]]
name = "spine2"
device_id = 12
role = "spine"
mac = "02:00:00:00:12:00"
ecmp_seed = 112

[[host]]
name = "h1"
ip = ["10.0.1.1", "fd00:1::1"]
mac = "02:00:00:01:00:01"

[[host]]
name = "h2"
ip = "10.0.1.2"
mac = "02:00:00:01:00:02"

[[host]]
name = "h3"
ip = ["10.0.2.3", "fd00:2::3"]
mac = "02:00:00:01:00:03"

[[host]]
name = "h4"
ip = "10.0.2.4"
mac = "02:00:00:01:00:04"

[[link]]
a = "tor1:1"
b = "h1"
rate = "10G"

[[link]]
a = "tor1:2"
b = "h2"
rate = "10G"

[[link]]
a = "tor2:1"
b = "h3"
rate = "10G"

[[link]]
a = "tor2:2"
b = "h4"
rate = "10G"

[[link]]
a = "tor1:11"
b = "spine1:1"
rate = "10G"

[[link]]
a = "tor1:12"
b = "spine2:1"
rate = "10G"

[[link]]
a = "tor2:11"
b = "spine1:2"
rate = "10G"

[[link]]
a = "tor2:12"
b = "spine2:2"
rate = "10G"
red = { enabled = false }
"""

FAST = Timing(
    connect_s=5,
    rpc_s=10,
    state_s=0.5,
    heartbeat_s=0.1,
    audit_s=0.3,
    retry_min_s=0.02,
    retry_max_s=0.1,
)
PATIENCE_S = 30.0
"""Until a test that waits for something gives up; not what anything should take."""


@pytest.fixture
def fabric_text() -> str:
    return FABRIC


@pytest.fixture
def topology() -> Topology:
    """Two ToRs with two hosts each, two spines; h2 and h4 have no IPv6 address."""
    return parse_topology(FABRIC, "fabric.toml")


@pytest.fixture
def routes(topology: Topology) -> dict[str, RouteTable]:
    return route_tables(topology)


@pytest.fixture
def view(topology: Topology) -> FabricView:
    """The fabric with all links up and nothing drained."""
    return fabric_view(topology)


@pytest.fixture(scope="session")
def pipeline() -> Pipeline:
    """The program that comes with Ringstep."""
    return load_pipeline()


@pytest.fixture
def timing() -> Timing:
    """Intervals that let a test see many of them."""
    return FAST


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'store.db'}")


@pytest.fixture
def config(tmp_path: Path, fabric_text: str) -> ControllerConfig:
    topology = tmp_path / "fabric.toml"
    topology.write_text(fabric_text)
    return ControllerConfig(
        topology=topology,
        listen="127.0.0.1:0",
        store=f"sqlite:///{tmp_path / 'store.db'}",
        p4runtime=P4RuntimeConfig(heartbeat_s=0.1, audit_s=0.3, retry_max_s=0.1, state_s=0.3),
    )


@pytest.fixture
async def new_switch() -> AsyncIterator[Callable[..., Awaitable[FakeSwitch]]]:
    """Start a switch on a free port of 127.0.0.1; all are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(**options: object) -> FakeSwitch:
            return await stack.enter_async_context(FakeSwitch(**options))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], Awaitable[None]]:
    """Wait until a condition holds."""

    async def wait(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
