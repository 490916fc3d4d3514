"""What keeps a job's state whole where ports run in parallel: each update of it is one action.

BMv2 locks a register for one action and runs ports on different threads. The software switch runs
one packet after the other, so here its egress is generated once more, with a place to stop before
every action, and two packets of one job take turns in every order that actions can come in. With
places to stop inside the actions, as if an update were split over several, the same check must
find an order that breaks the state: otherwise it would show nothing.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator
from typing import Any

import pytest
from broken_frames import BLOCK, JOB
from committed_program import STATE, Bench, host
from sample_frames import frame

from ringstep.protocol.marker import MarkerParams, ProgressMode
from ringstep.protocol.rocev2 import Opcode, build
from ringstep.softswitch import codegen
from ringstep.softswitch.controls import ControlGenerator
from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.expressions import Value
from ringstep.softswitch.model import Action, Call, If, Statement, load_program
from ringstep.softswitch.pyir import Body, Effect
from ringstep.softswitch.scope import Scope
from ringstep.softswitch.statements import Statements
from ringstep.softswitch.tables import Pipeline

PORTS = (1, 2)
Paused = Generator[None, None, Any]
State = dict[str, int]


# -- an egress that stops


class StopsBeforeActions(ControlGenerator):
    """Every action begins with a place to stop."""

    def _action(self, action: Action, values: tuple[Value, ...]) -> Body:
        return [Effect("yield"), *super()._action(action, values)]


class StopsBeforeWrites(Statements):
    """So does every write of a register, as if the action ended before it."""

    def _do_register_write(self, call: Call) -> Body:
        return [Effect("yield"), *super()._do_register_write(call)]


@functools.cache
def stopping(split: bool) -> Pipeline:
    """The committed program, its functions turned into generators."""
    committed = Bench().pipeline
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codegen, "ControlGenerator", StopsBeforeActions)
        if split:
            patch.setattr(codegen, "Statements", StopsBeforeWrites)
        return compile_pipeline(committed.p4info, committed.json_text)


class Stopping(Bench):
    """A switch whose packets stop before their actions.

    One job runs on two ports with one block; it is in step 5, at progress 40, and has seen a
    packet of step 6.
    """

    def __init__(self, split: bool) -> None:
        super().__init__()
        self.pipeline = stopping(split)
        self.pipeline.reset()
        self.switch = Switch(1, rng=self.draw)
        self.switch.commit(self.pipeline)
        self.hosts(*PORTS)
        self.job_params(
            JOB,
            MarkerParams(
                k=1 << 16, q_gate=None, n_warmup=0, t_win=1000, mode=ProgressMode.PER_STEP
            ),
        )
        for port in PORTS:
            self.block_map(JOB, port, BLOCK)
            self.job_by_dst_qp(host(port), 0x11, JOB)
        for step, psn in ((5, 40), (6, 3)):
            finish(self.start(packet(PORTS[0], step, psn), 10))
        self._first = self.block(BLOCK)

    def start(self, data: bytes, now: int) -> Paused:
        """A packet at the beginning of its egress."""
        ingress: Callable[..., Any] = self.switch._ingress  # type: ignore[assignment]
        egress: Callable[..., Any] = self.switch._egress  # type: ignore[assignment]
        item = finish(ingress(data, 9, now))
        return egress(item, now, now, 0, 0)  # type: ignore[no-any-return]

    def back(self) -> None:
        """Bring the block back to where it was at first."""
        for name, value in self._first.items():
            self.register(name)[BLOCK] = value


def finish(packet: Paused) -> Any:
    """Run a packet to its end."""
    try:
        while True:
            next(packet)
    except StopIteration as end:
        return end.value


def packet(port: int, step: int, psn: int, opcode: Opcode = Opcode.RC_WRITE_MIDDLE) -> bytes:
    return build(frame(opcode, dst_ip=host(port), sport=0xC000 + step, psn=psn))


def outcomes(bench: Stopping, packets: list[bytes]) -> tuple[list[State], list[State]]:
    """The states that one packet after the other leads to, and those of taking turns.

    Turns: the first packet gets so far, then the second gets so far, then the first goes on to its
    end, then the second; for all "so far".
    """
    counts = []
    for data in packets:
        bench.back()
        counts.append(sum(1 for _ in bench.start(data, 20)))
    assert min(counts) > 3
    serial, in_turns = [], []
    for first, second in ((0, 1), (1, 0)):
        bench.back()
        for at in (first, second):
            finish(bench.start(packets[at], 20))
        serial.append(bench.block(BLOCK))
        for reached, reached_too in itertools.product(*(range(counts[i]) for i in (first, second))):
            bench.back()
            running = [bench.start(packets[at], 20) for at in (first, second)]
            for one, stops in zip(running, (reached, reached_too), strict=True):
                for _ in range(stops):
                    next(one)
            for one in running:
                finish(one)
            in_turns.append(bench.block(BLOCK))
    return serial, in_turns


PAIRS = {
    "two of the step": [packet(1, 5, 50), packet(2, 5, 60)],
    "the step's and one ahead": [packet(1, 5, 50), packet(2, 6, 7)],
    "one from behind and one ahead": [packet(1, 4, 9), packet(2, 6, 7)],
    "two ends of the step": [
        packet(1, 5, 70, Opcode.RC_WRITE_LAST),
        packet(2, 5, 71, Opcode.RC_WRITE_LAST),
    ],
    "an end and one from behind": [packet(1, 5, 70, Opcode.RC_WRITE_LAST), packet(2, 4, 1)],
}


@pytest.mark.parametrize("pair", PAIRS)
def test_packets_that_take_turns_between_actions_are_as_one_after_the_other(pair: str) -> None:
    serial, in_turns = outcomes(Stopping(split=False), PAIRS[pair])
    assert len(in_turns) > 20
    assert all(state in serial for state in in_turns)


def test_an_update_split_over_actions_would_be_found() -> None:
    bench = Stopping(split=True)
    broken = 0
    for packets in PAIRS.values():
        serial, in_turns = outcomes(bench, packets)
        broken += sum(state not in serial for state in in_turns)
    assert broken


# -- the same, read off the program


def register_accesses(body: tuple[Statement, ...]) -> list[tuple[str, str]]:
    """(read or write, register) in the order of the action."""
    found = []
    for statement in body:
        if isinstance(statement, If):
            found += register_accesses(statement.then) + register_accesses(statement.otherwise)
        elif statement.op == "register_read":
            found.append(("read", statement.args[1].name))
        elif statement.op == "register_write":
            found.append(("write", statement.args[0].name))
    return found


def test_each_register_is_read_and_written_by_one_action() -> None:
    program = load_program(Bench().pipeline.json_text)
    writers: dict[str, set[int]] = {name: set() for name in program.registers}
    for action in program.actions.values():
        seen = register_accesses(action.body)
        for kind, name in seen:
            if kind == "write":
                writers[name].add(action.id)
                assert ("read", name) in seen[: seen.index(("write", name))], action.name
    aliases = {name.split(".")[-1] for name in writers}
    assert aliases == {*STATE, "anchors", "mark_next"}
    assert all(len(actions) == 1 for actions in writers.values())
    # All registers of a block in one action, so a block is whole at any time.
    of_a_block = [ids for name, ids in writers.items() if name.split(".")[-1] in STATE]
    assert len(set(map(frozenset, of_a_block))) == 1


def test_the_names_of_the_generator_are_the_ones_patched_here() -> None:
    assert codegen.ControlGenerator is ControlGenerator
    assert codegen.Statements is Statements
    assert "yield" in stopping(False).source
    assert Scope is codegen.Scope
