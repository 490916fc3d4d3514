"""Table entries: what is accepted, what is refused, and that reads return what was written."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest
from finsy.proto import p4i, p4r
from hypothesis import given
from hypothesis import strategies as st
from p4rt_rig import (
    NAMES,
    Client,
    Names,
    between,
    details,
    entry,
    exact,
    load_p4info,
    lpm,
    optional,
    ternary,
)

from ringstep.softswitch.p4rt import translate
from ringstep.softswitch.p4rt.errors import Code
from ringstep.softswitch.p4rt.schema import build_schema

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


def refused(client: Client, kind: int, one: p4r.Entity) -> tuple[Code, str]:
    """The code and message with which one update is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        client.write(kind, one)
    [error] = details(caught.value)
    return Code(error.canonical_code), error.message


def acl(
    match: list[p4r.FieldMatch], priority: int = 10, traffic_class: int = 1, **fields: object
) -> p4r.Entity:
    return entry("acl", match, NAMES.does("set_class", traffic_class), priority=priority, **fields)


L2 = entry("l2", [exact(1, 0x02AA)], NAMES.does("forward", 3))
ROUTE = entry("route", [lpm(1, 0x0A000000, 8)], NAMES.does("set_nexthop", 7))
ACL = acl([ternary(1, 0xA00, 0xF00), between(2, 64, 128), optional(3, 0x800)])


# ----------------------------------------------------------------------------- what is accepted


@pytest.mark.parametrize(
    "one",
    [
        L2,
        ROUTE,
        entry("route", [], NAMES.does("drop")),
        entry("route", [lpm(1, 0x0A000001, 32)], NAMES.does("set_nexthop", 0xFFFF)),
        ACL,
        acl([]),
        acl([optional(3, 0)]),
        acl([between(2, 0, 0)]),
        acl([between(2, 1, 0xFFFF)]),
        acl([ternary(1, 0, 1)], metadata=b"\x00note", controller_metadata=1 << 63),
    ],
)
def test_read_returns_what_was_written(client: Client, one: p4r.Entity) -> None:
    client.insert(one)
    assert client.read(
        p4r.Entity(table_entry=p4r.TableEntry(table_id=one.table_entry.table_id))
    ) == [one]


def test_insert_modify_delete(client: Client) -> None:
    client.insert(L2)
    changed = entry("l2", [exact(1, 0x02AA)], NAMES.does("forward", 4), metadata=b"new")
    client.modify(changed)
    assert client.read(entry("l2")) == [changed]
    client.delete(entry("l2", [exact(1, 0x02AA)]))
    assert client.read(entry("l2")) == []


def test_modify_without_action_keeps_the_action(client: Client) -> None:
    client.insert(L2)
    client.modify(entry("l2", [exact(1, 0x02AA)], metadata=b"m"))
    [found] = client.read(entry("l2"))
    assert found.table_entry.action == L2.table_entry.action
    assert found.table_entry.metadata == b"m"


def test_delete_considers_the_key_only(client: Client) -> None:
    client.insert(L2)
    client.delete(
        entry(
            "l2",
            [exact(1, 0x02AA)],
            p4r.TableAction(action=p4r.Action(action_id=12345)),
            metadata=b"x",
            idle_timeout_ns=4,
        )
    )
    assert client.read(entry("l2")) == []


