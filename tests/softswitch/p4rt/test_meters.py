"""MeterEntry, DirectMeterEntry, and the meter_config of table entries."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4i, p4r
from google.protobuf import text_format
from p4rt_rig import COPIES, Client, Rig, details, exact, load_p4info, ternary

from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError
from ringstep.softswitch.p4rt.schema import build_schema

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
TIGHT = p4r.MeterConfig(cir=1, cburst=1, pir=1, pburst=2)
COLOUR = 3 + 6
"""Place of the colour in a frame that left: behind the trail, in the 7th byte of `todo`."""


@pytest.fixture
def client(rig: Rig) -> Client:
    """The primary of a server that runs the copies program and sends code 1 to port 2."""
    one = rig.primary(election_id=1)
    one.push(program="copies")
    one.insert(
        p4r.Entity(
            table_entry=p4r.TableEntry(
                table_id=COPIES["todo"], match=[exact(1, 1)], action=COPIES.does("forward", 2)
            )
        )
    )
    return one


def cell(
    meter: str | None, index: int | None = None, config: p4r.MeterConfig | None = None
) -> p4r.Entity:
    one = p4r.MeterEntry(meter_id=COPIES[meter] if meter else 0, config=config)
    if index is not None:
        one.index.index = index
    return p4r.Entity(meter_entry=one)


def limit(
    code: int = 1, config: p4r.MeterConfig | None = None, priority: int = 9, **fields: object
) -> p4r.TableEntry:
    return p4r.TableEntry(
        table_id=COPIES["limits"],
        match=[ternary(1, code, 0xFF)],
        priority=priority,
        action=COPIES.does("metered"),
        meter_config=config,
        **fields,  # type: ignore[arg-type]
    )


def direct(config: p4r.MeterConfig | None = None, code: int | None = 1) -> p4r.Entity:
    key = p4r.TableEntry(table_id=COPIES["limits"])
    if code is not None:
        key.match.append(ternary(1, code, 0xFF))
        key.priority = 9
    return p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=key, config=config))


def colours(rig: Rig, count: int) -> list[int]:
    """The colours that `count` packets of code 1 get, all at one time."""
    found = []
    for _ in range(count):
        rig.receive(3, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        found.append(rig.sent.get(timeout=20)[1][COLOUR])
    return found


def refused(client: Client, kind: int, one: p4r.Entity) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as caught:
        client.write(kind, one)
    [error] = details(caught.value)
    return Code(error.canonical_code), error.message


# -- indirect


def test_a_cell_colours_packets_and_reads_back(client: Client, rig: Rig) -> None:
    assert client.read(cell("by_code", 1)) == [cell("by_code", 1)]
    assert colours(rig, 4) == [0, 0, 0, 0]
    client.modify(cell("by_code", 1, TIGHT))
    assert colours(rig, 4) == [0, 1, 2, 2]
    assert client.read(cell("by_code", 1)) == [cell("by_code", 1, TIGHT)]
    client.modify(cell("by_code", 1))
    assert colours(rig, 4) == [0, 0, 0, 0]
    assert client.read(cell("by_code", 1)) == [cell("by_code", 1)]


def test_arrays_are_written_and_read_as_a_whole(client: Client) -> None:
    client.modify(cell("by_port", None, TIGHT))
    assert client.read(cell("by_port")) == [cell("by_port", at, TIGHT) for at in range(16)]
    assert len(client.read(cell(None))) == 256 + 16
    client.modify(cell("by_port"))
    assert client.read(cell("by_port")) == [cell("by_port", at) for at in range(16)]


def test_a_byte_meter_counts_bytes(client: Client, rig: Rig) -> None:
    client.modify(cell("by_port", 3, p4r.MeterConfig(cir=1, cburst=8, pir=1, pburst=20)))
    # Red of this meter shows as 0xFF; two frames of 8 bytes fit into the peak burst.
    assert colours(rig, 3) == [0, 0, 0xFF]


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (INSERT, cell("by_code", 0, TIGHT), "INVALID_ARGUMENT"),
        (DELETE, cell("by_code", 0), "INVALID_ARGUMENT"),
        (MODIFY, cell("by_code", -1, TIGHT), "INVALID_ARGUMENT"),
        (MODIFY, cell("by_code", 256, TIGHT), "OUT_OF_RANGE"),
        (MODIFY, cell(None, 0, TIGHT), "INVALID_ARGUMENT"),
        (MODIFY, p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=1)), "NOT_FOUND"),
        (MODIFY, cell("by_code", 0, p4r.MeterConfig(cir=-1)), "INVALID_ARGUMENT"),
        (MODIFY, cell("by_code", 0, p4r.MeterConfig(cir=2, pir=1)), "INVALID_ARGUMENT"),
        (MODIFY, cell("by_code", 0, p4r.MeterConfig(eburst=1)), "INVALID_ARGUMENT"),
        (
            MODIFY,
            p4r.Entity(
                meter_entry=p4r.MeterEntry(
                    meter_id=COPIES["by_code"], counter_data=p4r.MeterCounterData()
                )
            ),
            "UNIMPLEMENTED",
        ),
    ],
)
def test_indirect_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    assert refused(client, kind, one)[0].name == code


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (cell(None, 3), "INVALID_ARGUMENT"),
        (cell("by_port", 16), "OUT_OF_RANGE"),
        (cell("by_port", -1), "INVALID_ARGUMENT"),
        (
            p4r.Entity(meter_entry=p4r.MeterEntry(counter_data=p4r.MeterCounterData())),
            "UNIMPLEMENTED",
        ),
        (
            p4r.Entity(
                direct_meter_entry=p4r.DirectMeterEntry(counter_data=p4r.MeterCounterData())
            ),
            "UNIMPLEMENTED",
        ),
    ],
)
def test_read_refusals(client: Client, query: p4r.Entity, code: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(query)
    assert [Code(one.canonical_code).name for one in details(caught.value)] == [code]


# -- direct


def as_entity(one: p4r.TableEntry) -> p4r.Entity:
    return p4r.Entity(table_entry=one)


def test_a_direct_meter_comes_with_its_entry(client: Client, rig: Rig) -> None:
    client.insert(as_entity(limit(config=TIGHT)))
    assert colours(rig, 4) == [0, 16, 32, 32]
    plain = p4r.TableEntry(table_id=COPIES["limits"])
    assert not client.read(as_entity(plain))[0].table_entry.HasField("meter_config")
    plain.meter_config.SetInParent()
    assert client.read(as_entity(plain)) == [as_entity(limit(config=TIGHT))]
    client.delete(as_entity(limit()))
    assert colours(rig, 1) == [0]


def test_a_default_configuration_is_unset_in_reads(client: Client) -> None:
    client.insert(as_entity(limit()))
    query = p4r.TableEntry(table_id=COPIES["limits"], meter_config=p4r.MeterConfig())
    assert client.read(as_entity(query)) == [as_entity(limit())]


def test_modifying_an_entry_sets_its_meter_and_leaving_it_out_resets_it(
    client: Client, rig: Rig
) -> None:
    client.insert(as_entity(limit()))
    client.modify(as_entity(limit(config=TIGHT)))
    assert colours(rig, 3) == [0, 16, 32]
    client.modify(as_entity(limit()))
    assert colours(rig, 2) == [0, 0]


def test_direct_meter_entries(client: Client, rig: Rig) -> None:
    client.insert(as_entity(limit()), as_entity(limit(code=5)))
    client.modify(direct(TIGHT))
    assert colours(rig, 3) == [0, 16, 32]
    assert client.read(direct()) == [direct(TIGHT)]
    assert client.read(direct(code=None)) == [direct(TIGHT), direct(code=5)]
    everywhere = p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry())
    assert client.read(everywhere) == [direct(TIGHT), direct(code=5)]
    client.modify(direct())
    assert client.read(direct()) == [direct()]
    assert colours(rig, 2) == [0, 0]


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (INSERT, direct(TIGHT), "INVALID_ARGUMENT"),
        (DELETE, direct(), "INVALID_ARGUMENT"),
        (MODIFY, direct(TIGHT, code=77), "NOT_FOUND"),
        (MODIFY, direct(p4r.MeterConfig(pburst=-1)), "INVALID_ARGUMENT"),
        (
            MODIFY,
            p4r.Entity(
                direct_meter_entry=p4r.DirectMeterEntry(
                    table_entry=p4r.TableEntry(table_id=COPIES["todo"], match=[exact(1, 1)])
                )
            ),
            "INVALID_ARGUMENT",
        ),
        (
            MODIFY,
            p4r.Entity(
                direct_meter_entry=p4r.DirectMeterEntry(
                    table_entry=p4r.TableEntry(table_id=COPIES["limits"], is_default_action=True)
                )
            ),
            "UNIMPLEMENTED",
        ),
        (
            MODIFY,
            as_entity(limit(meter_counter_data=p4r.MeterCounterData())),
            "UNIMPLEMENTED",
        ),
        (
            MODIFY,
            as_entity(
                p4r.TableEntry(
                    table_id=COPIES["limits"], is_default_action=True, meter_config=TIGHT
                )
            ),
            "UNIMPLEMENTED",
        ),
        (
            INSERT,
            as_entity(
                p4r.TableEntry(
                    table_id=COPIES["todo"],
                    match=[exact(1, 9)],
                    action=COPIES.does("drop"),
                    meter_config=TIGHT,
                )
            ),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_direct_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    client.insert(as_entity(limit()))
    assert refused(client, kind, one)[0].name == code


def test_reading_the_meter_of_a_missing_entry_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(direct(code=77))
    assert [one.canonical_code for one in details(caught.value)] == [Code.NOT_FOUND]


def test_a_batch_that_fails_leaves_meters_as_they_were(client: Client, rig: Rig) -> None:
    client.insert(as_entity(limit(config=TIGHT)))
    client.modify(cell("by_code", 1, TIGHT))
    other = p4r.MeterConfig(cir=5, cburst=5, pir=5, pburst=5)
    updates = [
        p4r.Update(type=MODIFY, entity=cell("by_code", None, other)),
        p4r.Update(type=MODIFY, entity=direct(other)),
        p4r.Update(type=DELETE, entity=as_entity(limit())),
        p4r.Update(type=DELETE, entity=as_entity(limit())),
    ]
    with pytest.raises(grpc.RpcError):
        client.write_updates(updates, atomicity=p4r.WriteRequest.ROLLBACK_ON_ERROR)
    assert client.read(cell("by_code", 1), cell("by_code", 2)) == [
        cell("by_code", 1, TIGHT),
        cell("by_code", 2),
    ]
    assert client.read(direct()) == [direct(TIGHT)]


@pytest.mark.parametrize("place", ["meters", "direct_meters"])
def test_meters_of_another_type_are_refused_with_the_config(place: str) -> None:
    info = text_format.Parse(text_format.MessageToString(load_p4info("copies")), p4i.P4Info())
    getattr(info, place)[0].spec.type = p4i.MeterSpec.SINGLE_RATE_TWO_COLOR
    with pytest.raises(P4RuntimeError, match="SINGLE_RATE_TWO_COLOR; this switch has TWO_RATE"):
        build_schema(info)
