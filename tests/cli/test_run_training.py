"""``ringstep run`` around torchrun: real coordinators, real plugin, real training on the CPU.

torchrun starts the ranks once with each backend. What is asked of the coordinator is asked with
ranks that are started with less.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from free_ports import free_port
from launching import Launcher, alive, until

from ringstep.hostlib.native.build import missing_tools

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing_tools("C++") is not None, reason=str(missing_tools("C++"))),
]

Launch = Callable[..., Launcher]
DDP = Path(__file__).parents[2] / "examples" / "train" / "ddp.py"
TORCHRUN = ("--", sys.executable, "-m", "torch.distributed.run")
TABLE = "collective,bytes,algorithm,protocol\nallreduce,..4MiB,ring,simple\n"


FORKED = Path(__file__).with_name("forked_ranks.py")


def training(backend: str, steps: int, *more: str) -> tuple[str, ...]:
    return (str(DDP), "--backend", backend, "--model", "mlp", "--steps", str(steps), *more)


@pytest.fixture
def fixed(tmp_path: Path) -> str:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    return f"fixed:{table}"


def summary(ran: Launcher) -> dict[str, object]:
    found: dict[str, object] = json.loads(ran.stderr.splitlines()[-1].removeprefix("ringstep: "))
    return found


def coordinator_of(ran: Launcher) -> int:
    """The real coordinator: a child of the launcher in a session of its own."""
    children = Path(f"/proc/{ran.process.pid}/task/{ran.process.pid}/children")
    for pid in map(int, children.read_text().split()):
        if os.getsid(pid) == pid:
            return pid
    return 0


def test_ddp_with_gloo_trains_as_without(launch: Launch) -> None:
    ran = launch(
        "--job", "ddp", "--no-controller", "--policy", "autoccl", "--require", "tuner", "--json",
        *TORCHRUN, "--standalone", "--nproc-per-node", "2", *training("gloo", 5), fake=None,
    )  # fmt: skip
    assert ran.wait() == 0, ran.stderr
    assert "step     5/5" in ran.stdout
    assert summary(ran)["policy"] == "autoccl"


def test_a_fixed_table_is_applied_to_ddp_on_the_engine(launch: Launch, fixed: str) -> None:
    ran = launch(
        "--job", "ddp", "--no-controller", "--policy", fixed, "--require", "tuner", "--json",
        *TORCHRUN, "--standalone", "--nproc-per-node", "2", *training("ringstep", 20), fake=None,
    )  # fmt: skip
    assert ran.wait() == 0, ran.stderr
    told = summary(ran)
    assert int(str(told["collectives"])) >= 20
    # From the first collective on, by the static table.
    assert int(str(told["decided_on_record"])) >= 20
    assert not list(ran.shm.glob("*.shm"))


def test_two_nodes_switch_together_at_fences(launch: Launch, fixed: str) -> None:
    master, meet = free_port(), free_port()
    nodes = [
        launch(
            "--job", "ddp", "--no-controller", "--policy", fixed, "--nodes", "2", "--node-rank",
            str(rank), "--coordinator", f"127.0.0.1:{meet}", "--require", "tuner", "--json", "--",
            "env", f"RANK={rank}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={master}",
            sys.executable, *training("ringstep", 100_000, "--fence-every", "2"),
            fake=None,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for rank in (0, 1):
        nodes[0].warns(f"all ranks on {socket.gethostname()}-{rank} apply epoch 1")
    lines = nodes[0].stdout.count("/100000")
    until(lambda: nodes[0].stdout.count("/100000") > lines, "training goes on")
    for ran in nodes:
        ran.send(signal.SIGTERM)
    assert 0 not in [ran.wait() for ran in nodes]
    assert [summary(ran)["epochs_applied"] for ran in nodes] == [1, 1]


def test_training_goes_on_when_the_coordinator_is_killed(launch: Launch, fixed: str) -> None:
    ran = launch(
        "--job", "ddp", "--no-controller", "--policy", fixed, "--require", "tuner", "--json",
        "--", sys.executable, str(FORKED), "2", str(free_port()),
        *training("ringstep", 100_000, "--print-every", "10"), fake=None,
    )  # fmt: skip
    ran.says("/100000")
    os.kill(coordinator_of(ran), signal.SIGKILL)
    ran.warns("the coordinator is started again")
    lines = ran.stdout.count("/100000")
    until(lambda: ran.stdout.count("/100000") > lines, "training goes on")
    until(lambda: coordinator_of(ran), "there is another coordinator")
    again = coordinator_of(ran)
    ran.send(signal.SIGTERM)
    assert ran.wait() != 0
    assert not alive(again)
