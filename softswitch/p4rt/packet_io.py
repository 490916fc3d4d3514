"""Packet-in and packet-out metadata: P4Runtime messages to and from the controller headers.

Specification section "Packet I/O". The header's fields are packed bit by bit in P4Info order, most
significant bit first; the header stands in front of the packet on the CPU port.
"""

from __future__ import annotations

from collections.abc import Iterable

from finsy.proto import p4r

from ringstep.softswitch.p4rt import bytestrings
from ringstep.softswitch.p4rt.errors import invalid
from ringstep.softswitch.p4rt.schema import PacketHeader, Schema

PACKET_IN = "packet_in"
PACKET_OUT = "packet_out"


def encode_packet_out(schema: Schema, packet: p4r.PacketOut) -> bytes:
    """Return the frame for the CPU port: the packet_out header, then the payload.

    Raises INVALID_ARGUMENT (fields missing, unknown or repeated) or OUT_OF_RANGE (value too wide).
    A program without a packet_out header takes the payload as it is and no metadata.
    """
    header = schema.packet_headers.get(PACKET_OUT, PacketHeader(PACKET_OUT, ()))
    return _pack(header, packet.metadata) + packet.payload


def decode_packet_in(schema: Schema, frame: bytes) -> p4r.PacketIn:
    """Return the message for a frame that left at the CPU port.

    Raises INVALID_ARGUMENT where the frame is shorter than the program's packet_in header.
    """
    header = schema.packet_headers.get(PACKET_IN, PacketHeader(PACKET_IN, ()))
    bits = sum(field.width for field in header.fields)
    size = bits // 8
    if len(frame) < size:
        raise invalid(f"packet-in: {len(frame)} bytes are less than the {size} of its header")
    packet = p4r.PacketIn(payload=frame[size:])
    value = int.from_bytes(frame[:size], "big")
    for field in header.fields:
        bits -= field.width
        packet.metadata.add(
            metadata_id=field.id,
            value=bytestrings.encode(value >> bits & ((1 << field.width) - 1)),
        )
    return packet


def _pack(header: PacketHeader, metadata: Iterable[p4r.PacketMetadata]) -> bytes:
    by_id = {field.id: field for field in header.fields}
    given: dict[int, int] = {}
    for one in metadata:
        field = by_id.get(one.metadata_id)
        if field is None:
            known = ", ".join(f"{f.name} ({f.id})" for f in header.fields) or "none"
            raise invalid(f"{header.name}: no metadata has id {one.metadata_id}; it has {known}")
        if field.id in given:
            raise invalid(f"{header.name}: metadata {field.name} is given twice")
        given[field.id] = bytestrings.decode(
            one.value, field.width, f"{header.name}, metadata {field.name}"
        )
    missing = [field.name for field in header.fields if field.id not in given]
    if missing:
        raise invalid(f"{header.name}: metadata missing: {', '.join(missing)}")
    packed = 0
    bits = 0
    for field in header.fields:
        packed = packed << field.width | given[field.id]
        bits += field.width
    return packed.to_bytes(bits // 8, "big")
