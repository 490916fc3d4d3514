"""The steps in the packets, byte for byte, as a switch between two bridges sees them."""

from __future__ import annotations

import struct

import pytest

from ringstep.hostlib.tagging import PortPerStep, QpPool, StepTagger
from ringstep.protocol.rocev2 import Opcode, RoceFrame
from ringstep.protocol.tag import TagLayout

from .conftest import Connect, MakeCable, StartBridge
from .stand_in import UNTAGGED

MTU = 1024
NEVER = {"rto_us": 5e6}
"""A busy machine is no reason to send again: these tests count packets."""
ENDS = {Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM}


def data_of(frames: list[RoceFrame]) -> list[RoceFrame]:
    return [frame for frame in frames if frame.bth.opcode != Opcode.RC_ACK]


@pytest.mark.parametrize(
    ("tagger", "job_tag"),
    [(PortPerStep(), 0), (PortPerStep(TagLayout(6, 8)), 33), (QpPool.of(8), 5)],
    ids=["port_per_step", "port_per_step of a job", "qp_pool"],
)
def test_every_packet_of_a_step_carries_it(
    start: StartBridge, connect: Connect, make_cable: MakeCable, tagger: StepTagger, job_tag: int
) -> None:
    cable = make_cable()
    options = {"tagger": tagger, "job_tag": job_tag, "initial_psn": 0xFFFFF0, **NEVER}
    a, b = (start(cable.wire(side), mtu=MTU, **options) for side in (0, 1))
    left, right = connect(a, b)
    steps = [3, 4, 5, 254, 255, 256, 300, 16_384 + 7]
    for step in steps:
        left.send(bytes([step & 255]) * (3 * MTU + 5), step)
        assert right.receive() == (bytes([step & 255]) * (3 * MTU + 5), step)
    frames = [frame for frame in data_of(cable.parsed(0)) if TagLayout.is_tagged(frame.sport)]
    assert len(frames) == 4 * len(steps)
    qpns: dict[int, int] = {}
    psns: dict[int, int] = {}
    for index, step in enumerate(steps):
        place = tagger.place(job_tag, step)
        packets = frames[4 * index : 4 * index + 4]
        raw = [f for f in cable.frames[0] if int.from_bytes(f[34:36], "big") == place.sport]
        assert raw, "the port stands where UDP has it"
        assert {frame.sport for frame in packets} == {place.sport}
        assert [frame.bth.opcode in ENDS for frame in packets] == [False, False, False, True]
        assert b"".join(f.payload for f in packets) == bytes([step & 255]) * (3 * MTU + 5)
        (qpn,) = {frame.bth.dest_qp for frame in packets}
        assert qpns.setdefault(place.qp_index, qpn) == qpn
        # A queue pair's PSNs go on from step to step, and nothing else moves them.
        first = psns.get(qpn, 0xFFFFF0)
        assert [f.bth.psn for f in packets] == [(first + i) & 0xFFFFFF for i in range(4)]
        psns[qpn] = first + 4


def test_untagged_messages_and_signals_stay_out_of_the_tags_range(
    start: StartBridge, connect: Connect, make_cable: MakeCable
) -> None:
    cable = make_cable()
    # A small ring, so that credit is given back often.
    a, b = (start(cable.wire(side), mtu=MTU, ring_log2=14, **NEVER) for side in (0, 1))
    left, right = connect(a, b)
    for index in range(20):
        left.send(bytes(5000), UNTAGGED if index % 2 else index)
        right.receive()
    frames = data_of(cable.parsed(0))
    tagged = [f for f in frames if TagLayout.is_tagged(f.sport)]
    assert {f.sport & 0x3FFF for f in tagged} == set(range(0, 20, 2))
    untagged = [f for f in frames if not TagLayout.is_tagged(f.sport)]
    assert sum(len(f.payload) for f in untagged) >= 10 * 5000
    assert {f.bth.dest_qp for f in tagged}.isdisjoint({f.bth.dest_qp for f in untagged})
    credits = data_of(cable.parsed(1))
    assert len(credits) > 5
    assert not any(TagLayout.is_tagged(f.sport) for f in credits)


def test_scapy_agrees_on_every_icrc(
    start: StartBridge, connect: Connect, make_cable: MakeCable
) -> None:
    pytest.importorskip("scapy.contrib.roce", reason="scapy judges the ICRC: pip install scapy")
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import UDP
    from scapy.layers.l2 import Ether

    cable = make_cable()
    a, b = (start(cable.wire(side), mtu=256, **NEVER) for side in (0, 1))
    left, right = connect(a, b)
    for step in range(10):
        left.send(bytes(1001), step)
        right.receive()
    ports = []
    for frame in cable.frames[0]:
        seen = Ether(frame)
        assert seen[UDP].dport == 4791
        assert seen[BTH].compute_icrc(bytes(seen[BTH])[:-4]) == frame[-4:]
        if seen[UDP].sport >= 0xC000:
            ports.append(seen[UDP].sport)
    assert ports == [0xC000 + step for step in range(10) for _ in range(4)]


def test_a_message_longer_than_the_receiver_takes_at_once_keeps_its_step(
    start: StartBridge, connect: Connect, make_cable: MakeCable
) -> None:
    cable = make_cable()
    a, b = (start(cable.wire(side), mtu=MTU, ring_log2=14, **NEVER) for side in (0, 1))
    left, right = connect(a, b)
    data = struct.pack("=5000I", *range(5000))
    left.send(data, 11)
    assert right.receive() == (data, 11)
    tagged = [f for f in data_of(cable.parsed(0)) if TagLayout.is_tagged(f.sport)]
    assert {f.sport for f in tagged} == {0xC00B}
    assert sum(f.bth.opcode in ENDS for f in tagged) == 3  # of 8, 8 and 3.5 KiB
    assert b"".join(f.payload for f in tagged) == data
