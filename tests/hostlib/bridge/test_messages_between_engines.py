"""What one engine sends, the other gets: whole, in order, with its step; both ways at once."""

from __future__ import annotations

import random
import threading

import pytest

from ringstep.hostlib.tagging import PortPerStep, QpPool
from ringstep.protocol.tag import TagLayout

from .conftest import Connect, StartBridge
from .stand_in import UNTAGGED, Engine

SIZES = (1, 2, 3, 4, 5, 1023, 4095, 4096, 4097, 8192, 40_001, 70_000)


def messages(seed: int, count: int) -> list[tuple[bytes, int]]:
    draw = random.Random(seed)
    return [
        (draw.randbytes(draw.choice(SIZES)), UNTAGGED if draw.random() < 0.2 else index)
        for index in range(count)
    ]


@pytest.mark.parametrize("tagger", [PortPerStep(), QpPool.of(4)], ids=["port", "pool"])
def test_both_ways_at_once(start: StartBridge, connect: Connect, tagger: PortPerStep) -> None:
    # The ring is smaller than some messages, so they go in pieces.
    a, b = (start(tagger=tagger, ring_log2=16) for _ in range(2))
    left, right = connect(a, b)
    there, back = messages(1, 60), messages(2, 60)
    senders = [
        threading.Thread(target=lambda e=e, m=m: [e.send(*one) for one in m])
        for e, m in ((left, there), (right, back))
    ]
    for sender in senders:
        sender.start()
    got_right = threading.Thread(target=lambda: results.append([right.receive() for _ in there]))
    results: list[list[tuple[bytes, int]]] = []
    got_right.start()
    assert [left.receive() for _ in back] == back
    got_right.join()
    assert results == [there]
    for sender in senders:
        sender.join()
    counts = a.bridge.stats()
    tagged = sum(step != UNTAGGED for _, step in there)
    assert (counts["messages_sent"], counts["untagged_sent"]) == (tagged, 60 - tagged)


def test_ranks_of_one_host_share_a_bridge(start: StartBridge, connect: Connect) -> None:
    one = start()
    left, right = connect(one, one)
    left.send(b"x" * 9000, 5)
    assert right.receive() == (b"x" * 9000, 5)
    right.send(b"y", UNTAGGED)
    assert left.receive() == (b"y", UNTAGGED)


def test_steps_come_whole_whatever_the_layout_keeps(start: StartBridge, connect: Connect) -> None:
    a, b = (start(tagger=PortPerStep(TagLayout(10, 4)), job_tag=1023) for _ in range(2))
    left, right = connect(a, b)
    steps = [0, 15, 16, 65_536, 0xFFFFFFFE]
    for step in steps:
        left.send(b"abc", step)
    assert [right.receive()[1] for _ in steps] == steps


def test_several_connections_keep_apart(start: StartBridge, connect: Connect) -> None:
    a, b = start(), start()
    pairs = [connect(a, b, channel) for channel in range(6)]
    for index, (left, _) in enumerate(pairs):
        left.send(bytes([index]) * 5000, index)
    for index, (_, right) in reversed(list(enumerate(pairs))):
        assert right.receive() == (bytes([index]) * 5000, index)


def test_messages_sent_before_the_peer_is_connected_wait(
    start: StartBridge, engines: list[Engine]
) -> None:
    a, b = start(), start()
    left, right = Engine(a.path), Engine(b.path)
    engines += [left, right]
    ends = left.open(), right.open()
    assert left.connect(ends[1]) == 0
    left.send(b"early" * 2000, 1)
    assert right.connect(ends[0]) == 0
    assert right.receive() == (b"early" * 2000, 1)


def test_the_largest_message(start: StartBridge, connect: Connect) -> None:
    a, b = start(), start()
    left, right = connect(a, b)
    data = random.Random(3).randbytes(1 << 20) * 8
    sender = threading.Thread(target=left.send, args=(data, 9))
    sender.start()
    got, step = right.receive()
    sender.join()
    assert (got == data, step) == (True, 9)
