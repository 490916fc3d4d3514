"""Indirect and direct counters."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r
from p4rt_rig import NAMES, Client, details, entry, exact

from ringstep.softswitch.p4rt.errors import Code

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


def refused(client: Client, kind: int, one: p4r.Entity) -> Code:
    with pytest.raises(grpc.RpcError) as caught:
        client.write(kind, one)
    [error] = details(caught.value)
    return Code(error.canonical_code)


def cell(
    counter: str | None, index: int | None = None, counts: tuple[int, int] | None = None
) -> p4r.Entity:
    one = p4r.CounterEntry(counter_id=NAMES[counter] if counter else 0)
    if index is not None:
        one.index.index = index
    if counts is not None:
        one.data.packet_count, one.data.byte_count = counts
        one.data.SetInParent()
    return p4r.Entity(counter_entry=one)


def direct(
    address: int | None, counts: tuple[int, int] | None = None, table: str = "l2"
) -> p4r.Entity:
    one = p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=NAMES[table]))
    if address is not None:
        one.table_entry.match.append(exact(1, address))
    if counts is not None:
        one.data.packet_count, one.data.byte_count = counts
        one.data.SetInParent()
    return p4r.Entity(direct_counter_entry=one)


def l2(address: int, **fields: object) -> p4r.Entity:
    return entry("l2", [exact(1, address)], NAMES.does("forward", 1), **fields)


# --------------------------------------------------------------------------------------- indirect


def test_cell_reads_back(client: Client) -> None:
    client.modify(cell("per_port", 3, (5, 640)))
    assert client.read(cell("per_port", 3)) == [cell("per_port", 3, (5, 640))]
    assert client.read(cell("per_port", 0)) == [cell("per_port", 0, (0, 0))]


def test_array_and_all_arrays_are_read_by_wildcard(client: Client) -> None:
    assert len(client.read(cell("per_port"))) == 16
    assert len(client.read(cell(None))) == 16 + 8


def test_whole_array_is_written_without_an_index(client: Client) -> None:
    client.modify(cell("per_class", None, (2, 20)))
    assert client.read(cell("per_class")) == [cell("per_class", i, (2, 20)) for i in range(8)]


def test_write_without_data_changes_nothing(client: Client) -> None:
    client.modify(cell("per_port", 3, (5, 640)))
    client.modify(cell("per_port", 3))
    assert client.read(cell("per_port", 3)) == [cell("per_port", 3, (5, 640))]


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (INSERT, cell("per_port", 0, (1, 1)), "INVALID_ARGUMENT"),
        (DELETE, cell("per_port", 0), "INVALID_ARGUMENT"),
        (MODIFY, cell("per_port", -1, (1, 1)), "INVALID_ARGUMENT"),
        (MODIFY, cell("per_port", 16, (1, 1)), "OUT_OF_RANGE"),
        (MODIFY, cell("per_port", 0, (-1, 1)), "INVALID_ARGUMENT"),
        (MODIFY, cell(None, 0, (1, 1)), "INVALID_ARGUMENT"),
        (
            MODIFY,
            p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12FFFFFF)),
            "NOT_FOUND",
        ),
    ],
)
def test_indirect_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    assert refused(client, kind, one).name == code


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (cell("per_port", 16), Code.OUT_OF_RANGE),
        (cell("per_port", -1), Code.INVALID_ARGUMENT),
        (cell(None, 1), Code.INVALID_ARGUMENT),
    ],
)
def test_reads_outside_the_array_are_refused(client: Client, query: p4r.Entity, code: Code) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(query)
    assert [one.canonical_code for one in details(caught.value)] == [code]


# ----------------------------------------------------------------------------------------- direct


def test_direct_counter_is_written_and_read_beside_its_entry(client: Client) -> None:
    client.insert(l2(1), l2(2, counter_data=p4r.CounterData(packet_count=4, byte_count=40)))
    client.modify(direct(1, (7, 70)))
    assert client.read(direct(1)) == [direct(1, (7, 70))]
    assert client.read(direct(None)) == [direct(1, (7, 70)), direct(2, (4, 40))]
    assert client.read(p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry())) == [
        direct(1, (7, 70)),
        direct(2, (4, 40)),
    ]


def test_counter_data_is_read_only_where_asked_for(client: Client) -> None:
    counts = p4r.CounterData(packet_count=4, byte_count=40)
    client.insert(l2(2, counter_data=counts))
    [plain] = client.read(entry("l2"))
    assert not plain.table_entry.HasField("counter_data")
    [counted] = client.read(entry("l2", counter_data=p4r.CounterData()))
    assert counted.table_entry.counter_data == counts


def test_modifying_an_entry_keeps_its_count(client: Client) -> None:
    client.insert(l2(2, counter_data=p4r.CounterData(packet_count=4, byte_count=40)))
    client.modify(entry("l2", [exact(1, 2)], NAMES.does("forward", 5)))
    assert client.read(direct(2)) == [direct(2, (4, 40))]


def test_clearing_a_count_leaves_the_entry_intact(client: Client) -> None:
    client.insert(l2(2, counter_data=p4r.CounterData(packet_count=4, byte_count=40)))
    client.modify(direct(2, (0, 0)))
    assert client.read(entry("l2")) == [l2(2)]


def test_count_of_a_const_entry_can_only_be_modified(client: Client) -> None:
    """`fixed` has no direct counter, so the request is refused for that, not as a const entry."""
    one = entry("fixed", [exact(1, 6)], counter_data=p4r.CounterData())
    assert refused(client, MODIFY, one) is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (INSERT, direct(1, (1, 1)), "INVALID_ARGUMENT"),
        (DELETE, direct(1), "INVALID_ARGUMENT"),
        (MODIFY, direct(1, (1, 1)), "NOT_FOUND"),
        (MODIFY, direct(1, (1, 1), "fixed"), "INVALID_ARGUMENT"),
    ],
)
def test_direct_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    assert refused(client, kind, one).name == code


def test_count_of_the_default_entry_is_unimplemented(client: Client) -> None:
    one = entry(
        "l2", [], NAMES.does("drop"), is_default_action=True, counter_data=p4r.CounterData()
    )
    assert refused(client, MODIFY, one) is Code.UNIMPLEMENTED
    through = p4r.DirectCounterEntry(table_entry=one.table_entry)
    assert refused(client, MODIFY, p4r.Entity(direct_counter_entry=through)) is Code.UNIMPLEMENTED


def test_count_of_a_missing_entry_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(direct(9))
    assert [one.canonical_code for one in details(caught.value)] == [Code.NOT_FOUND]
