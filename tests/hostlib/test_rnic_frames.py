"""The frames on the wire, judged by scapy and by the codec's slow path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringstep.hostlib.dcqcn import preset
from ringstep.hostlib.rnic import SoftRnic, Status
from ringstep.hostlib.tagging import PortPerStep, QpPool, StepTagger
from ringstep.hostlib.wires import VirtualNet
from ringstep.protocol.rocev2 import CE, build, parse

MakePair = Callable[..., Any]


def traffic(make_pair: MakePair, name: str, **addresses: str) -> list[bytes]:
    """Return every frame of a run with data of all shapes, a loss and marks."""
    frames: list[bytes] = []
    lost: list[int] = []

    def to_b(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        frames.append(frame)
        changed = parse(frame)
        if changed.bth.psn == 7 and not lost:
            lost.append(7)
            return []
        changed.ecn = CE
        return [(0.0, build(changed))]

    def to_a(frame: bytes, now_us: float) -> list[tuple[float, bytes]]:
        frames.append(frame)
        return [(0.0, frame)]

    pair = make_pair(a_to_b=to_b, b_to_a=to_a, dcqcn=preset(name, 10e9), **addresses)
    for step, size in enumerate((0, 1, 255, 256, 257, 2000)):
        pair.qa.post_write(bytes(range(256)) * 8 if size == 2000 else size, step=step, imm=step)
        pair.qa.post_write(size, step=step)
    pair.run()
    assert all(done.status is Status.OK for done in pair.completions)
    return frames


@pytest.mark.parametrize("name", ["connectx", "hpcc_run"])
@pytest.mark.parametrize("addresses", [{}, {"ip_a": "fd00::1", "ip_b": "fd00::2"}])
def test_the_fast_path_builds_what_the_codec_builds(
    make_pair: MakePair, name: str, addresses: dict[str, str]
) -> None:
    frames = traffic(make_pair, name, **addresses)
    assert len(frames) > 30
    for frame in frames:
        assert build(parse(frame)) == frame


@pytest.mark.parametrize("name", ["connectx", "hpcc_run"])
def test_scapy_agrees_on_every_icrc(make_pair: MakePair, name: str) -> None:
    pytest.importorskip("scapy.contrib.roce", reason="scapy judges the ICRC: pip install scapy")
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether

    kinds = set()
    for frame in traffic(make_pair, name):
        seen = Ether(frame)
        kinds.add(seen[BTH].opcode)
        sent_icrc = frame[-4:]
        assert seen[BTH].compute_icrc(bytes(seen[BTH])[:-4]) == sent_icrc
    assert {0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x11} <= kinds
    assert (0x81 in kinds) == (name == "connectx")


@pytest.mark.parametrize("tagger", [PortPerStep(), QpPool.of(8)])
def test_steps_over_a_connection(tagger: StepTagger) -> None:
    """Twenty steps on one queue pair or on a pool: the receiver sees every step, in its port."""
    a = SoftRnic(1, "10.0.0.1", 2, 1e9)
    b = SoftRnic(2, "10.0.0.2", 1, 1e9)
    qps = []
    for index in range(tagger.qps):
        qps.append(a.create_qp(16 + index, "10.0.0.2", 100 + index, layout=tagger.layout))
        b.create_qp(100 + index, "10.0.0.1", 16 + index, layout=tagger.layout)
    net = VirtualNet()
    net.add_host("a", a)
    net.add_host("b", b)
    net.link("a", "b", 2.0)

    def post(step: int) -> None:
        place = tagger.place(0, step)
        wr = qps[place.qp_index].post_write(3000, step=step, sport=place.sport, now_us=net.now_us)
        assert wr.step == step

    for step in range(20):
        net.call_at(step * 100.0, lambda step=step: post(step))
    assert net.run()
    mask = tagger.layout.step_mask
    assert [arrival.step for arrival in b.poll_arrivals()] == [step & mask for step in range(20)]
    assert [done.wr.step for done in a.poll_completions()] == list(range(20))
