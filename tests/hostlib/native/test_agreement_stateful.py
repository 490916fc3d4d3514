"""The real library against a model of the protocol in Python: ranks, communicators, any order."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import Commit, Decision, DecisionTable, ShmFile, default_path
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

AR = Collective.ALL_REDUCE
COMMS, RANKS = 2, 3


@dataclass
class ModelRank:
    rank: Rank
    index: int = 0
    current: int = 0
    held: int = 0
    left: bool = False


@dataclass
class ModelComm:
    number: int
    ranks: list[ModelRank]
    announced: int = 0
    epoch: int = 0
    first: int = 0
    frontier: int = 0
    decided: dict[int, int] = field(default_factory=dict)


class Agreement(RuleBasedStateMachine):
    plugin: Plugin
    switches = 0

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        os.environ["RINGSTEP_SHM_DIR"] = self.folder.name
        self.shm = ShmFile.create(default_path())
        self.epoch = 0
        self.comms: list[ModelComm] = []

    @initialize()
    def join(self) -> None:
        for number in range(COMMS):
            ranks = [ModelRank(Rank(self.plugin, 40 + number, RANKS, r)) for r in range(RANKS)]
            self.comms.append(ModelComm(number, ranks))

    def ask(self, comm: ModelComm, member: ModelRank) -> None:
        """One getCollInfo, in the library and in the model."""
        comm.frontier = max(comm.frontier, member.index + 1)
        if comm.epoch == member.held != 0 and member.index >= comm.first:
            member.current, member.held = member.held, 0
        member.rank.api_call()
        got = member.rank.get_coll_info(AR)[1]
        # The invariant: whatever the model thinks, no two ranks may differ.
        assert comm.decided.setdefault(member.index, got) == got
        assert got == member.current % 60
        if comm.announced > max(member.current, member.held) and comm.epoch == member.current:
            member.held = comm.announced

    def members(self, comm: int, rank: int) -> tuple[ModelComm, ModelRank]:
        chosen = self.comms[comm]
        return chosen, chosen.ranks[rank]

    @rule(comm=st.integers(0, COMMS - 1), rank=st.integers(0, RANKS - 1), n=st.integers(1, 4))
    def collectives(self, comm: int, rank: int, n: int) -> None:
        where, member = self.members(comm, rank)
        for _ in range(n):
            if member.left:
                return
            self.ask(where, member)
            member.rank.run_kernels(member.rank.launch(), 2)
            member.index += 1

    @rule(comm=st.integers(0, COMMS - 1))
    def catch_up(self, comm: int) -> None:
        """Those who lag come to where the first one is, as a collective's end forces them to."""
        most = max(m.index for m in self.comms[comm].ranks)
        for rank, member in enumerate(self.comms[comm].ranks):
            if member.index < most:
                self.collectives(comm, rank, most - member.index)

    @rule(comm=st.integers(0, COMMS - 1), order=st.permutations(range(RANKS)))
    def offer_and_commit(self, comm: int, order: list[int]) -> None:
        """What a coordinator does when nothing goes wrong."""
        self.catch_up(comm)
        self.announce(comm)
        for rank in order:
            self.collectives(comm, rank, 2)
        self.commit(comm, 0)

    @rule(comm=st.integers(0, COMMS - 1), rank=st.integers(0, RANKS - 1))
    def simulated_group(self, comm: int, rank: int) -> None:
        where, member = self.members(comm, rank)
        if not member.left:
            self.ask(where, member)

    @rule(comm=st.integers(0, COMMS - 1))
    def announce(self, comm: int) -> None:
        where = self.comms[comm]
        if any(m.left for m in where.ranks):
            return
        self.epoch += 1
        table = DecisionTable()
        if self.epoch % 60:
            table.set(AR, range(64), Decision(Algo.RING, Proto.LL, self.epoch % 60))
        self.shm.announce(where.number, self.epoch, table)
        where.announced = self.epoch

    @rule(comm=st.integers(0, COMMS - 1), late=st.integers(0, 2))
    def commit(self, comm: int, late: int) -> None:
        """Of the newest epoch, or of one that was on offer before: messages come late."""
        where = self.comms[comm]
        epoch = where.announced - late
        if epoch <= 0 or any(m.left for m in where.ranks):
            return
        outcome = self.shm.commit(where.number, epoch)
        acknowledged = all(m.held == epoch for m in where.ranks)
        if where.epoch == epoch:
            assert outcome is Commit.DONE
        elif epoch != where.announced:
            assert outcome is Commit.NOT_ANNOUNCED
        elif not acknowledged:
            assert outcome is Commit.NOT_ACKNOWLEDGED
        else:
            assert outcome is Commit.DONE
            where.epoch, where.first = epoch, where.frontier
            Agreement.switches += 1
            assert self.shm.comm(where.number).first_index == where.first

    @rule(comm=st.integers(0, COMMS - 1))
    def abandon(self, comm: int) -> None:
        where = self.comms[comm]
        if where.announced and not any(m.left for m in where.ranks):
            done = self.shm.abandon(where.number, where.announced)
            assert done == (where.epoch != where.announced)
            if done:
                where.announced = 0

    @rule()
    def restart_coordinator(self) -> None:
        self.shm.close()
        self.shm = ShmFile.reopen(default_path())
        assert self.shm.last_epoch == self.epoch

    @precondition(lambda self: self.epoch > 3)
    @rule(comm=st.integers(0, COMMS - 1), rank=st.integers(0, RANKS - 1))
    def leave(self, comm: int, rank: int) -> None:
        """From here on the communicator can switch no more; who is left stays together."""
        _, member = self.members(comm, rank)
        if not member.left:
            member.rank.finalize()
            member.left = True

    def teardown(self) -> None:
        for comm in self.comms:
            for member in comm.ranks:
                if not member.left:
                    member.rank.finalize()
        assert list(self.shm.comms()) == []
        self.shm.close()
        self.folder.cleanup()


@pytest.mark.parametrize("steps", [30, 120])
def test_ranks_agree_whatever_the_order(
    plugin: Plugin, shm_dir: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agreement, "plugin", plugin, raising=False)
    monkeypatch.setattr(Agreement, "switches", 0)
    run_state_machine_as_test(
        Agreement, settings=settings(stateful_step_count=steps, max_examples=30)
    )
    assert Agreement.switches > 5  # else nothing was tried; how many there are is chance
