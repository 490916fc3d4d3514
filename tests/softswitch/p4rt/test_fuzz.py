"""Requests that no client would send: refused with a code that says why, and without a trace.

Updates are drawn from the P4Info, right in most things and damaged in some, so that about half of
them are taken; others are drawn from the descriptors of the messages alone.
"""

from __future__ import annotations

import functools
from typing import Any

import grpc
import pytest
from finsy.proto import p4r
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from p4rt_rig import COPIES, NAMES, Rig, load_json, load_p4info

from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError
from ringstep.softswitch.p4rt.pipeline import Loaded
from ringstep.softswitch.p4rt.read import Reader
from ringstep.softswitch.p4rt.schema import Schema, build_schema
from ringstep.softswitch.p4rt.write import Writer
from ringstep.softswitch.tables import Pipeline

PROGRAMS = {"entities": NAMES, "copies": COPIES}
FRAMES = [b"", bytes(range(40)), bytes([0] * 12 + [8, 0, 0x45]) + bytes(40), bytes([1] * 60)]

byte_strings = st.one_of(
    st.sampled_from([b"", b"\0", b"\1", b"\2", b"\3", b"\x08\0", b"\0\0\5", b"\xff" * 6]),
    st.binary(max_size=7),
)
numbers = st.one_of(st.integers(0, 4), st.sampled_from([-1, 7, 255, 256, 511, 65536, 2**31 - 1]))


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, ids: list[int], depth: int) -> Message:
    """Messages of one kind; fields whose names say that they are ids often hold one that exists."""
    message: Any = _class_of(kind)()
    taken = set()
    for field in kind.fields:
        oneof = field.containing_oneof
        if oneof is not None and oneof.name in taken:
            continue
        # What makes an entity is drawn more often than what it may do without.
        wanted = draw(st.integers(0, 9)) < (8 if depth >= 3 else 6)
        if not wanted or (field.message_type is not None and depth == 0):
            continue
        if oneof is not None:
            field = draw(st.sampled_from(list(oneof.fields)))
            taken.add(oneof.name)
            if field.message_type is not None and depth == 0:
                continue
        count = draw(st.integers(1, 3)) if _repeated(field) else 1
        for _ in range(count):
            value = draw(_values(field, ids, depth))
            _put(message, field, value)
    return message


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated)


def _class_of(kind: Descriptor) -> type[Message]:
    return message_factory.GetMessageClass(kind)


def _values(field: FieldDescriptor, ids: list[int], depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, ids, depth - 1)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return byte_strings if field.type == FieldDescriptor.TYPE_BYTES else st.just("x")
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.integers(0, 4)
    known = field.name.endswith("_id") and field.name not in ("field_id", "param_id", "member_id")
    unsigned = field.cpp_type in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
    plain = numbers.map(abs) if unsigned else numbers
    return st.one_of(st.sampled_from(ids), st.sampled_from(ids), plain) if known else plain


