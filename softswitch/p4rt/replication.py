"""Multicast groups and clone sessions as messages (section "PacketReplicationEngineEntry").

Checks and translation only; what is installed is kept as it was written, so that it reads back.
"""

from __future__ import annotations

from collections.abc import Iterable

from finsy.proto import p4r

from ringstep.protocol.limits import DROP_PORT
from ringstep.softswitch.p4rt import bytestrings
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError, invalid, unimplemented
from ringstep.softswitch.replication import MAX_GROUP, MAX_SESSION, CloneSession, Replica

MAX_INSTANCE = 0xFFFF
"""standard_metadata.egress_rid has 16 bits."""

PORT_BITS = 9


def group_id(message: p4r.MulticastGroupEntry) -> int:
    """The id of a group to write. Raises INVALID_ARGUMENT where it cannot be one."""
    number = message.multicast_group_id
    if not 1 <= number <= MAX_GROUP:
        raise invalid(f"multicast group {number}: the id is not in 1..{MAX_GROUP}")
    return number


def session_id(message: p4r.CloneSessionEntry) -> int:
    """The id of a session to write. Raises INVALID_ARGUMENT where it cannot be one."""
    number = message.session_id
    if not 1 <= number <= MAX_SESSION:
        raise invalid(f"clone session {number}: the id is not in 1..{MAX_SESSION}")
    return number


def decode_group(message: p4r.MulticastGroupEntry) -> tuple[Replica, ...]:
    """The copies of a multicast group. Raises INVALID_ARGUMENT, OUT_OF_RANGE, UNIMPLEMENTED."""
    return _replicas(f"multicast group {message.multicast_group_id}", message.replicas)


def decode_session(message: p4r.CloneSessionEntry) -> CloneSession:
    """Where the clones of a session go. Raises INVALID_ARGUMENT, OUT_OF_RANGE, UNIMPLEMENTED."""
    where = f"clone session {message.session_id}"
    if message.class_of_service:
        raise unimplemented(
            f"{where}: class_of_service {message.class_of_service}; this switch has one queue per "
            "port (class 0)"
        )
    if message.packet_length_bytes < 0:
        raise invalid(f"{where}: packet_length_bytes {message.packet_length_bytes} is negative")
    return CloneSession(_replicas(where, message.replicas), message.packet_length_bytes)


def canonical_group(message: p4r.MulticastGroupEntry) -> p4r.MulticastGroupEntry:
    """What a read returns of a group."""
    return p4r.MulticastGroupEntry(
        multicast_group_id=message.multicast_group_id,
        replicas=[_canonical(one) for one in message.replicas],
        metadata=message.metadata,
    )


def canonical_session(message: p4r.CloneSessionEntry) -> p4r.CloneSessionEntry:
    """What a read returns of a session."""
    return p4r.CloneSessionEntry(
        session_id=message.session_id,
        replicas=[_canonical(one) for one in message.replicas],
        class_of_service=message.class_of_service,
        packet_length_bytes=message.packet_length_bytes,
    )


def _replicas(where: str, replicas: Iterable[p4r.Replica]) -> tuple[Replica, ...]:
    found: dict[Replica, None] = {}
    for position, one in enumerate(replicas):
        at = f"{where}, replica {position}"
        replica = Replica(_port(at, one), one.instance)
        if one.instance > MAX_INSTANCE:
            raise invalid(f"{at}: instance {one.instance} is above {MAX_INSTANCE}")
        if one.backup_replicas:
            raise unimplemented(f"{at}: backup_replicas; this switch does not watch ports")
        if replica in found:
            raise invalid(
                f"{at}: port {replica.port} with instance {replica.instance} is there already"
            )
        found[replica] = None
    return tuple(found)


def _port(where: str, one: p4r.Replica) -> int:
    kind = one.WhichOneof("port_kind")
    if kind is None:
        raise invalid(f"{where}: the port is missing")
    if kind == "port":
        port = bytestrings.decode(one.port, PORT_BITS, f"{where}, port")
    else:
        port = one.egress_port
    if port >= DROP_PORT:
        raise P4RuntimeError(
            Code.OUT_OF_RANGE, f"{where}: port {port} is not in 0..{DROP_PORT - 1}"
        )
    return port


def _canonical(one: p4r.Replica) -> p4r.Replica:
    same = p4r.Replica()
    same.CopyFrom(one)
    if one.WhichOneof("port_kind") == "port":
        same.port = bytestrings.encode(int.from_bytes(one.port, "big"))
    return same