def test_same_match_with_another_priority_is_another_entry(client: Client) -> None:
    client.insert(acl([optional(3, 5)], 1), acl([optional(3, 5)], 2))
    assert len(client.read(entry("acl"))) == 2
    client.delete(acl([optional(3, 5)], 1))
    [left] = client.read(entry("acl"))
    assert left.table_entry.priority == 2


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("kind", "one", "code", "word"),
    [
        (INSERT, entry("l2", [], NAMES.does("forward", 1)), "INVALID_ARGUMENT", "dst_addr"),
        (INSERT, entry("l2", [exact(2, 1)], NAMES.does("forward", 1)), "INVALID_ARGUMENT", "id 2"),
        (
            INSERT,
            entry("l2", [exact(1, 1), exact(1, 1)], NAMES.does("forward", 1)),
            "INVALID_ARGUMENT",
            "given twice",
        ),
        (
            INSERT,
            entry("l2", [lpm(1, 0, 8)], NAMES.does("forward", 1)),
            "INVALID_ARGUMENT",
            "matched EXACT, the entry gives LPM",
        ),
        (
            INSERT,
            entry("l2", [p4r.FieldMatch(field_id=1)], NAMES.does("forward", 1)),
            "INVALID_ARGUMENT",
            "no value",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1 << 48)], NAMES.does("forward", 1)),
            "OUT_OF_RANGE",
            "bit<48>",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("forward", 1), priority=1),
            "INVALID_ARGUMENT",
            "priority",
        ),
        (INSERT, acl([], 0), "INVALID_ARGUMENT", "priority"),
        (INSERT, acl([], -1), "INVALID_ARGUMENT", "priority"),
        (INSERT, entry("route", [lpm(1, 0, 0)], NAMES.does("drop")), "INVALID_ARGUMENT", "omit"),
        (INSERT, entry("route", [lpm(1, 0, 33)], NAMES.does("drop")), "INVALID_ARGUMENT", "1..32"),
        (INSERT, entry("route", [lpm(1, 0, -1)], NAMES.does("drop")), "INVALID_ARGUMENT", "1..32"),
        (
            INSERT,
            entry("route", [lpm(1, 0x0A000001, 8)], NAMES.does("drop")),
            "INVALID_ARGUMENT",
            "/8 prefix",
        ),
        (INSERT, acl([ternary(1, 0, 0)]), "INVALID_ARGUMENT", "don't care"),
        (INSERT, acl([ternary(1, 3, 1)]), "INVALID_ARGUMENT", "outside its mask"),
        (INSERT, acl([between(2, 9, 8)]), "INVALID_ARGUMENT", "above high"),
        (INSERT, acl([between(2, 0, 0xFFFF)]), "INVALID_ARGUMENT", "don't care"),
        (INSERT, entry("l2", [exact(1, 1)]), "INVALID_ARGUMENT", "needs an action"),
        (
            INSERT,
            entry("l2", [exact(1, 1)], p4r.TableAction()),
            "INVALID_ARGUMENT",
            "takes action",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("set_nexthop", 1)),
            "INVALID_ARGUMENT",
            "forward",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("forward")),
            "INVALID_ARGUMENT",
            "parameters missing: port",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("forward", 1, 2)),
            "INVALID_ARGUMENT",
            "no parameter has id 2",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("forward", 512)),
            "OUT_OF_RANGE",
            "parameter port",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("drop")),
            "PERMISSION_DENIED",
            "DEFAULT_ONLY",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], p4r.TableAction(action_profile_member_id=1)),
            "INVALID_ARGUMENT",
            "takes action",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("forward", 1), is_const=True),
            "INVALID_ARGUMENT",
            "is_const",
        ),
        (
            INSERT,
            entry("l2", [exact(1, 1)], NAMES.does("forward", 1), idle_timeout_ns=1),
            "INVALID_ARGUMENT",
            "idle timeout",
        ),
        (
            INSERT,
            entry(
                "l2", [exact(1, 1)], NAMES.does("forward", 1), meter_config=p4r.MeterConfig(cir=1)
            ),
            "INVALID_ARGUMENT",
            "no direct meter",
        ),
        (
            INSERT,
            entry("route", [], NAMES.does("drop"), counter_data=p4r.CounterData()),
            "INVALID_ARGUMENT",
            "no direct counter",
        ),
        (INSERT, entry("settings", [], NAMES.does("set_seed", 1)), "INVALID_ARGUMENT", "default"),
        (MODIFY, L2, "NOT_FOUND", "no entry"),
        (DELETE, L2, "NOT_FOUND", "no entry"),
        (p4r.Update.UNSPECIFIED, L2, "INVALID_ARGUMENT", "type"),
        (INSERT, p4r.Entity(), "INVALID_ARGUMENT", "entity is not set"),
        (INSERT, p4r.Entity(table_entry=p4r.TableEntry()), "INVALID_ARGUMENT", "table id 0"),
        (
            INSERT,
            p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02FFFFFF)),
            "NOT_FOUND",
            "route",
        ),
    ],
)
def test_refusals_name_what_was_wrong(
    client: Client, kind: int, one: p4r.Entity, code: str, word: str
) -> None:
    if word == "omit":
        word = "leave the field out"
    found, message = refused(client, kind, one)
    assert (found.name, word in message) == (code, True), message
    assert client.read(entry("l2")) == []


