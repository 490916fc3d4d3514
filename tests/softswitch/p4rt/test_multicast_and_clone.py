"""PacketReplicationEngineEntry: multicast groups and clone sessions, written, read and in force."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from finsy.proto import p4r
from p4rt_rig import COPIES, Client, Rig, details, exact

from ringstep.softswitch.p4rt.errors import Code

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
FRAME = bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"payload"


@pytest.fixture
def client(rig: Rig) -> Client:
    """The primary of a server that runs the copies program."""
    one = rig.primary(election_id=1)
    one.push(program="copies")
    return one


def at(port: int, instance: int = 0) -> p4r.Replica:
    return p4r.Replica(port=port.to_bytes(1 + (port > 255), "big"), instance=instance)


def group(number: int, *replicas: p4r.Replica, metadata: bytes = b"") -> p4r.Entity:
    return p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            multicast_group_entry=p4r.MulticastGroupEntry(
                multicast_group_id=number, replicas=replicas, metadata=metadata
            )
        )
    )


def session(number: int, *replicas: p4r.Replica, **fields: int) -> p4r.Entity:
    return p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            clone_session_entry=p4r.CloneSessionEntry(
                session_id=number,
                replicas=replicas,
                **fields,  # type: ignore[arg-type]
            )
        )
    )


def todo(code: int, action: str, *args: int) -> p4r.Entity:
    return p4r.Entity(
        table_entry=p4r.TableEntry(
            table_id=COPIES["todo"], match=[exact(1, code)], action=COPIES.does(action, *args)
        )
    )


def left(rig: Rig) -> list[tuple[int, bytes]]:
    """What left the switch since the last call."""
    frames = []
    while not rig.sent.empty():
        frames.append(rig.sent.get())
    return frames


def refused(client: Client, kind: int, one: p4r.Entity) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as caught:
        client.write(kind, one)
    [error] = details(caught.value)
    return Code(error.canonical_code), error.message


# -- in force


def test_a_group_is_in_force_from_insert_to_delete(client: Client, rig: Rig) -> None:
    client.insert(todo(1, "multicast", 9))
    rig.receive(3, FRAME)
    assert left(rig) == []
    client.insert(group(9, at(5, 1), at(6, 2), at(5, 7)))
    rig.receive(3, FRAME)
    # The trail in front of a copy is its instance type and its egress_rid.
    assert [(port, frame[:3]) for port, frame in left(rig)] == [
        (5, b"\x05\x00\x01"),
        (6, b"\x05\x00\x02"),
        (5, b"\x05\x00\x07"),
    ]
    client.modify(group(9, at(300)))
    rig.receive(3, FRAME)
    assert [port for port, _ in left(rig)] == [300]
    client.delete(group(9))
    rig.receive(3, FRAME)
    assert left(rig) == []


def test_a_session_is_in_force_from_insert_to_delete(client: Client, rig: Rig) -> None:
    client.insert(todo(1, "clone_packet", 2, 100))
    client.insert(session(100, at(8, 4)))
    rig.receive(3, FRAME)
    assert [(port, frame[:3]) for port, frame in left(rig)] == [
        (8, b"\x01\x00\x04"),
        (2, b"\x00\x00\x00"),
    ]
    client.modify(session(100, at(9), packet_length_bytes=5))
    rig.receive(3, FRAME)
    assert [(port, len(frame)) for port, frame in left(rig)] == [(9, 5), (2, 18)]
    client.delete(session(100))
    rig.receive(3, FRAME)
    assert [port for port, _ in left(rig)] == [2]


def test_clones_of_the_end_of_egress(client: Client, rig: Rig) -> None:
    client.insert(todo(1, "clone_at_the_end", 2, 7), session(7, at(8, 4)))
    rig.receive(3, FRAME)
    # The clone passes egress again, so its trail is written over with its own kind.
    assert [(port, frame[:3]) for port, frame in left(rig)] == [
        (2, b"\x00\x00\x00"),
        (8, b"\x02\x00\x04"),
    ]


def test_a_new_pipeline_has_no_groups(client: Client, rig: Rig) -> None:
    client.insert(group(9, at(5)), session(9, at(5)))
    client.push(program="copies")
    assert client.read(group(0), session(0)) == []
    client.insert(todo(1, "multicast", 9))
    rig.receive(3, FRAME)
    assert left(rig) == []


# -- reading


def test_groups_and_sessions_read_back_as_written(client: Client) -> None:
    old = p4r.Replica(egress_port=4, instance=3)
    padded = p4r.Replica(port=b"\0\0\7", instance=1)
    client.insert(
        group(2, at(5, 1), old, metadata=b"mine"), group(1, padded), session(3, at(511 - 1), old)
    )
    assert client.read(group(0)) == [
        group(1, at(7, 1)),
        group(2, at(5, 1), old, metadata=b"mine"),
    ]
    assert client.read(group(2), session(0)) == [
        group(2, at(5, 1), old, metadata=b"mine"),
        session(3, at(510), old),
    ]
    assert client.read(group(3), session(1)) == []


def test_only_the_id_of_a_read_counts(client: Client) -> None:
    client.insert(group(2, at(5)))
    assert client.read(group(2, at(77), metadata=b"other")) == [group(2, at(5))]


# -- refusals


@pytest.mark.parametrize(
    ("kind", "one", "code", "words"),
    [
        (INSERT, group(0, at(1)), "INVALID_ARGUMENT", "multicast group 0: the id is not in 1.."),
        (DELETE, group(0), "INVALID_ARGUMENT", "multicast group 0"),
        (INSERT, group(65536, at(1)), "INVALID_ARGUMENT", "not in 1..65535"),
        (INSERT, session(0, at(1)), "INVALID_ARGUMENT", "clone session 0"),
        (INSERT, session(32768, at(1)), "INVALID_ARGUMENT", "not in 1..32767"),
        (INSERT, group(1, at(1, 2), at(1, 2)), "INVALID_ARGUMENT", "replica 1: port 1 with inst"),
        (
            INSERT,
            group(1, at(1, 2), p4r.Replica(egress_port=1, instance=2)),
            "INVALID_ARGUMENT",
            "there already",
        ),
        (INSERT, group(1, at(1, 65536)), "INVALID_ARGUMENT", "instance 65536 is above 65535"),
        (INSERT, group(1, p4r.Replica()), "INVALID_ARGUMENT", "replica 0: the port is missing"),
        (INSERT, group(1, at(511)), "OUT_OF_RANGE", "port 511 is not in 0..510"),
        (INSERT, group(1, at(512)), "OUT_OF_RANGE", "the field is bit<9>"),
        (INSERT, group(1, p4r.Replica(egress_port=9999)), "OUT_OF_RANGE", "port 9999"),
        (INSERT, group(1, p4r.Replica(port=b"")), "OUT_OF_RANGE", "empty bytestring"),
        (
            INSERT,
            group(1, p4r.Replica(port=b"\1", backup_replicas=[p4r.BackupReplica(port=b"\2")])),
            "UNIMPLEMENTED",
            "does not watch ports",
        ),
        (INSERT, session(1, at(1), class_of_service=2), "UNIMPLEMENTED", "class_of_service 2"),
        (INSERT, session(1, at(1), packet_length_bytes=-1), "INVALID_ARGUMENT", "-1 is negative"),
        (MODIFY, group(5, at(1)), "NOT_FOUND", "there is no multicast group 5"),
        (DELETE, session(5), "NOT_FOUND", "there is no clone session 5"),
        (
            INSERT,
            p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry()),
            "INVALID_ARGUMENT",
            "neither multicast_group_entry nor clone_session_entry",
        ),
    ],
)
def test_refusals(client: Client, kind: int, one: p4r.Entity, code: str, words: str) -> None:
    found, message = refused(client, kind, one)
    assert (found.name, words in message) == (code, True), message
    assert client.read(group(0), session(0)) == []


@pytest.mark.parametrize("make", [group, session])
def test_a_second_insert_already_exists(client: Client, make: Callable[..., p4r.Entity]) -> None:
    client.insert(make(4, at(1)))
    assert refused(client, INSERT, make(4, at(2)))[0] is Code.ALREADY_EXISTS
    assert client.read(make(0)) == [make(4, at(1))]


def test_reading_neither_kind_is_invalid(client: Client) -> None:
    neither = p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry())
    with pytest.raises(grpc.RpcError) as caught:
        client.read(neither)
    assert [one.canonical_code for one in details(caught.value)] == [Code.INVALID_ARGUMENT]


def test_a_batch_that_fails_leaves_groups_and_sessions_as_they_were(
    client: Client, rig: Rig
) -> None:
    client.insert(group(1, at(5)), group(2, at(6)), session(1, at(7)), todo(1, "multicast", 1))
    updates = [
        p4r.Update(type=MODIFY, entity=group(1, at(8))),
        p4r.Update(type=DELETE, entity=group(2)),
        p4r.Update(type=DELETE, entity=session(1)),
        p4r.Update(type=INSERT, entity=group(3, at(9))),
        p4r.Update(type=INSERT, entity=group(3, at(9))),
    ]
    with pytest.raises(grpc.RpcError):
        client.write_updates(updates, atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    assert client.read(group(0)) == [group(1, at(5)), group(2, at(6))]
    assert client.read(session(0)) == [session(1, at(7))]
    rig.receive(3, FRAME)
    assert [port for port, _ in left(rig)] == [5]
