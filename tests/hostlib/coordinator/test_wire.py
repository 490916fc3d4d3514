"""Bytes between nodes: what is written is read, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator import wire
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    CommGone,
    CommStatus,
    Gpu,
    NodeHello,
    Offer,
    OfferState,
    Outcome,
    Records,
)
from ringstep.hostlib.coordinator.policy import GpuFigures
from ringstep.hostlib.coordinator.wire import (
    FrameReader,
    Refused,
    Sealer,
    WireError,
    decode,
    encode,
    framed,
    session_key,
    split,
)
from ringstep.hostlib.shm_layout import Algo, Collective, Proto, Scope

ENTRIES = np.zeros((lay.COLLECTIVES, lay.SIZE_CLASSES), lay.ENTRY)
ENTRIES["n_channels"][4, 20] = 7
STATUS = CommStatus(
    where=(3, 9), comm_id=(1 << 64) - 1, n_ranks=4, n_nodes=2, scope=Scope.FENCED, ranks=(0, 1),
    whole=False, trusted=True, frozen=False, epoch=None,
    usable={Collective.ALL_REDUCE: frozenset({(Algo.RING, Proto.LL), (Algo.TREE, Proto.SIMPLE)})},
    table=None,
)  # fmt: skip
SLOTS = np.zeros(5, lay.RECORD)
SLOTS["coll_seq"] = range(5)

MESSAGES: list[Any] = [
    None,
    NodeHello(41, 1 << 63),
    STATUS,
    CommGone((0, 1)),
    Gpu(None),
    Gpu(GpuFigures(utilization=0.5, throttled=True)),
    Outcome((1, 2), 3, OfferState.REFUSED, ("ranks [1]: bad_entry",), 1.5),
    Abandon((63, 0xFFFFFFFF), lay.EPOCH_MAX),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back(message: Any) -> None:
    assert decode(encode(message)) == message


def test_arrays_come_back() -> None:
    offer = decode(encode(Offer((1, 2), 3, Scope.NODE, ENTRIES)))
    assert isinstance(offer, Offer)
    assert (offer.where, offer.epoch, offer.scope) == ((1, 2), 3, Scope.NODE)
    assert (offer.entries == ENTRIES).all()
    records = decode(encode(Records(SLOTS, {0: 7}, 3, 2)))
    assert isinstance(records, Records)
    assert (records.generations, records.lost, records.thin) == ({0: 7}, 3, 2)
    assert (records.slots == SLOTS).all()
    refused = decode(encode(Refused("no")))
    assert isinstance(refused, Refused)
    assert refused.reason == "no"


def test_many_records_go_in_several_frames() -> None:
    many = Records(np.zeros(20000, lay.RECORD), {}, 5, 1)
    parts = split(many)
    assert [len(p.slots) for p in parts] == [8192, 8192, 3616]
    assert [p.lost for p in parts] == [5, 0, 0]
    assert all(len(framed(encode(p))) < wire.FRAME_MAX for p in parts)
    assert len(split(Records(np.zeros(0, lay.RECORD), {}, 5))) == 1
    with pytest.raises(WireError, match="a frame has at most"):
        framed(bytes(wire.FRAME_MAX + 1))


def changed(message: Any, **fields: Any) -> bytes:
    raw = encode(message)
    length = int.from_bytes(raw[1:5], "big")
    body = json.loads(raw[5 : 5 + length]) | fields
    text = json.dumps({k: v for k, v in body.items() if v != "gone"}).encode()
    return raw[:1] + len(text).to_bytes(4, "big") + text + raw[5 + length :]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "shorter than a message's head"),
        (b"\x00\x00\x00\x00\xffxx", "longer inside than outside"),
        (b"\x63\x00\x00\x00\x02{}", "no message is of kind 99"),
        (b"\x00\x00\x00\x00\x02[]", "not an object"),
        (b"\x00\x00\x00\x00\x02{x", "kind 0"),
        (encode(None) + b"x", "1 bytes too many"),
        (changed(NodeHello(1, 2), epoch="1"), "epoch is not a number"),
        (changed(NodeHello(1, 2), epoch=True), "epoch is not a number"),
        (changed(NodeHello(1, 2), epoch=1 << 24), "epoch is not a number from 0 to 16777215"),
        (changed(NodeHello(1, 2), epoch=-1), "epoch is not a number"),
        (changed(NodeHello(1, 2), file="gone"), "file is missing"),
        (changed(CommGone((0, 1)), where=[64, 0]), "block is not a number from 0 to 63"),
        (changed(CommGone((0, 1)), where=[1]), "where is not a pair"),
        (changed(STATUS, ranks=list(range(65))), "ranks is not a list of at most 64"),
        (changed(STATUS, whole=1), "whole is not true or false"),
        (changed(STATUS, usable=[[9, []]]), "kind 3"),
        (changed(STATUS, usable=[[4, [[9, 9]]]]), "kind 3"),
        (changed(STATUS, usable=[4]), "kind 3"),
        (changed(STATUS, scope=2), "scope is not a number"),
        (encode(STATUS) + b"x" * 16, "a table of 16 bytes"),
        (encode(Offer((1, 2), 3, Scope.NODE, ENTRIES))[:-1], "a table of 5119 bytes"),
        (encode(Records(SLOTS, {}))[:-1], "are no telemetry slots"),
        (changed(Records(SLOTS, {}), thin=13), "thin is not a number"),
        (changed(Outcome((1, 2), 3, OfferState.GONE), state="fine"), "kind 7"),
        (changed(Outcome((1, 2), 3, OfferState.FROZEN), ms=None), "kind 7"),
        (changed(Gpu(GpuFigures(power_w=1.0)), power_w="x"), "kind 6"),
        (changed(Gpu(GpuFigures(power_w=1.0)), throttled=3), "throttled is not true or false"),
    ],
)
def test_what_is_no_message_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(WireError) as caught:
        decode(raw)
    assert said in str(caught.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        decode(raw)
    except WireError:
        return


@given(st.sampled_from(MESSAGES), st.data())
def test_any_changed_byte_is_read_or_refused(message: Any, data: st.DataObject) -> None:
    raw = bytearray(encode(message))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(raw))
    except WireError:
        return


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_frames_are_cut_however_they_come(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(framed(c) for c in contents)
    reader, found = FrameReader(100), []
    while stream:
        n = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:n])
        stream = stream[n:]
        while (content := reader.next()) is not None:
            found.append(content)
    assert found == contents


def test_long_frames_are_refused_before_they_are_read() -> None:
    reader = FrameReader(100)
    reader.feed((101).to_bytes(4, "big"))
    with pytest.raises(WireError, match="a frame of 101 bytes, at most 100"):
        reader.next()


def test_a_seal_holds_against_change_repetition_omission_and_reflection() -> None:
    key = session_key(7, b"s" * 32, b"c" * 32)

    def pair() -> tuple[Sealer, Sealer]:
        return Sealer(key, b"to stub"), Sealer(key, b"to stub")

    writer, reader = pair()
    frames = [writer.seal(b"one"), writer.seal(b"two")]
    assert [reader.open(f) for f in frames] == [b"one", b"two"]
    cases = {
        "changed": [bytes([frames[0][0] ^ 1]) + frames[0][1:]],
        "repeated": [frames[0], frames[0]],
        "left out": [frames[1]],
        "short": [b"x"],
        "empty": [b""],
    }
    for sequence in cases.values():
        _, fresh = pair()
        for frame in sequence[:-1]:
            fresh.open(frame)
        with pytest.raises(WireError, match="not of this session"):
            fresh.open(sequence[-1])
    other_way = Sealer(key, b"to skeleton")
    with pytest.raises(WireError, match="not of this session"):
        other_way.open(frames[0])
    other_job = Sealer(session_key(8, b"s" * 32, b"c" * 32), b"to stub")
    with pytest.raises(WireError, match="not of this session"):
        other_job.open(frames[0])