def _put(message: Any, field: FieldDescriptor, value: Any) -> None:
    if _repeated(field):
        getattr(message, field.name).append(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


@functools.cache
def compiled(name: str) -> tuple[p4r.ForwardingPipelineConfig, Schema, Pipeline]:
    config = p4r.ForwardingPipelineConfig(p4info=load_p4info(name))
    pipeline = compile_pipeline(config.p4info, load_json(name).decode())
    return config, build_schema(config.p4info), pipeline


class Device:
    """A switch with a program in its first state, written and read without gRPC."""

    def __init__(self, name: str) -> None:
        config, schema, pipeline = compiled(name)
        pipeline.reset()
        self.switch = Switch()
        self.switch.commit(pipeline)
        self.loaded = Loaded(config, schema, pipeline)

    def writer(self) -> Writer:
        return Writer(self.loaded, self.switch.lock)

    def state(self) -> list[p4r.Entity]:
        """Everything that can be read."""
        everything = p4r.TableEntry()
        everything.counter_data.SetInParent()
        everything.meter_config.SetInParent()
        queries = [
            p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)),
            p4r.Entity(action_profile_member=p4r.ActionProfileMember()),
            p4r.Entity(action_profile_group=p4r.ActionProfileGroup()),
            p4r.Entity(counter_entry=p4r.CounterEntry()),
            p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()),
            p4r.Entity(meter_entry=p4r.MeterEntry()),
            p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry()),
            p4r.Entity(digest_entry=p4r.DigestEntry()),
        ]
        for kind in ("multicast_group_entry", "clone_session_entry"):
            replicas = p4r.PacketReplicationEngineEntry()
            getattr(replicas, kind).SetInParent()
            queries.append(p4r.Entity(packet_replication_engine_entry=replicas))
        for table in self.loaded.schema.tables.values():
            query = p4r.TableEntry(table_id=table.id)
            if table.has_direct_counter:
                query.counter_data.SetInParent()
            if table.has_direct_meter:
                query.meter_config.SetInParent()
            queries.append(p4r.Entity(table_entry=query))
        found, results = Reader(self.loaded, self.switch.lock).collect(queries)
        entities = list(found)
        assert results == [None] * len(queries)
        return entities

    def run(self) -> None:
        for port, frame in enumerate(FRAMES):
            self.switch.receive(port, frame, 0)
        self.switch.advance(10)
        assert self.switch.stats.error_drops == 0, self.switch.stats.last_error


def ids_of(name: str) -> list[int]:
    return list(PROGRAMS[name].ids.values())


# -- updates that are right, from the P4Info

small = st.integers(0, 3)


