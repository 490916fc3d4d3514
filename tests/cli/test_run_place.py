"""Which node a launcher is on: options, torchrun's words, Slurm, MPI, the machine's name."""

from __future__ import annotations

import socket

import pytest

from ringstep.cli.launcher.place import Place, find_place, torchrun_options
from ringstep.cli.launcher.plan import request_id, run_token, shm_token
from ringstep.cli.launcher.say import LaunchError

SLURM = {"SLURM_NNODES": "4", "SLURM_NODEID": "3", "SLURM_LOCALID": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}
TORCHRUN = ["torchrun", "--nnodes=2", "--node-rank", "1", "--master-addr", "m", "train.py"]


def place(command: list[str], env: dict[str, str] | None = None, **options: object) -> Place:
    given = {"nodes": None, "node_rank": None, "ring": (), **options}
    return find_place(command=command, env=env or {}, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "env", "options", "expected"),
    [
        (["train"], {}, {}, Place(1, 0)),
        (TORCHRUN, {}, {}, Place(2, 1, master="m")),
        (TORCHRUN, SLURM, {}, Place(2, 1, 1, "m")),
        (TORCHRUN, {}, {"nodes": 8, "node_rank": 7}, Place(8, 7, master="m")),
        (["torchrun", "train.py"], SLURM, {}, Place(1, 0, 1)),
        (["train"], SLURM, {}, Place(4, 3, 1)),
        (["train"], SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}, {}, Place(1, 0, 1)),
        (["train"], OPEN_MPI, {}, Place(2, 1, 1)),
        (["train"], {"PMI_SIZE": "3", "PMI_RANK": "2"}, {}, Place(3, 2)),
        (["torchrun", "x.py"], {"PET_NNODES": "2", "PET_NODE_RANK": "1"}, {}, Place(2, 1)),
        (["train"], {"MASTER_ADDR": "m"}, {"nodes": 2, "node_rank": 0}, Place(2, 0, master="m")),
        (
            ["train"],
            {},
            {"ring": ("other", socket.gethostname())},
            Place(2, 1, master="other"),
        ),
        (
            ["torchrun", "--nnodes", "1:4", "--rdzv-endpoint", "r:29400", "train.py"],
            {},
            {"node_rank": 2},
            Place(4, 2, master="r"),
        ),
    ],
)
def test_the_first_that_says_it_wins(
    command: list[str], env: dict[str, str], options: dict[str, object], expected: Place
) -> None:
    assert place(command, env, **options) == expected


@pytest.mark.parametrize(
    ("command", "env", "options", "text"),
    [
        (["train"], {}, {"nodes": 2}, "give --node-rank 0 to 1"),
        (["train"], {}, {"nodes": 2, "node_rank": 2}, "node rank 2: 0 to 1 for 2 nodes"),
        (["train"], {"SLURM_NNODES": "two"}, {}, "SLURM_NNODES is 'two', not a number"),
        (["torchrun", "--nnodes", "a:b", "x.py"], {}, {}, "not N or MIN:MAX"),
    ],
)
def test_what_makes_no_sense_is_refused(
    command: list[str], env: dict[str, str], options: dict[str, object], text: str
) -> None:
    with pytest.raises(LaunchError, match=text):
        place(command, env, **options)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "--node-rank", "1"], None),
        (["torchrun"], {}),
        (["/opt/bin/torchrun", "train.py", "--nnodes", "9"], {}),
        (["env", "X=1", "python", "-m", "torch.distributed.run", "--nnodes", "2", "a.py"],
         {"nnodes": "2"}),
        (["torchrun", "--nproc-per-node", "2", "--standalone", "-m", "pkg", "--nnodes=3"],
         {"nproc_per_node": "2", "standalone": ""}),
        (["torchrun", "--node_rank=1", "--", "x", "--nnodes=3"], {"node_rank": "1"}),
    ],
)  # fmt: skip
def test_torchruns_own_options_are_found_and_the_scripts_left_alone(
    command: list[str], expected: dict[str, str] | None
) -> None:
    assert torchrun_options(command) == expected


def test_only_the_first_launcher_of_the_first_node_registers() -> None:
    assert [Place(2, n, local).registers for n, local in ((0, 0), (0, 1), (1, 0))] == [
        True, False, False,
    ]  # fmt: skip


def test_tokens_are_one_per_run_and_on_all_nodes_of_it() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    assert run_token("", step) == run_token("", {**step, "SLURM_NODEID": "3"})
    assert run_token("", step) != run_token("", {**step, "SLURM_RESTART_COUNT": "1"})
    assert run_token("mine", step) == "mine"
    assert shm_token("a", "t", "", {}) == shm_token("a", "t", "h1:9571", {})
    assert shm_token("a", "", "h1:9571", {}) == shm_token("a", "", "h1:9571", {})
    assert shm_token("a", "", "", {}) != shm_token("a", "", "", {})
    assert shm_token("a", "t", "", {"RINGSTEP_SHM_TOKEN": "0xBEEF"}) == 0xBEEF
    assert shm_token("a", "", "", OPEN_MPI) == shm_token("a", "", "", OPEN_MPI)


def test_a_request_id_does_not_tell_the_token() -> None:
    assert request_id("a", "secret") == request_id("a", "secret")
    assert "secret" not in request_id("a", "secret")
    assert request_id("a", "") != request_id("a", "")
