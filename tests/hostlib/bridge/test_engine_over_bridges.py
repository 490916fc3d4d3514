"""The collective engine itself over bridges: right results, and its steps on the wire."""

from __future__ import annotations

import json
import random
import subprocess
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

from ringstep.hostlib.native.build import build_engine, missing_tools
from ringstep.hostlib.tagging import PortPerStep, QpPool, StepTagger
from ringstep.protocol.rocev2 import RoceFrame, is_last
from ringstep.protocol.tag import TagLayout

from .conftest import MakeCable, Running, StartBridge

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def perf() -> Path:
    missing = missing_tools("C++")
    if missing is not None:
        pytest.skip(missing)
    return build_engine().perf


def run(perf: Path, bridges: list[Running], *options: str) -> dict[str, Any]:
    """Run a collective with one rank per bridge; return what rank 0 reports."""
    root = f"127.0.0.1:{free_port()}"
    ranks = [
        subprocess.Popen(
            [str(perf), *options, "--rank", str(rank), "--ranks", str(len(bridges)),
             "--root", root, "--bridge", str(bridge.path), "--timeout", "60", "--json",
             "-w", "1", "-n", "2"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, bridge in enumerate(bridges)
    ]  # fmt: skip
    said = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), said
    report: dict[str, Any] = json.loads(said[0][0])
    return report


@pytest.mark.parametrize("tagger", [PortPerStep(), QpPool.of(8)], ids=["port", "pool"])
@pytest.mark.parametrize("algo", ["ring", "tree"])
@pytest.mark.parametrize("proto", ["ll", "simple"])
def test_three_ranks_get_the_right_result(
    perf: Path, start: StartBridge, tagger: StepTagger, algo: str, proto: str
) -> None:
    bridges = [start(tagger=tagger) for _ in range(3)]
    run(perf, bridges, "all_reduce", "--sizes", "8,5000,300000", "--algo", algo,
        "--proto", proto, "--channels", "2")  # fmt: skip
    for bridge in bridges:
        counts = bridge.bridge.stats()
        assert counts["broken"] == counts["refused"] == 0, bridge.log
        # Trees are not steps of a ring: their messages are untagged.
        assert (counts["messages_sent"] > 0) == (algo == "ring")


def test_ranks_of_one_host_and_other_collectives(perf: Path, start: StartBridge) -> None:
    one, other = start(), start()
    for collective in ("all_gather", "reduce_scatter", "broadcast"):
        run(perf, [one, one, other, other], collective, "--sizes", "100,70000")
    assert one.bridge.stats()["broken"] == 0


def test_a_switch_sees_the_rings_steps_in_order(
    perf: Path, start: StartBridge, make_cable: MakeCable
) -> None:
    cable = make_cable()
    layout = TagLayout(4, 10)
    bridges = [
        start(cable.wire(side), mtu=1024, tagger=PortPerStep(layout), job_tag=9) for side in (0, 1)
    ]
    run(perf, bridges, "all_reduce", "--sizes", "100000", "--algo", "ring", "--channels", "2")
    for side in (0, 1):
        flows: dict[int, list[RoceFrame]] = defaultdict(list)
        seen: set[tuple[int, int]] = set()
        for frame in cable.parsed(side):
            if TagLayout.is_tagged(frame.sport):
                assert layout.job_tag_of(frame.sport) == 9
                if (frame.bth.dest_qp, frame.bth.psn) not in seen:  # not a retransmission
                    flows[frame.bth.dest_qp].append(frame)
                seen.add((frame.bth.dest_qp, frame.bth.psn))
        assert len(flows) == 2  # One connection per channel.
        for frames in flows.values():
            steps = [layout.step_of(frame.sport) for frame in frames]
            assert len(set(steps)) > 4
            distances = [(b - a) & layout.step_mask for a, b in pairwise(steps)]
            assert set(distances) == {0, 1}
            # A step changes only after a message ended.
            assert all(
                is_last(frame.bth.opcode)
                for frame, distance in zip(frames, distances, strict=False)
                if distance
            )


def test_loss_on_the_wire_does_not_change_a_result(
    perf: Path, start: StartBridge, make_cable: MakeCable
) -> None:
    draw = random.Random(8)
    cable = make_cable(lambda side, frame: [] if draw.random() < 0.02 else [frame])
    bridges = [start(cable.wire(side), mtu=1024, rto_us=10e3) for side in (0, 1)]
    run(perf, bridges, "all_reduce", "--sizes", "100000", "--channels", "2")
    assert sum(b.bridge.stats()["queue_pairs"]["retransmissions"] for b in bridges) > 0