def short(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def value_of(width: int) -> st.SearchStrategy[bytes]:
    top = (1 << width) - 1
    return st.one_of(small.map(lambda v: min(v, top)), st.integers(0, top)).map(short)


@st.composite
def match_of(draw: st.DrawFn, field: Any) -> p4r.FieldMatch | None:
    """A match field, or None where it is left out."""
    top = (1 << field.bitwidth) - 1
    made = p4r.FieldMatch(field_id=field.id)
    kind = field.MatchType.Name(field.match_type)
    if kind == "EXACT":
        made.exact.value = draw(value_of(field.bitwidth))
        return made
    if draw(st.integers(0, 3)) == 0:
        return None
    match kind:
        case "LPM":
            made.lpm.prefix_len = draw(st.integers(1, field.bitwidth))
            high = draw(st.integers(0, 3)) << (field.bitwidth - made.lpm.prefix_len)
            made.lpm.value = short(high & top)
        case "TERNARY":
            mask = draw(st.sampled_from([1, 3, top, top - 1])) & top or top
            made.ternary.mask = short(mask)
            made.ternary.value = short(draw(st.integers(0, top)) & mask)
        case "OPTIONAL":
            made.optional.value = draw(value_of(field.bitwidth))
        case "RANGE":
            low = draw(st.integers(1, 3))
            made.range.low, made.range.high = short(low), short(draw(st.integers(low, top)))
    return made


@st.composite
def action_of(draw: st.DrawFn, info: Any, refs: Any, *, default: bool = False) -> p4r.Action:
    """An action that a table may use, with all its parameters."""
    unfit = "TABLE_ONLY" if default else "DEFAULT_ONLY"
    fitting = [ref.id for ref in refs if ref.Scope.Name(ref.scope) != unfit]
    chosen = draw(st.sampled_from(fitting))
    action = next(one for one in info.actions if one.preamble.id == chosen)
    params = [
        p4r.Action.Param(param_id=one.id, value=draw(value_of(one.bitwidth)))
        for one in action.params
    ]
    return p4r.Action(action_id=action.preamble.id, params=params)


@st.composite
def entry_of(draw: st.DrawFn, info: Any) -> p4r.TableEntry:
    table = draw(st.sampled_from(list(info.tables)))
    made = p4r.TableEntry(table_id=table.preamble.id, metadata=draw(st.sampled_from([b"", b"m"])))
    if not table.match_fields or draw(st.integers(0, 9)) == 0:
        made.is_default_action = True
        made.action.action.CopyFrom(draw(action_of(info, table.action_refs, default=True)))
        return made
    for field in table.match_fields:
        match = draw(match_of(field))
        if match is not None:
            made.match.append(match)
    if any(f.match_type not in (f.EXACT, f.LPM) for f in table.match_fields):
        made.priority = draw(st.integers(1, 3))
    profile = next(
        (one for one in info.action_profiles if one.preamble.id == table.implementation_id), None
    )
    kinds = ["member", "group", "set"] if profile is not None and profile.with_selector else []
    match draw(st.sampled_from(kinds or ["member" if profile is not None else "action"])):
        case "action":
            made.action.action.CopyFrom(draw(action_of(info, table.action_refs)))
        case "member":
            made.action.action_profile_member_id = draw(st.integers(1, 3))
        case "group":
            made.action.action_profile_group_id = draw(st.integers(1, 3))
        case "set":
            for _ in range(draw(st.integers(1, 3))):
                made.action.action_profile_action_set.action_profile_actions.add(
                    action=draw(action_of(info, table.action_refs)), weight=draw(st.integers(1, 3))
                )
    direct = set(table.direct_resource_ids)
    if draw(st.booleans()) and direct & {one.preamble.id for one in info.direct_counters}:
        made.counter_data.packet_count, made.counter_data.byte_count = draw(small), draw(small)
    if draw(st.booleans()) and direct & {one.preamble.id for one in info.direct_meters}:
        made.meter_config.CopyFrom(draw(meter_configs()))
    return made


@st.composite
def meter_configs(draw: st.DrawFn) -> p4r.MeterConfig:
    cir = draw(small)
    return p4r.MeterConfig(cir=cir, cburst=draw(small), pir=cir + draw(small), pburst=draw(small))


@st.composite
def replicas(draw: st.DrawFn) -> list[p4r.Replica]:
    pairs = draw(st.lists(st.tuples(st.integers(0, 510), small), max_size=3, unique=True))
    return [
        p4r.Replica(port=short(port), instance=rid)
        if draw(st.booleans())
        else p4r.Replica(egress_port=port, instance=rid)
        for port, rid in pairs
    ]


@st.composite
def entity_of(draw: st.DrawFn, info: Any) -> p4r.Entity:
    made = p4r.Entity()
    choices = ["table", "table", "group", "clone"]
    choices += ["member", "member", "selector"] * bool(info.action_profiles)
    choices += ["counter"] * bool(info.counters) + ["meter"] * bool(info.meters)
    choices += ["digest"] * bool(info.digests)
    choices += ["direct counter"] * bool(info.direct_counters)
    choices += ["direct meter"] * bool(info.direct_meters)
    choice = draw(st.sampled_from(choices))
    match choice:
        case "table":
            made.table_entry.CopyFrom(draw(entry_of(info)))
        case "direct counter" | "direct meter":
            entry = draw(entry_of(info))
            key = p4r.TableEntry(
                table_id=entry.table_id, match=entry.match, priority=entry.priority
            )
            if choice == "direct counter":
                made.direct_counter_entry.table_entry.CopyFrom(key)
                made.direct_counter_entry.data.packet_count = draw(small)
            else:
                made.direct_meter_entry.table_entry.CopyFrom(key)
                made.direct_meter_entry.config.CopyFrom(draw(meter_configs()))
        case "member":
            profile = draw(st.sampled_from(list(info.action_profiles)))
            table = next(t for t in info.tables if t.preamble.id in profile.table_ids)
            made.action_profile_member.action_profile_id = profile.preamble.id
            made.action_profile_member.member_id = draw(st.integers(1, 3))
            made.action_profile_member.action.CopyFrom(draw(action_of(info, table.action_refs)))
        case "selector":
            profile = next(one for one in info.action_profiles if one.with_selector)
            made.action_profile_group.action_profile_id = profile.preamble.id
            made.action_profile_group.group_id = draw(st.integers(1, 3))
            made.action_profile_group.max_size = profile.max_group_size
            for member in draw(st.lists(st.integers(1, 3), max_size=3, unique=True)):
                made.action_profile_group.members.add(member_id=member, weight=1)
        case "counter":
            counter = draw(st.sampled_from(list(info.counters)))
            made.counter_entry.counter_id = counter.preamble.id
            made.counter_entry.index.index = draw(st.integers(0, counter.size - 1))
            made.counter_entry.data.packet_count = draw(small)
        case "meter":
            meter = draw(st.sampled_from(list(info.meters)))
            made.meter_entry.meter_id = meter.preamble.id
            made.meter_entry.index.index = draw(st.integers(0, meter.size - 1))
            made.meter_entry.config.CopyFrom(draw(meter_configs()))
        case "group":
            group = made.packet_replication_engine_entry.multicast_group_entry
            group.multicast_group_id = draw(st.integers(1, 3))
            group.replicas.extend(draw(replicas()))
        case "clone":
            session = made.packet_replication_engine_entry.clone_session_entry
            session.session_id = draw(st.integers(1, 3))
            session.replicas.extend(draw(replicas()))
        case "digest":
            made.digest_entry.digest_id = info.digests[0].preamble.id
            made.digest_entry.config.max_list_size = draw(small)
    return made


@st.composite
def damaged(draw: st.DrawFn, message: Any, ids: list[int]) -> Any:
    """The message with one field anywhere in it taken away or replaced."""
    node = message
    while True:
        inner = [
            one
            for field, value in node.ListFields()
            if field.message_type is not None
            for one in (value if _repeated(field) else [value])
        ]
        if not inner or draw(st.integers(0, 2)) == 0:
            break
        node = draw(st.sampled_from(inner))
    fields = list(node.DESCRIPTOR.fields)
    if fields:
        field = draw(st.sampled_from(fields))
        node.ClearField(field.name)
        if draw(st.booleans()):
            _put(node, field, draw(_values(field, ids, 2)))
    return message


@st.composite
def updates_of(draw: st.DrawFn, name: str) -> list[p4r.Update]:
    """A batch: right updates, damaged ones, and some that are drawn from the descriptor alone."""
    info, ids = PROGRAMS[name].p4info, ids_of(name)
    batch: list[p4r.Update] = []
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.integers(0, 9))
        if kind == 0:
            batch.append(draw(messages(p4r.Update.DESCRIPTOR, ids, 5)))  # type: ignore[arg-type]
            continue
        entity = draw(entity_of(info))
        modified = ("counter_entry", "direct_counter_entry", "meter_entry", "direct_meter_entry")
        default = entity.table_entry.is_default_action
        types = [p4r.Update.INSERT] * 4 + [p4r.Update.MODIFY, p4r.Update.DELETE]
        if entity.WhichOneof("entity") in modified or default:
            types = [p4r.Update.MODIFY]
        update = p4r.Update(type=draw(st.sampled_from(types)), entity=entity)
        batch.append(draw(damaged(update, ids)) if kind < 4 else update)
    return batch


