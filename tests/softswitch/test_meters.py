"""Meters: colours by RFC 2698, direct and indirect, in packets and in bytes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from bmv2_json import (
    ProgramBuilder,
    arg,
    assign,
    call,
    field,
    key,
    meta,
    meter,
    num,
    one,
    scratch_program,
    send_to,
)
from hypothesis import given
from hypothesis import strategies as st

from ringstep.softswitch.meters import GREEN, RED, YELLOW, Meter, MeterConfig
from ringstep.softswitch.tables import ActionCall, Entry, Exact, InvalidEntry, MemberRef, Table

BYTES = {"a": 8, "b": 8}
A, B = field("h", "a"), field("h", "b")


# -- one meter


def test_a_burst_of_packets_is_green_then_yellow_then_red() -> None:
    cell = Meter("packets")
    cell.configure(MeterConfig(cir=1, cburst=2, pir=1, pburst=5))
    assert [cell.execute(100, 0) for _ in range(7)] == [GREEN] * 2 + [YELLOW] * 3 + [RED] * 2


def test_tokens_come_back_with_time_and_no_more_than_the_burst() -> None:
    cell = Meter("packets")
    cell.configure(MeterConfig(cir=1000, cburst=2, pir=2000, pburst=3))
    assert [cell.execute(1, 0) for _ in range(4)] == [GREEN, GREEN, YELLOW, RED]
    assert cell.execute(1, 499) == RED
    assert cell.execute(1, 500) == YELLOW
    assert cell.execute(1, 1000) == GREEN
    assert [cell.execute(1, 10_000_000) for _ in range(4)] == [GREEN, GREEN, YELLOW, RED]


def test_bytes_are_counted_in_bytes() -> None:
    cell = Meter("bytes")
    cell.configure(MeterConfig(cir=1, cburst=1500, pir=1, pburst=3000))
    assert [cell.execute(1000, 0) for _ in range(4)] == [GREEN, YELLOW, YELLOW, RED]
    assert cell.execute(0, 0) == GREEN


def test_without_a_configuration_all_is_green() -> None:
    cell = Meter("packets")
    assert cell.execute(1, 0) == GREEN
    cell.configure(MeterConfig(0, 0, 0, 0))
    assert cell.execute(1, 0) == RED
    cell.configure(None)
    assert cell.execute(1, 0) == GREEN


@pytest.mark.parametrize("values", [(-1, 0, 0, 0), (0, -1, 0, 0), (2, 0, 1, 0), (0, 0, 0, -9)])
def test_a_configuration_that_makes_no_sense_is_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must not be negative|below cir"):
        MeterConfig(*values)


@given(
    st.tuples(*[st.integers(0, 10**7)] * 4),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 1500)), max_size=40),
)
def test_colours_follow_exact_arithmetic(
    numbers: tuple[int, int, int, int], packets: list[tuple[int, int]]
) -> None:
    """Against RFC 2698 in fractions, with whole tokens handed out as they come full."""
    cir, pir = sorted(numbers[:2])
    cburst, pburst = numbers[2] % 5000, numbers[3] % 5000
    cell = Meter("bytes")
    cell.configure(MeterConfig(cir, cburst, pir, pburst))
    now = 0
    tokens = {"c": Fraction(cburst), "p": Fraction(pburst)}
    earned = {"c": 0, "p": 0}
    for gap, size in packets:
        now += gap
        # BMv2 asks the committed bucket only after the peak one gave.
        expected = GREEN
        for bucket, rate, burst, colour in (("p", pir, pburst, RED), ("c", cir, cburst, YELLOW)):
            since = int(Fraction(now * rate, 10**6))
            tokens[bucket] = min(tokens[bucket] + since - earned[bucket], Fraction(burst))
            earned[bucket] = since
            if tokens[bucket] < size:
                expected = colour
                break
            tokens[bucket] -= size
        assert cell.execute(size, now) == expected


# -- in a program


def indirect(size: int, index: dict[str, Any]) -> ProgramBuilder:
    made = scratch_program(BYTES)
    made.meters = [{"name": "m", "id": 0, "rate_count": 2, "type": "packets", "size": size}]
    made.do("ingress", [call("execute_meter", meter("m"), index, B), send_to(2)])
    return made


def test_an_indirect_meter_puts_the_colour_into_its_field() -> None:
    switch = indirect(256, A).switch()
    assert switch.pipeline is not None
    switch.pipeline.meters["m"].write(7, MeterConfig(1, 1, 1, 2))
    colours = [one(switch, bytes([7, 9]), now=0)[1][1] for _ in range(3)]
    assert colours == [GREEN, YELLOW, RED]
    assert one(switch, bytes([8, 9]), now=0)[1][1] == GREEN
    assert one(switch, bytes([7, 9]), now=2_000_000)[1][1] == GREEN


def test_out_of_range_leaves_the_field_alone() -> None:
    switch = indirect(4, A).switch()
    assert one(switch, bytes([3, 9]))[1] == bytes([3, 0])
    assert one(switch, bytes([4, 9]))[1] == bytes([4, 9])


def test_a_meter_whose_colour_nobody_reads_still_counts() -> None:
    made = scratch_program(BYTES)
    made.metadata(ignored=2)
    made.meters = [{"name": "m", "id": 0, "rate_count": 2, "type": "packets", "size": 1}]
    made.do("ingress", [call("execute_meter", meter("m"), num(0), meta("ignored"))])
    made.do("egress", [call("execute_meter", meter("m"), num(0), B)])
    switch = made.switch()
    assert switch.pipeline is not None
    switch.pipeline.meters["m"].write(0, MeterConfig(1, 1, 1, 2))
    assert one(switch, bytes(2), now=0)[1][1] == YELLOW
    assert one(switch, bytes(2), now=0)[1][1] == RED


def direct(**options: Any) -> ProgramBuilder:
    made = scratch_program(BYTES)
    made.meters = [
        {
            "name": "m", "id": 0, "rate_count": 2, "type": "packets", "size": 16,
            "is_direct": True, "binding": "t", "result_target": ["h", "b"],
        }
    ]  # fmt: skip
    put = made.action("put", [assign(A, arg(0))], {"v": 8})
    made.table("ingress", "t", [key("exact", A)], [put], direct_meters="m", **options)
    return made


def rows(table: Table, *keys: int) -> None:
    for value in keys:
        table.insert(Entry((Exact(value),), 0, ActionCall("put", (value + 100,))))


def test_a_direct_meter_works_per_entry_and_on_hits_only() -> None:
    switch = direct().switch()
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    rows(table, 1, 2)
    table.write_meter((Exact(1),), 0, MeterConfig(1, 1, 1, 2))
    assert [one(switch, bytes([1, 9]), now=0)[1] for _ in range(3)] == [
        bytes([101, GREEN]),
        bytes([101, YELLOW]),
        bytes([101, RED]),
    ]
    assert one(switch, bytes([2, 9]), now=0)[1] == bytes([102, GREEN])
    assert one(switch, bytes([3, 9]), now=0)[1] == bytes([3, 9])


def test_a_default_action_is_not_metered() -> None:
    made = direct(
        default_entry={
            "action_id": 0, "action_const": False, "action_data": ["0x5"],
            "action_entry_const": False,
        }
    )  # fmt: skip
    assert one(made.switch(), bytes([3, 9]))[1] == bytes([5, 9])


def test_modifying_an_entry_keeps_its_meter_and_a_new_entry_has_a_new_one() -> None:
    switch = direct().switch()
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    rows(table, 1)
    config = MeterConfig(1, 1, 1, 1)
    table.write_meter((Exact(1),), 0, config)
    table.modify(Entry((Exact(1),), 0, ActionCall("put", (9,))))
    assert table.read_meter((Exact(1),)) == config
    assert [one(switch, bytes([1, 9]), now=0)[1] for _ in range(2)] == [b"\x09\0", b"\x09\2"]
    table.delete((Exact(1),))
    rows(table, 1)
    assert table.read_meter((Exact(1),)) is None


def test_beside_a_direct_counter() -> None:
    made = direct(with_counters=True)
    made.counters = [{"name": "c", "id": 0, "is_direct": True, "binding": "t"}]
    switch = made.switch()
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    rows(table, 1)
    table.write_meter((Exact(1),), 0, MeterConfig(1, 1, 1, 1))
    assert [one(switch, bytes([1, 9]), now=0)[1][1] for _ in range(2)] == [GREEN, RED]
    assert table.read_direct((Exact(1),)) == (2, 4)
    one(switch, bytes([3, 9]))
    assert table.read_direct((Exact(1),)) == (2, 4)


def test_with_an_action_profile_the_entry_has_the_meter_not_the_member() -> None:
    made = direct(type="indirect", action_profile="p")
    made.profiles = [{"name": "p", "id": 0, "max_size": 8}]
    switch = made.switch()
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    switch.pipeline.action_profiles["p"].insert_member(1, ActionCall("put", (50,)))
    for value in (1, 2):
        table.insert(Entry((Exact(value),), 0, MemberRef(1)))
    table.write_meter((Exact(1),), 0, MeterConfig(1, 1, 1, 1))
    assert [one(switch, bytes([1, 9]), now=0)[1] for _ in range(2)] == [b"\x32\0", b"\x32\2"]
    assert one(switch, bytes([2, 9]), now=0)[1] == b"\x32\0"
    switch.pipeline.action_profiles["p"].modify_member(1, ActionCall("put", (51,)))
    assert one(switch, bytes([1, 9]), now=0)[1] == b"\x33\2"


def test_a_table_without_a_meter_has_none_to_configure() -> None:
    made = scratch_program(BYTES)
    put = made.action("put", [assign(A, arg(0))], {"v": 8})
    made.table("ingress", "t", [key("exact", A)], [put])
    table = made.compile().tables["t"]
    rows(table, 1)
    with pytest.raises(InvalidEntry, match="table t has no direct meter"):
        table.write_meter((Exact(1),), 0, None)


def test_reset_takes_all_configurations_back() -> None:
    made = direct()
    made.meters.append({"name": "n", "id": 1, "rate_count": 2, "type": "bytes", "size": 2})
    pipeline = made.compile()
    pipeline.meters["n"].write(1, MeterConfig(1, 1, 1, 1))
    rows(pipeline.tables["t"], 1)
    pipeline.reset()
    assert pipeline.meters["n"].read(1) is None
    assert pipeline.tables["t"].entries() == []