def test_duplicate_insert_already_exists(client: Client) -> None:
    client.insert(L2)
    assert refused(client, INSERT, L2)[0] is Code.ALREADY_EXISTS


def test_full_table_is_resource_exhausted(client: Client) -> None:
    client.insert(
        *[entry("l2", [exact(1, address)], NAMES.does("forward", 1)) for address in range(8)]
    )
    assert refused(client, INSERT, L2)[0] is Code.RESOURCE_EXHAUSTED


# ------------------------------------------------------------------------------- default entries


def default(table: str, action: p4r.TableAction | None = None, **fields: object) -> p4r.Entity:
    return entry(table, [], action, is_default_action=True, **fields)


def test_default_entry_is_read_on_request_only(client: Client) -> None:
    assert client.read(entry("settings")) == []
    assert client.read(default("settings")) == [default("settings", NAMES.does("set_seed", 7))]


def test_default_entry_is_modified_and_reset(client: Client) -> None:
    changed = default("settings", NAMES.does("set_seed", 9), metadata=b"m", controller_metadata=3)
    client.modify(changed)
    assert client.read(default("settings")) == [changed]
    client.modify(default("settings"))
    assert client.read(default("settings")) == [default("settings", NAMES.does("set_seed", 7))]


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (INSERT, default("settings", NAMES.does("set_seed", 9)), "INVALID_ARGUMENT"),
        (DELETE, default("settings"), "INVALID_ARGUMENT"),
        (MODIFY, default("settings", NAMES.does("set_seed", 9), priority=1), "INVALID_ARGUMENT"),
        (MODIFY, default("settings", NAMES.does("set_seed", 1 << 32)), "OUT_OF_RANGE"),
        (MODIFY, default("settings", NAMES.does("forward", 1)), "INVALID_ARGUMENT"),
        (MODIFY, default("settings", idle_timeout_ns=1), "INVALID_ARGUMENT"),
        (
            MODIFY,
            entry("l2", [exact(1, 1)], NAMES.does("drop"), is_default_action=True),
            "INVALID_ARGUMENT",
        ),
        (MODIFY, default("l2", NAMES.does("set_class", 1)), "PERMISSION_DENIED"),
        (MODIFY, default("acl", NAMES.does("drop")), "PERMISSION_DENIED"),
        (MODIFY, default("acl"), "PERMISSION_DENIED"),
        (MODIFY, default("nexthop", NAMES.does("NoAction")), "PERMISSION_DENIED"),
        (
            MODIFY,
            default("settings", p4r.TableAction(action_profile_member_id=1)),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_default_entry_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    before = client.read(default("settings"), default("l2"), default("acl"))
    assert refused(client, kind, one)[0].name == code
    assert client.read(default("settings"), default("l2"), default("acl")) == before


# --------------------------------------------------------------------------------- const entries


def test_const_entries_are_read_with_is_const(client: Client) -> None:
    found = client.read(entry("fixed"))
    assert sorted(one.table_entry.match[0].exact.value for one in found) == [b"\x06", b"\x11"]
    assert all(one.table_entry.is_const for one in found)


@pytest.mark.parametrize("kind", [INSERT, MODIFY, DELETE])
def test_const_entries_cannot_be_written(client: Client, kind: int) -> None:
    value = 99 if kind == INSERT else 6
    one = entry("fixed", [exact(1, value)], NAMES.does("set_class", 1))
    assert refused(client, kind, one)[0] is Code.PERMISSION_DENIED
    assert len(client.read(entry("fixed"))) == 2


def test_initial_entries_count_as_const(client: Client) -> None:
    """BMv2 JSON has `entries` for both kinds of tables and does not say which are const."""
    config = client.get_config().config
    for table in config.p4info.tables:
        table.is_const_table = False
    client.set_config(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    for kind, value in ((INSERT, 99), (MODIFY, 6), (DELETE, 6)):
        one = entry("fixed", [exact(1, value)], NAMES.does("set_class", 1))
        assert refused(client, kind, one)[0] is Code.PERMISSION_DENIED
    assert all(one.table_entry.is_const for one in client.read(entry("fixed")))


def test_default_of_a_const_table_can_be_modified(client: Client) -> None:
    client.modify(default("fixed", NAMES.does("set_class", 5)))
    assert client.read(default("fixed")) == [default("fixed", NAMES.does("set_class", 5))]


# ----------------------------------------------------------------------------------------- reads


def test_wildcard_read_returns_all_tables_without_defaults(client: Client) -> None:
    client.insert(L2, ROUTE, ACL)
    found = client.read(p4r.Entity(table_entry=p4r.TableEntry()))
    tables = sorted(one.table_entry.table_id for one in found)
    assert tables == sorted(NAMES[name] for name in ("l2", "route", "acl", "fixed", "fixed"))
    assert not any(one.table_entry.is_default_action for one in found)


def test_default_entries_of_all_tables_in_one_request(client: Client) -> None:
    found = client.read(p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)))
    assert len(found) == len(load_p4info().tables)
    assert all(one.table_entry.is_default_action for one in found)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (entry("acl"), [1, 2, 3]),
        (entry("acl", priority=20), [2, 3]),
        (entry("acl", [optional(3, 5)]), [1, 2]),
        (entry("acl", [optional(3, 5)], priority=20), [2]),
        (entry("acl", [optional(3, 9)]), []),
        (entry("acl", metadata=b"c"), [3]),
        (entry("acl", controller_metadata=4), [1]),
        (
            entry("acl", [], p4r.TableAction(action=p4r.Action(action_id=NAMES["set_class"]))),
            [1, 2],
        ),
        (entry("acl", [], p4r.TableAction(action=p4r.Action(action_id=NAMES["drop"]))), [3]),
    ],
)
def test_read_filters(client: Client, query: p4r.Entity, expected: list[int]) -> None:
    rows = [
        acl([optional(3, 5)], 10, 1, controller_metadata=4),
        acl([optional(3, 5)], 20, 2),
        entry("acl", [optional(3, 6)], NAMES.does("drop"), priority=20, metadata=b"c"),
    ]
    client.insert(*rows)
    assert client.read(query) == [rows[position - 1] for position in expected]