def sound(results: list[P4RuntimeError | None]) -> None:
    for error in results:
        assert error is None or error.code not in (Code.INTERNAL, Code.UNKNOWN, Code.OK), error


@pytest.mark.parametrize("name", PROGRAMS)
@given(data=st.data())
def test_every_update_is_taken_or_refused_with_a_reason(name: str, data: st.DataObject) -> None:
    device = Device(name)
    results = device.writer().apply_each(data.draw(updates_of(name)))
    sound(results)
    assert all(error is None or error.message for error in results)
    device.run()


@pytest.mark.parametrize("name", PROGRAMS)
@given(data=st.data())
def test_a_batch_is_applied_as_a_whole_or_not_at_all(name: str, data: st.DataObject) -> None:
    device = Device(name)
    device.writer().apply_each(data.draw(updates_of(name)))
    before = device.state()
    results = device.writer().apply_all(data.draw(updates_of(name)))
    sound(results)
    if any(results):
        assert device.state() == before
    device.run()


@pytest.mark.parametrize("name", PROGRAMS)
@given(data=st.data())
def test_what_is_read_can_be_written_and_reads_the_same(name: str, data: st.DataObject) -> None:
    """Read-write symmetry: the state of one switch makes the same state on another."""
    device = Device(name)
    device.writer().apply_each(data.draw(updates_of(name)))
    state = device.state()
    rewritten = [update for one in state if (update := _as_update(one)) is not None]
    # Entries come before the counts and rates that are theirs.
    rewritten.sort(key=lambda update: update.type == p4r.Update.MODIFY)
    other = Device(name)
    results = other.writer().apply_all(rewritten)
    assert results == [None] * len(rewritten), [str(error) for error in results if error]
    assert other.state() == state


