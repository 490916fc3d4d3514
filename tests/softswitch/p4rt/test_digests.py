"""DigestEntry, DigestList, DigestListAck: what is sent, when, and what is held back."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4d, p4r, p4t
from google.protobuf import text_format
from p4rt_rig import COPIES, Client, Rig, details, exact, load_json, load_p4info

from ringstep.softswitch.engine import compile_pipeline
from ringstep.softswitch.p4rt.digests import MAX_LIST, DigestBook, Layout
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError
from ringstep.softswitch.p4rt.pipeline import check_digests
from ringstep.softswitch.p4rt.schema import build_schema

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
DIGEST = COPIES["learned_t"]
AT_ONCE = p4r.DigestEntry.Config()


def ask(config: p4r.DigestEntry.Config | None = None, digest: int = DIGEST) -> p4r.Entity:
    return p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest, config=config))


@pytest.fixture
def client(rig: Rig) -> Client:
    """The primary of a server that runs the copies program, and learns codes below 100."""
    one = rig.primary(election_id=1)
    one.push(program="copies")
    for code in range(3):
        one.insert(
            p4r.Entity(
                table_entry=p4r.TableEntry(
                    table_id=COPIES["todo"],
                    match=[exact(1, code)],
                    action=COPIES.does("learn", 2, code == 1),
                )
            )
        )
    return one


def learn(rig: Rig, code: int, port: int = 3, length: int = 8) -> None:
    rig.receive(port, bytes([code]) + bytes(length - 1))


def learned(code: int, port: int = 3, kind: int = 7, last: bool = False) -> p4d.P4Data:
    wide = 0x010203040506
    return p4d.P4Data(
        struct=p4d.P4StructLike(
            members=[
                p4d.P4Data(bitstring=bytes([code])),
                p4d.P4Data(bitstring=port.to_bytes(1 + (port > 255), "big")),
                p4d.P4Data(bitstring=bytes([kind])),
                p4d.P4Data(bitstring=bytes([last])),
                p4d.P4Data(bitstring=wide.to_bytes(6, "big")),
            ]
        )
    )


def received(client: Client) -> p4r.DigestList:
    message = client.streams[0].receive()
    assert message.WhichOneof("update") == "digest", message
    return message.digest


def refused(client: Client, kind: int, one: p4r.Entity) -> Code:
    with pytest.raises(grpc.RpcError) as caught:
        client.write(kind, one)
    [error] = details(caught.value)
    return Code(error.canonical_code)


# -- over the wire


def test_a_digest_arrives_with_the_values_of_its_packet(client: Client, rig: Rig) -> None:
    client.insert(ask(AT_ONCE))
    learn(rig, 1, port=300, length=100)
    got = received(client)
    assert got.digest_id == DIGEST
    assert list(got.data) == [learned(1, port=300, kind=200, last=True)]
    assert got.timestamp > 1_600_000_000 * 10**9
    learn(rig, 0)
    again = received(client)
    # Zero is one zero byte.
    assert list(again.data) == [learned(0)]
    assert again.list_id != got.list_id


def test_nothing_is_sent_before_it_is_asked_for_or_after(client: Client, rig: Rig) -> None:
    learn(rig, 1)
    client.insert(ask(AT_ONCE))
    learn(rig, 2)
    assert list(received(client).data) == [learned(2)]
    client.delete(ask())
    learn(rig, 1)
    client.insert(ask(AT_ONCE))
    learn(rig, 0)
    assert list(received(client).data) == [learned(0)]


def test_messages_are_bundled_and_doubles_left_out(client: Client, rig: Rig) -> None:
    client.insert(ask(p4r.DigestEntry.Config(max_timeout_ns=10**15, max_list_size=3)))
    for code in (1, 2, 1, 2, 0):
        learn(rig, code)
    assert list(received(client).data) == [learned(1, last=True), learned(2), learned(0)]


def test_a_list_that_is_not_full_leaves_when_its_time_is_over(client: Client, rig: Rig) -> None:
    client.insert(ask(p4r.DigestEntry.Config(max_timeout_ns=10**15, max_list_size=3)))
    learn(rig, 1)
    client.modify(ask(p4r.DigestEntry.Config(max_timeout_ns=1_000_000, max_list_size=3)))
    assert list(received(client).data) == [learned(1, last=True)]


def test_what_is_not_acknowledged_is_not_sent_again(client: Client, rig: Rig) -> None:
    client.insert(ask(p4r.DigestEntry.Config(ack_timeout_ns=10**15)))
    learn(rig, 1)
    first = received(client)
    learn(rig, 1)
    learn(rig, 2)
    assert list(received(client).data) == [learned(2)]
    ack = p4r.DigestListAck(digest_id=DIGEST, list_id=first.list_id)
    client.streams[0].send(p4r.StreamMessageRequest(digest_ack=ack))
    # The stream is read in order: an answer to what follows says that the ack was taken.
    client.streams[0].send(p4r.StreamMessageRequest())
    assert client.streams[0].receive().WhichOneof("update") == "error"
    learn(rig, 1)
    assert list(received(client).data) == [learned(1, last=True)]


def test_only_the_primary_gets_digests_and_may_acknowledge(client: Client, rig: Rig) -> None:
    backup = rig.client()
    stream = backup.stream()
    stream.arbitrate(0)
    assert stream.advisory() == (Code.ALREADY_EXISTS, 1)
    client.insert(ask(AT_ONCE))
    learn(rig, 1)
    received(client)
    ack = p4r.DigestListAck(digest_id=DIGEST, list_id=1)
    stream.send(p4r.StreamMessageRequest(digest_ack=ack))
    reply = stream.receive()
    assert reply.error.canonical_code == Code.PERMISSION_DENIED
    assert reply.error.digest_list_ack.digest_list_ack == ack


def test_an_ack_of_an_unknown_digest_is_reported(client: Client) -> None:
    ack = p4r.DigestListAck(digest_id=1, list_id=1)
    client.streams[0].send(p4r.StreamMessageRequest(digest_ack=ack))
    reply = client.streams[0].receive()
    assert reply.error.canonical_code == Code.INVALID_ARGUMENT
    assert reply.error.digest_list_ack.digest_list_ack == ack


def test_a_client_that_does_not_read_holds_up_nothing(client: Client, rig: Rig) -> None:
    client.insert(ask(AT_ONCE))
    for turn in range(5000):
        rig.server.digest("learned_t", (turn & 0xFF, turn >> 8, 7, 0, 0))
    assert rig.server.digest_lists_dropped > 0
    learn(rig, 1)


def test_entries_read_back(client: Client) -> None:
    config = p4r.DigestEntry.Config(max_timeout_ns=1, max_list_size=2, ack_timeout_ns=3)
    assert client.read(ask(digest=0)) == []
    client.insert(ask(config))
    assert client.read(ask()) == [ask(config)]
    assert client.read(ask(digest=0)) == [ask(config)]
    client.modify(ask(AT_ONCE))
    assert client.read(ask()) == [ask(AT_ONCE)]
    client.delete(ask())
    assert client.read(ask()) == []


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (MODIFY, ask(AT_ONCE), "NOT_FOUND"),
        (DELETE, ask(), "NOT_FOUND"),
        (INSERT, ask(AT_ONCE, digest=0), "INVALID_ARGUMENT"),
        (INSERT, ask(AT_ONCE, digest=7), "NOT_FOUND"),
        (INSERT, ask(p4r.DigestEntry.Config(max_list_size=-1)), "INVALID_ARGUMENT"),
        (INSERT, ask(p4r.DigestEntry.Config(ack_timeout_ns=-1)), "INVALID_ARGUMENT"),
    ],
)
def test_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    assert refused(client, kind, one).name == code
    assert client.read(ask(digest=0)) == []


def test_a_second_insert_already_exists(client: Client) -> None:
    client.insert(ask(AT_ONCE))
    assert refused(client, INSERT, ask(AT_ONCE)) is Code.ALREADY_EXISTS


def test_a_batch_that_fails_leaves_digests_as_they_were(client: Client) -> None:
    updates = [p4r.Update(type=INSERT, entity=ask(AT_ONCE))] * 2
    with pytest.raises(grpc.RpcError):
        client.write_updates(updates, atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    assert client.read(ask(digest=0)) == []


def test_a_new_pipeline_is_asked_anew(client: Client, rig: Rig) -> None:
    client.insert(ask(AT_ONCE))
    client.push(program="copies")
    assert client.read(ask(digest=0)) == []


def test_reading_an_unknown_digest_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(ask(digest=7))
    assert [one.canonical_code for one in details(caught.value)] == [Code.NOT_FOUND]


def test_the_server_stops_while_a_list_waits(client: Client, rig: Rig) -> None:
    client.insert(ask(p4r.DigestEntry.Config(max_timeout_ns=10**15, max_list_size=3)))
    learn(rig, 1)
    rig.server.stop(grace_s=0)
    # Other servers of this process have threads of the same name.
    sender = rig.server._service.digest_sender
    sender.join(20)
    assert not sender.is_alive()


# -- lists, with a clock in hand


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def book(clock: Clock, **config: int) -> DigestBook:
    made = DigestBook(clock)
    made.configure(7, p4r.DigestEntry.Config(**config))
    return made


def test_the_first_message_starts_the_time() -> None:
    clock = Clock()
    lists = book(clock, max_timeout_ns=100)
    assert lists.next_due_ns() is None
    assert lists.take(7, (1,)) == []
    clock.now += 60
    assert lists.take(7, (2,)) == []
    assert lists.next_due_ns() == 40
    clock.now += 39
    assert lists.due() == []
    clock.now += 1
    assert lists.due() == [(7, 1, [(1,), (2,)])]
    assert lists.due() == []
    assert lists.next_due_ns() is None


def test_a_message_after_the_time_sends_the_list() -> None:
    clock = Clock()
    lists = book(clock, max_timeout_ns=100)
    lists.take(7, (1,))
    clock.now += 100
    assert lists.take(7, (2,)) == [(7, 1, [(1,), (2,)])]


def test_without_a_limit_lists_are_bounded_all_the_same() -> None:
    lists = book(Clock(), max_timeout_ns=10**9)
    sent = [lists.take(7, (number,)) for number in range(MAX_LIST)]
    assert sent[:-1] == [[]] * (MAX_LIST - 1)
    assert len(sent[-1][0][2]) == MAX_LIST


def test_an_ack_or_its_time_frees_the_messages_of_its_list_only() -> None:
    clock = Clock()
    lists = book(clock, ack_timeout_ns=100)
    ((_, first, _),) = lists.take(7, (1,))
    clock.now += 50
    ((_, second, _),) = lists.take(7, (2,))
    assert lists.take(7, (1,)) == lists.take(7, (2,)) == []
    lists.acknowledge(7, second)
    lists.acknowledge(7, 99)
    lists.acknowledge(8, first)
    assert lists.take(7, (1,)) == []
    assert len(lists.take(7, (2,))) == 1
    clock.now += 49
    assert lists.take(7, (1,)) == []
    clock.now += 1
    assert len(lists.take(7, (1,))) == 1


def test_without_an_ack_timeout_nothing_is_held_back() -> None:
    lists = book(Clock())
    assert len(lists.take(7, (1,))) == len(lists.take(7, (1,))) == 1


def test_a_digest_that_nobody_asked_for_is_dropped() -> None:
    lists = book(Clock())
    assert lists.take(8, (1,)) == []
    lists.configure(7, None)
    assert lists.take(7, (1,)) == []
    assert lists.configs() == {}


# -- values

TYPES = """
structs { key: "s" value {
  members { name: "a" type_spec { bitstring { bit { bitwidth: 12 } } } }
  members { name: "b" type_spec { tuple {
    members { bool {} } members { enum { name: "e" } } members { error {} }
    members { serializable_enum { name: "u" } } } } }
  members { name: "c" type_spec { new_type { name: "n" } } }
} }
enums { key: "e" value { members { name: "ONE" } members { name: "TWO" } } }
serializable_enums { key: "u" value { underlying_type { bitwidth: 10 } } }
error { members: "NoError" members: "PacketTooShort" }
new_types { key: "n" value { original_type { bitstring { bit { bitwidth: 9 } } } } }
new_types { key: "t" value { translated_type { sdn_string {} } } }
headers { key: "h" value {} }
"""


def layout(spec: str) -> Layout:
    return Layout(
        "d",
        text_format.Parse(spec, p4t.P4DataTypeSpec()),
        text_format.Parse(TYPES, p4t.P4TypeInfo()),
    )


def test_values_take_the_shape_of_their_type() -> None:
    made = layout('struct { name: "s" }')
    assert made.widths == (12, 1, 32, 32, 10, 9)
    expected = """
      struct {
        members { bitstring: "\\017\\377" }
        members { tuple { members { bool: true } members { enum: "TWO" }
                          members { error: "PacketTooShort" }
                          members { enum_value: "\\003\\000" } } }
        members { bitstring: "\\000" }
      }
    """
    assert made.encode((0xFFF, 1, 1, 1, 0x300, 0)) == text_format.Parse(expected, p4d.P4Data())


def test_a_value_without_a_name_is_its_number() -> None:
    assert layout('enum { name: "e" }').encode((5,)).enum == "5"
    assert layout("error {}").encode((99,)).error == "99"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ('header { name: "h" }', "value of type header"),
        ("bitstring { varbit { max_bitwidth: 8 } }", "value of type bitstring"),
        ('new_type { name: "t" }', "type t is translated"),
        ('struct { name: "missing" }', "no struct 'missing'"),
    ],
)
def test_types_that_cannot_be_sent_are_refused(spec: str, words: str) -> None:
    with pytest.raises(P4RuntimeError, match=words):
        layout(spec)


def test_values_that_differ_from_the_programs_are_refused() -> None:
    info = load_p4info("copies")
    info.type_info.structs["learned_t"].members[0].type_spec.bitstring.bit.bitwidth = 9
    pipeline = compile_pipeline(info, load_json("copies").decode())
    with pytest.raises(P4RuntimeError, match=r"learned_t: P4Info has values of \(9, 9, 8, 1, 48\)"):
        check_digests(build_schema(info), pipeline)