@pytest.mark.parametrize(
    "query",
    [
        p4r.TableEntry(priority=1),
        p4r.TableEntry(metadata=b"x"),
        p4r.TableEntry(match=[exact(1, 1)]),
        p4r.TableEntry(table_id=NAMES["l2"], match=[exact(7, 1)]),
        p4r.TableEntry(table_id=NAMES["acl"], action=NAMES.does("set_class", 1)),
        p4r.TableEntry(table_id=NAMES["l2"], action=NAMES.does("set_seed")),
        p4r.TableEntry(table_id=NAMES["l2"], match=[exact(1, 1)], is_default_action=True),
    ],
)
def test_read_filters_that_make_no_sense_are_invalid(client: Client, query: p4r.TableEntry) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(p4r.Entity(table_entry=query))
    assert [one.canonical_code for one in details(caught.value)] == [Code.INVALID_ARGUMENT]


def test_read_of_another_device_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(entry("l2"), device_id=5)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_large_reads_come_in_chunks(client: Client) -> None:
    note = bytes(100_000)
    client.insert(*[acl([ternary(1, v, 0xFFFF)], metadata=note) for v in range(20)])
    replies = list(client.replies(entry("acl")))
    assert len(replies) > 1
    assert sum(len(one) for one in replies) == 20


