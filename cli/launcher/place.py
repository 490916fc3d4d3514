"""Where in the job this launcher runs: how many nodes there are, and which one this is."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringstep.cli.launcher.say import LaunchError

_TORCHRUN_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch"})
_COUNT = re.compile(r"\d+")
_ELASTIC = re.compile(r"(?:\d+:)?(\d+)")


@dataclass(frozen=True, slots=True)
class Place:
    """``node_rank`` of ``nodes``; ``local_rank`` counts the launchers of one node from 0.

    ``master``: host of rank 0 as the command or the environment names it; empty where none does.
    """

    nodes: int
    node_rank: int
    local_rank: int = 0
    master: str = ""

    @property
    def registers(self) -> bool:
        """Whether this launcher is the one that registers the job."""
        return self.node_rank == 0 and self.local_rank == 0


def torchrun_options(command: Sequence[str]) -> dict[str, str] | None:
    """Return the options of torchrun in a command line, by name with underscores; None without it.

    Wrappers before it (``env``, ``numactl``) are passed over; the script's own options are left
    alone.
    """
    start = next((i for i, word in enumerate(command) if _is_torchrun(word)), None)
    if start is None:
        return None
    found: dict[str, str] = {}
    words = list(command[start + 1 :])
    while words:
        word = words.pop(0)
        if word == "--" or not word.startswith("-"):
            # A value of an option that is not ours to know, or the script.
            if word.endswith(".py") or word == "--":
                break
            continue
        if word == "-m":
            break
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and words and not words[0].startswith("-"):
            value = words[0]
        found[name.replace("-", "_")] = value
    return found


def _is_torchrun(word: str) -> bool:
    return os.path.basename(word) == "torchrun" or word in _TORCHRUN_MODULES  # noqa: PTH119


def find_place(
    nodes: int | None,
    node_rank: int | None,
    ring: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
) -> Place:
    """Return the place of this launcher.

    An option wins, then torchrun's own, then Slurm, then MPI; last the place of this machine's
    name among the hosts of ``ring``.

    Raises:
        LaunchError: a number that makes no sense, or one of several nodes and nobody says which.
    """
    found = torchrun_options(command)
    torchrun = found or {}
    # Without --nnodes torchrun runs on one node, however large the allocation around it is.
    alone = found is not None and "nnodes" not in found and "PET_NNODES" not in env
    mpi_nodes, mpi_rank, mpi_local = _mpi(env)
    count = _first(
        nodes,
        _elastic("torchrun's --nnodes", torchrun.get("nnodes")),
        _elastic("PET_NNODES", env.get("PET_NNODES")),
        1 if alone else None,
        _number("SLURM_STEP_NUM_NODES", env.get("SLURM_STEP_NUM_NODES")),
        _number("SLURM_NNODES", env.get("SLURM_NNODES")),
        mpi_nodes,
        len(ring) or None,
        1,
    )
    rank = _first(
        node_rank,
        _number("torchrun's --node-rank", torchrun.get("node_rank")),
        _number("PET_NODE_RANK", env.get("PET_NODE_RANK")),
        0 if count == 1 else None,
        _number("SLURM_NODEID", env.get("SLURM_NODEID")),
        mpi_rank,
        _own_place(ring),
    )
    if count is None or count < 1:
        raise LaunchError(f"--nodes {count}: at least 1")
    if rank is None:
        raise LaunchError(
            f"{count} nodes, and nothing says which one this is: give --node-rank 0 to {count - 1} "
            "(torchrun's --node-rank, SLURM_NODEID and MPI's ranks are understood)"
        )
    if not 0 <= rank < count:
        raise LaunchError(f"node rank {rank}: 0 to {count - 1} for {count} nodes")
    local = _first(_number("SLURM_LOCALID", env.get("SLURM_LOCALID")), mpi_local, 0)
    return Place(count, rank, local or 0, _master(torchrun, ring, env))


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _number(what: str, text: str | None) -> int | None:
    if text is None or text == "":
        return None
    if not _COUNT.fullmatch(text):
        raise LaunchError(f"{what} is {text!r}, not a number; give --nodes and --node-rank")
    return int(text)


def _elastic(what: str, text: str | None) -> int | None:
    """Return the nodes of N or MIN:MAX: the most, since decisions wait for all that may come."""
    if text is None or text == "":
        return None
    found = _ELASTIC.fullmatch(text)
    if found is None:
        raise LaunchError(f"{what} is {text!r}, not N or MIN:MAX")
    return int(found[1])


def _mpi(env: Mapping[str, str]) -> tuple[int | None, int | None, int | None]:
    """Return nodes, node rank and local rank as Open MPI or a PMI tells; ranks go node by node."""
    for size, rank, local_size, local_rank in (
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ):  # fmt: skip
        all_ranks, own = _number(size, env.get(size)), _number(rank, env.get(rank))
        if all_ranks is None or own is None:
            continue
        beside = _number(local_size, env.get(local_size)) or 1
        return -(-all_ranks // beside), own // beside, _number(local_rank, env.get(local_rank)) or 0
    return None, None, None


def _own_place(ring: Sequence[str]) -> int | None:
    name = socket.gethostname()
    for known in (name, name.partition(".")[0]):
        if known in ring:
            return list(ring).index(known)
    return None


def _master(torchrun: Mapping[str, str], ring: Sequence[str], env: Mapping[str, str]) -> str:
    endpoint = torchrun.get("rdzv_endpoint", "") or env.get("PET_RDZV_ENDPOINT", "")
    named = (
        torchrun.get("master_addr", "")
        or endpoint.rpartition(":")[0]
        or endpoint
        or env.get("PET_MASTER_ADDR", "")
        or env.get("MASTER_ADDR", "")
    )
    return named or (ring[0] if ring else "")