def _as_update(one: p4r.Entity) -> p4r.Update | None:
    kind = one.WhichOneof("entity")
    modified = ("counter_entry", "direct_counter_entry", "meter_entry", "direct_meter_entry")
    if kind == "table_entry" and one.table_entry.is_const:
        return None
    if kind == "table_entry" and one.table_entry.is_default_action:
        table = one.table_entry
        table_info = next(t for t in _tables() if t.preamble.id == table.table_id)
        if table_info.const_default_action_id or table_info.implementation_id:
            return None
        return p4r.Update(type=p4r.Update.MODIFY, entity=one) if table.HasField("action") else None
    if kind in modified:
        return p4r.Update(type=p4r.Update.MODIFY, entity=one)
    return p4r.Update(type=p4r.Update.INSERT, entity=one)


@functools.cache
def _tables() -> list[Any]:
    return [table for name in PROGRAMS for table in load_p4info(name).tables]


@pytest.mark.parametrize("name", PROGRAMS)
@given(data=st.data())
def test_every_read_is_answered_or_refused_with_a_reason(name: str, data: st.DataObject) -> None:
    device = Device(name)
    device.writer().apply_each(data.draw(updates_of(name)))
    before = device.state()
    queries = data.draw(
        st.lists(messages(p4r.Entity.DESCRIPTOR, ids_of(name), 4), min_size=1, max_size=4)
    )
    found, results = Reader(device.loaded, device.switch.lock).collect(queries)
    entities = list(found)
    sound(results)
    assert all(one.WhichOneof("entity") for one in entities)
    assert device.state() == before


@given(
    st.sampled_from(["Write", "Read", "SetForwardingPipelineConfig", "Capabilities"]), st.binary()
)
def test_bytes_that_are_no_message_do_not_hurt(method: str, data: bytes) -> None:
    rig = shared_rig()
    with grpc.insecure_channel(rig.server.address) as channel:
        path = f"/p4.v1.P4Runtime/{method}"
        call: Any = channel.unary_stream(path) if method == "Read" else channel.unary_unary(path)
        code = None
        try:
            answer = call(data, timeout=20)
            list(answer) if method == "Read" else bytes(answer)
        except grpc.RpcError as error:
            code = error.code()
        # Bytes that happen to be a message get the answer of a message.
        assert code is not grpc.StatusCode.DEADLINE_EXCEEDED
    with grpc.insecure_channel(rig.server.address) as channel:
        capabilities = channel.unary_unary("/p4.v1.P4Runtime/Capabilities")(b"", timeout=20)
        assert b"1.5" in capabilities


@given(st.lists(messages(p4r.StreamMessageRequest.DESCRIPTOR, [1, 7], 4), min_size=1, max_size=5))
def test_streams_end_with_a_reason_or_go_on(requests: list[Message]) -> None:
    rig = shared_rig()
    client = rig.client()
    stream = client.stream()
    for request in requests:
        stream.send(request)  # type: ignore[arg-type]
    stream._requests.put(None)
    code = None
    try:
        for answer in stream.call:
            if answer.WhichOneof("update") == "error":
                assert answer.error.canonical_code not in (Code.INTERNAL, Code.UNKNOWN)
    except grpc.RpcError as error:
        code = error.code()
    client.close()
    unsound = (
        grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED,
    )  # fmt: skip
    assert code not in unsound


@functools.cache
def shared_rig() -> Rig:
    """One server for all examples: what one leaves behind must not hurt the next."""
    return Rig()


@pytest.fixture(scope="module", autouse=True)
def _stop_the_shared_rig() -> Any:
    yield
    if shared_rig.cache_info().currsize:
        shared_rig().close()
        shared_rig.cache_clear()