# ------------------------------------------------------------------------------ pure translation

SCHEMA = build_schema(load_p4info())
WIDTH16 = st.integers(0, 0xFFFF)


def _ternary(pair: tuple[int, int]) -> list[p4r.FieldMatch]:
    value, mask = pair
    return [ternary(1, value & mask, mask)] if mask else []


def _range(pair: tuple[int, int]) -> list[p4r.FieldMatch]:
    low, high = sorted(pair)
    return [between(2, low, high)] if (low, high) != (0, 0xFFFF) else []


@given(
    st.tuples(st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 48) - 1)).map(_ternary),
    st.tuples(WIDTH16, WIDTH16).map(_range),
    st.one_of(st.just([]), WIDTH16.map(lambda v: [optional(3, v)])),
    st.permutations(range(3)),
)
def test_keys_survive_the_round_trip_in_any_order(
    a: list[p4r.FieldMatch],
    b: list[p4r.FieldMatch],
    c: list[p4r.FieldMatch],
    order: list[int],
) -> None:
    table = SCHEMA.table(NAMES["acl"])
    given_order = [field for position in order for field in (a, b, c)[position]]
    key = translate.decode_match(table, given_order)
    assert translate.encode_match(table, key) == a + b + c


@given(st.integers(0, 511), st.integers(0, (1 << 48) - 1), st.integers(0, (1 << 48) - 1))
def test_actions_survive_the_round_trip(port: int, source: int, target: int) -> None:
    allowed = SCHEMA.table(NAMES["nexthop"]).actions
    message = NAMES.action("rewrite", port, source, target)
    call = translate.decode_action("table nexthop", allowed, message)
    assert call.args == (port, source, target)
    assert translate.encode_action(SCHEMA, call) == message


def test_parameters_may_come_in_any_order() -> None:
    message = NAMES.action("rewrite", 1, 2, 3)
    turned = p4r.Action(action_id=message.action_id, params=reversed(message.params))
    allowed = SCHEMA.table(NAMES["nexthop"]).actions
    assert translate.decode_action("t", allowed, turned).args == (1, 2, 3)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (
            lambda: p4r.Entity(register_entry=p4r.RegisterEntry(register_id=NAMES["scratch"])),
            "register EntitiesIngress.scratch",
        ),
        (lambda: p4r.Entity(value_set_entry=p4r.ValueSetEntry()), "value sets"),
        (lambda: p4r.Entity(extern_entry=p4r.ExternEntry()), "externs"),
    ],
)
def test_unsupported_entities_are_named(
    client: Client, make: Callable[[], p4r.Entity], word: str
) -> None:
    code, message = refused(client, INSERT, make())
    assert code is Code.UNIMPLEMENTED
    assert word in message
    with pytest.raises(grpc.RpcError) as caught:
        client.read(make())
    assert [one.canonical_code for one in details(caught.value)] == [Code.UNIMPLEMENTED]


def test_idle_timeout_of_a_table_that_has_one_is_unimplemented(
    client: Client,
) -> None:
    config = client.get_config().config
    for table in config.p4info.tables:
        if table.preamble.alias == "route":
            table.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
    client.set_config(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    assert Names(config.p4info)["route"] == NAMES["route"]
    one = entry("route", [], NAMES.does("drop"), idle_timeout_ns=10)
    assert refused(client, INSERT, one)[0] is Code.UNIMPLEMENTED
