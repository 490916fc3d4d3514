"""Packet-out and packet-in over the stream channel."""

from __future__ import annotations

import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st
from p4rt_rig import (
    NAMES,
    TIMEOUT_S,
    Client,
    Rig,
    Stream,
    entry,
    ethernet,
    exact,
    load_p4info,
    short,
)

from ringstep.softswitch.p4rt import packet_io
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError
from ringstep.softswitch.p4rt.schema import Schema, build_schema

SCHEMA = build_schema(load_p4info())


def packet_out(payload: bytes, *metadata: tuple[int, int | bytes]) -> p4r.PacketOut:
    return p4r.PacketOut(
        payload=payload,
        metadata=[
            p4r.PacketMetadata(
                metadata_id=number, value=value if isinstance(value, bytes) else short(value)
            )
            for number, value in metadata
        ],
    )


@given(st.integers(0, 511), st.integers(0, 127), st.binary(max_size=40))
def test_header_is_packed_in_order(port: int, op: int, payload: bytes) -> None:
    frame = packet_io.encode_packet_out(SCHEMA, packet_out(payload, (2, op), (1, port)))
    assert frame == (port << 7 | op).to_bytes(2, "big") + payload
    found = packet_io.decode_packet_in(SCHEMA, frame)
    assert found.payload == payload
    assert [(one.metadata_id, one.value) for one in found.metadata] == [
        (1, short(port)),
        (2, short(op)),
    ]


@pytest.mark.parametrize(
    ("metadata", "code", "word"),
    [
        ([(1, 4)], Code.INVALID_ARGUMENT, "missing: op"),
        ([(1, 4), (2, 0), (3, 0)], Code.INVALID_ARGUMENT, "id 3"),
        ([(1, 4), (2, 0), (2, 0)], Code.INVALID_ARGUMENT, "twice"),
        ([(1, 512), (2, 0)], Code.OUT_OF_RANGE, "egress_port"),
        ([(1, 4), (2, b"")], Code.OUT_OF_RANGE, "op"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(
    metadata: list[tuple[int, int | bytes]], code: Code, word: str
) -> None:
    with pytest.raises(P4RuntimeError, match=word) as caught:
        packet_io.encode_packet_out(SCHEMA, packet_out(b"", *metadata))
    assert caught.value.code is code


def test_frame_shorter_than_the_header_is_refused() -> None:
    with pytest.raises(P4RuntimeError, match="1 bytes"):
        packet_io.decode_packet_in(SCHEMA, b"\x00")


def test_program_without_controller_headers_passes_payloads() -> None:
    schema = Schema()
    assert packet_io.encode_packet_out(schema, packet_out(b"abc")) == b"abc"
    assert packet_io.decode_packet_in(schema, b"abc") == p4r.PacketIn(payload=b"abc")


# ------------------------------------------------------------------------------- over a channel


def send(stream: Stream, packet: p4r.PacketOut) -> None:
    stream.send(p4r.StreamMessageRequest(packet=packet))


def test_packet_out_of_the_primary_reaches_the_switch(client: Client, rig: Rig) -> None:
    frame = ethernet(2, b"frame")
    send(client.streams[0], packet_out(frame, (1, 4), (2, 0)))
    assert rig.sent.get(timeout=TIMEOUT_S) == (4, frame)


def test_refused_packet_out_is_reported_and_returned(client: Client) -> None:
    bad = packet_out(b"frame", (7, 4))
    send(client.streams[0], bad)
    reply = client.streams[0].receive()
    assert reply.error.canonical_code == Code.INVALID_ARGUMENT
    assert "id 7" in reply.error.message
    assert reply.error.packet_out.packet_out == bad


def test_packet_out_of_a_backup_is_dropped_and_reported(client: Client, rig: Rig) -> None:
    backup = rig.client().stream()
    send(backup, packet_out(ethernet(2, b"early"), (1, 4), (2, 0)))
    assert backup.receive().error.canonical_code == Code.PERMISSION_DENIED
    backup.arbitrate(0)
    backup.advisory()
    send(backup, packet_out(ethernet(2, b"backup"), (1, 4), (2, 0)))
    assert backup.receive().error.canonical_code == Code.PERMISSION_DENIED
    send(client.streams[0], packet_out(ethernet(2, b"primary"), (1, 4), (2, 0)))
    assert rig.sent.get(timeout=TIMEOUT_S) == (4, ethernet(2, b"primary"))
    assert rig.sent.empty()


def test_packet_out_without_a_pipeline_is_reported(rig: Rig) -> None:
    stream = rig.primary(1).streams[0]
    send(stream, packet_out(b"frame"))
    assert stream.receive().error.canonical_code == Code.FAILED_PRECONDITION


def test_packet_in_goes_to_the_primary_only(client: Client, rig: Rig) -> None:
    backup = rig.client().stream()
    backup.arbitrate(0)
    backup.advisory()
    rig.server.packet_in(b"\x02\x83payload")
    packet = client.streams[0].receive().packet
    assert packet.payload == b"payload"
    assert [(one.metadata_id, one.value) for one in packet.metadata] == [(1, b"\x05"), (2, b"\x03")]
    backup.arbitrate(0)
    assert backup.advisory() == (Code.ALREADY_EXISTS, 1)


def test_frame_sent_to_the_cpu_by_the_program_arrives_as_packet_in(
    client: Client, rig: Rig
) -> None:
    client.insert(entry("l2", [exact(1, 2)], NAMES.does("send_to_cpu")))
    frame = ethernet(2, b"to the controller")
    rig.receive(300, frame)
    packet = client.streams[0].receive().packet
    assert packet.payload == frame
    assert [(one.metadata_id, one.value) for one in packet.metadata] == [
        (1, short(300)),
        (2, b"\x03"),
    ]
    assert rig.sent.empty()


def test_packet_in_without_a_primary_is_dropped_and_counted(client: Client, rig: Rig) -> None:
    watcher = rig.client().stream()
    watcher.arbitrate(None)
    watcher.advisory()
    client.streams[0].close()
    assert watcher.advisory() == (Code.NOT_FOUND, 1)
    rig.server.packet_in(b"\x02\x83payload")
    assert rig.server.packet_ins_dropped == 1


def test_packet_in_that_does_not_fit_is_dropped_and_counted(client: Client, rig: Rig) -> None:
    rig.server.packet_in(b"\x02")
    assert rig.server.packet_ins_dropped == 1


def test_client_that_does_not_read_holds_up_nothing(client: Client, rig: Rig) -> None:
    """The client reads nothing while more arrives than its window and outbox can hold."""
    for _ in range(4000):
        rig.server.packet_in(b"\x02\x83" + bytes(1500))
    assert rig.server.packet_ins_dropped > 0
    client.insert(entry("l2", [exact(1, 2)], NAMES.does("forward", 6)))
    rig.receive(1, ethernet(2))
    assert rig.sent.get_nowait() == (6, ethernet(2))


def test_empty_stream_message_is_reported(client: Client) -> None:
    client.streams[0].send(p4r.StreamMessageRequest())
    reply = client.streams[0].receive()
    assert reply.error.canonical_code == Code.INVALID_ARGUMENT
    assert reply.error.WhichOneof("details") == "other"
