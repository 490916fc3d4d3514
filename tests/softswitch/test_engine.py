"""The switch as a whole: drops, exit, state, randomness, replay, swapping programs."""

from __future__ import annotations

import pytest
from bmv2_json import (
    ProgramBuilder,
    arg,
    assign,
    call,
    counter,
    extract,
    field,
    header,
    jump_if_zero,
    key,
    num,
    one,
    op,
    register,
    scratch_program,
    send_to,
    std,
    through,
)

from ringstep.softswitch import hashes
from ringstep.softswitch.engine import Switch, seeded_rng
from ringstep.softswitch.queueing import QueueConfig
from ringstep.softswitch.tables import (
    ActionCall,
    ActionSet,
    Entry,
    Exact,
    GroupRef,
    InUse,
    InvalidEntry,
    MemberRef,
    Ternary,
)

BYTES = {"a": 8, "b": 8}
A, B = field("h", "a"), field("h", "b")


def drop() -> dict[str, object]:
    return call("mark_to_drop", header("standard_metadata"))


def test_egress_spec_starts_at_port_0() -> None:
    assert one(scratch_program(BYTES).switch(), b"xy") == (0, b"xy")


@pytest.mark.parametrize("control", ["ingress", "egress"])
def test_dropped_packets_are_counted_where_they_die(control: str) -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [send_to(3)])
    program.do(control, [drop()])
    switch = program.switch()
    assert through(switch, b"xy") == []
    stats = switch.port_stats()
    if control == "ingress":
        assert stats[1].ingress_drops == 1
    else:
        assert stats[3].egress_drops == 1


def test_a_packet_marked_to_drop_can_be_sent_after_all() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [drop(), send_to(4)])
    assert one(program.switch(), b"xy")[0] == 4


def test_exit_finishes_the_action_and_skips_the_rest_of_the_control() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [jump_if_zero(A, 2), call("exit"), assign(B, num(1))])
    program.do("ingress", [assign(B, num(2))])
    program.do("egress", [assign(A, op("+", A, num(1)))])
    switch = program.switch()
    assert one(switch, bytes([5, 0]))[1] == bytes([6, 1])
    assert one(switch, bytes([0, 0]))[1] == bytes([1, 2])


def test_registers_are_truncated_and_guarded() -> None:
    program = scratch_program(BYTES)
    program.registers = [{"name": "r", "id": 0, "size": 4, "bitwidth": 4}]
    program.do(
        "ingress",
        [
            call("register_write", register("r"), A, B),
            call("register_read", B, register("r"), A),
        ],
    )
    switch = program.switch()
    assert one(switch, bytes([3, 0x1F]))[1] == bytes([3, 0x0F])
    assert switch.pipeline is not None
    assert switch.pipeline.registers["r"].values == [0, 0, 0, 15]
    # Out of range: nothing is written, the target keeps its value.
    assert one(switch, bytes([4, 0x1F]))[1] == bytes([4, 0x1F])


def test_counters_count_packets_and_bytes_in_range() -> None:
    program = scratch_program(BYTES)
    program.counters = [{"name": "c", "id": 0, "size": 4, "is_direct": False}]
    program.do("ingress", [call("count", counter("c"), A)])
    switch = program.switch()
    for index in (1, 1, 9):
        one(switch, bytes([index, 0]) + bytes(98))
    assert switch.pipeline is not None
    assert [switch.pipeline.counters["c"].read(i) for i in range(4)] == [
        (0, 0), (2, 200), (0, 0), (0, 0)
    ]  # fmt: skip


def test_random_comes_from_the_injected_source() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [call("modify_field_rng_uniform", B, num(3), A)])
    asked: list[tuple[int, int]] = []

    def rng(low: int, high: int) -> int:
        asked.append((low, high))
        return high

    switch = program.switch(rng=rng)
    assert one(switch, bytes([200, 0]))[1] == bytes([200, 200])
    # Crossed bounds leave the target alone, and draw nothing.
    assert one(switch, bytes([2, 7]))[1] == bytes([2, 7])
    assert asked == [(3, 200)]


def test_the_seeded_source_is_uniform_and_inclusive() -> None:
    for low, high in ((0, 0), (0, 1), (5, 8), (1, 6), (0, 65535)):
        draw = seeded_rng(1)
        seen = [draw(low, high) for _ in range(500)]
        assert min(seen) >= low
        assert max(seen) <= high
        if high - low < 8:
            assert set(seen) == set(range(low, high + 1))


def test_same_inputs_same_bytes() -> None:
    def run() -> list[tuple[int, bytes]]:
        program = scratch_program(BYTES)
        program.do("ingress", [call("modify_field_rng_uniform", B, num(0), num(255)), send_to(2)])
        switch = program.switch(seed=7, queues={2: QueueConfig(rate_bps=1e6)})
        sent = []
        for index in range(50):
            switch.receive(1, bytes([index, 0]), index * 10)
            sent += switch.advance(index * 10)
        return sent + switch.advance(1e9)

    assert run() == run()


def with_table(**options: object) -> tuple[ProgramBuilder, int]:
    program = scratch_program(BYTES)
    miss = program.action("miss", [assign(B, num(0xEE))])
    put = program.action("put", [assign(B, arg(0))], {"v": 8})
    program.table(
        "ingress",
        "t",
        [key("exact", A)],
        [put, miss],
        default_entry={
            "action_id": miss, "action_const": False, "action_data": [], "action_entry_const": False
        },
        **options,
    )  # fmt: skip
    return program, put


def test_a_table_applies_its_entry_or_its_default() -> None:
    program, _ = with_table()
    switch = program.switch()
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    table.insert(Entry((Exact(7),), 0, ActionCall("put", (9,))))
    assert one(switch, bytes([7, 0]))[1] == bytes([7, 9])
    assert one(switch, bytes([8, 0]))[1] == bytes([8, 0xEE])
    table.set_default(ActionCall("put", (3,)))
    assert one(switch, bytes([8, 0]))[1] == bytes([8, 3])
    table.delete((Exact(7),))
    assert one(switch, bytes([7, 0]))[1] == bytes([7, 3])


def test_next_table_by_hit_or_miss() -> None:
    program, _ = with_table()
    table = program.tables["ingress"][-1]
    table["linked"] = True
    program.do("ingress", [send_to(5)])
    program.do("ingress", [assign(A, num(1))])
    first, second = (t["name"] for t in program.tables["ingress"][1:])
    table["next_tables"] = {"__HIT__": first, "__MISS__": second}
    switch = program.switch()
    assert switch.pipeline is not None
    switch.pipeline.tables["t"].insert(Entry((Exact(7),), 0, ActionCall("put", (9,))))
    assert one(switch, bytes([7, 0])) == (5, bytes([1, 9]))
    assert one(switch, bytes([8, 0])) == (0, bytes([1, 0xEE]))


def test_next_table_by_action() -> None:
    program, _ = with_table()
    table = program.tables["ingress"][-1]
    table["linked"] = True
    program.do("ingress", [send_to(5)])
    table["next_tables"] = {"put": program.tables["ingress"][-1]["name"], "miss": None}
    switch = program.switch()
    assert switch.pipeline is not None
    switch.pipeline.tables["t"].insert(Entry((Exact(7),), 0, ActionCall("put", (9,))))
    assert one(switch, bytes([7, 0]))[0] == 5
    assert one(switch, bytes([8, 0]))[0] == 0


def test_const_entries_low_number_is_high_priority() -> None:
    program = scratch_program(BYTES)
    put = program.action("put", [assign(B, arg(0))], {"v": 8})
    entries = [
        {
            "match_key": [{"match_type": "ternary", "key": hex(k), "mask": hex(m)}],
            "action_entry": {"action_id": put, "action_data": [hex(v)]},
            "priority": priority,
        }
        for k, m, v, priority in ((0x10, 0xF0, 1, 2), (0x11, 0xFF, 2, 1), (0, 0, 3, 3))
    ]
    program.table("ingress", "t", [key("ternary", A)], [put], entries=entries)
    switch = program.switch()
    assert [one(switch, bytes([a, 0]))[1][1] for a in (0x11, 0x12, 0x20)] == [2, 1, 3]
    assert switch.pipeline is not None
    made = switch.pipeline.tables["t"].entries()
    assert [(e.match[0], e.priority, e.is_const) for e in made] == [
        (Ternary(0x10, 0xF0), 2, True),
        (Ternary(0x11, 0xFF), 3, True),
        (Ternary(0, 0), 1, True),
    ]


def test_direct_counters_count_hits_and_survive_a_modify() -> None:
    program, _ = with_table()
    program.counters = [{"name": "dc", "id": 0, "is_direct": True, "binding": "t"}]
    switch = program.switch()
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    table.insert(Entry((Exact(7),), 0, ActionCall("put", (9,))))
    for a in (7, 7, 8):
        one(switch, bytes([a, 0, 0, 0]))
    assert table.read_direct((Exact(7),)) == (2, 8)
    table.modify(Entry((Exact(7),), 0, ActionCall("put", (1,))))
    one(switch, bytes([7, 0]))
    assert table.read_direct((Exact(7),)) == (3, 10)
    table.write_direct((Exact(7),), 0, 100, 1000)
    one(switch, bytes([7, 0]))
    assert table.read_direct((Exact(7),)) == (101, 1002)


def selecting() -> tuple[Switch, object, object]:
    program = scratch_program({**BYTES, "entropy": 16})
    put = program.action("put", [assign(B, arg(0))], {"v": 8})
    program.profiles = [
        {
            "name": "prof",
            "id": 0,
            "max_size": 8,
            "selector": {"algo": "crc16", "input": [field("h", "entropy")]},
        }
    ]
    program.table(
        "ingress", "t", [key("exact", A)], [put], type="indirect_ws", action_profile="prof"
    )
    switch = program.switch()
    assert switch.pipeline is not None
    return switch, switch.pipeline.tables["t"], switch.pipeline.action_profiles["prof"]


def test_selector_takes_the_member_at_hash_modulo_size() -> None:
    switch, table, profile = selecting()
    for member in (3, 1, 2):
        profile.insert_member(member, ActionCall("put", (10 + member,)))  # type: ignore[attr-defined]
    profile.insert_group(1, [(3, 1), (1, 2), (2, 1)])  # type: ignore[attr-defined]
    table.insert(Entry((Exact(7),), 0, GroupRef(1)))  # type: ignore[attr-defined]
    members = [11, 11, 12, 13]
    for entropy in range(200):
        frame = bytes([7, 0]) + entropy.to_bytes(2, "big")
        assert one(switch, frame)[1][1] == members[hashes.crc16(entropy, 2) % 4]


def test_members_and_groups_can_change_under_their_entries() -> None:
    switch, table, profile = selecting()
    frame = bytes([7, 0, 0, 0])
    profile.insert_member(1, ActionCall("put", (11,)))  # type: ignore[attr-defined]
    table.insert(Entry((Exact(7),), 0, MemberRef(1)))  # type: ignore[attr-defined]
    assert one(switch, frame)[1][1] == 11
    profile.modify_member(1, ActionCall("put", (99,)))  # type: ignore[attr-defined]
    assert one(switch, frame)[1][1] == 99
    with pytest.raises(InUse, match="used by table t"):
        profile.delete_member(1)  # type: ignore[attr-defined]
    profile.insert_group(1, [])  # type: ignore[attr-defined]
    table.modify(Entry((Exact(7),), 0, GroupRef(1)))  # type: ignore[attr-defined]
    assert one(switch, frame)[1][1] == 0, "an empty group does nothing"
    profile.modify_group(1, [(1, 1)])  # type: ignore[attr-defined]
    assert one(switch, frame)[1][1] == 99
    with pytest.raises(InUse, match="in group 1"):
        profile.delete_member(1)  # type: ignore[attr-defined]
    with pytest.raises(InUse):
        profile.delete_group(1)  # type: ignore[attr-defined]
    one_shot = ActionSet(((ActionCall("put", (5,)), 1),))
    table.modify(Entry((Exact(7),), 0, one_shot))  # type: ignore[attr-defined]
    assert one(switch, frame)[1][1] == 5
    with pytest.raises(InvalidEntry):
        table.insert(Entry((Exact(8),), 0, ActionCall("put", (1,))))  # type: ignore[attr-defined]


def test_hash_based_offset_stays_in_base_to_base_plus_size() -> None:
    program = scratch_program({**BYTES, "out": 16})
    program.calculations = [{"name": "calc", "id": 0, "algo": "crc32", "input": [A, B]}]
    calculation = {"type": "calculation", "value": "calc"}
    out = field("h", "out")
    program.do(
        "ingress",
        [call("modify_field_with_hash_based_offset", out, num(100), calculation, num(7))],
    )
    switch = program.switch()
    for a in range(50):
        frame = one(switch, bytes([a, 1, 0, 0]))[1]
        assert int.from_bytes(frame[2:], "big") == 100 + hashes.crc32(a << 8 | 1, 2) % 7


def test_a_failed_assertion_drops_the_packet_and_is_counted() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [call("assert", op("b2d", None, op("<", A, num(10))))])
    switch = program.switch()
    assert len(through(switch, bytes([9, 0]))) == 1
    assert through(switch, bytes([10, 0])) == []
    assert switch.stats.assertion_drops == 1
    assert "primitives[0]" in switch.stats.last_error


def test_log_messages_reach_the_programs_logger(caplog: pytest.LogCaptureFixture) -> None:
    program = scratch_program(BYTES)
    vector = {"type": "parameters_vector", "value": [A, B]}
    program.do("ingress", [call("log_msg", {"type": "string", "value": "a={} b={} 5%"}, vector)])
    with caplog.at_level("INFO", logger="ringstep.softswitch.program"):
        one(program.switch(), bytes([3, 4]))
    assert caplog.messages == ["a=3 b=4 5%"]


def test_without_a_pipeline_packets_are_dropped_and_counted() -> None:
    switch = Switch()
    switch.receive(1, b"frame", 0)
    assert switch.advance(0) == []
    assert switch.stats.no_pipeline_drops == 1


def test_a_new_program_takes_over_and_waiting_packets_leave_through_the_old() -> None:
    def marked(value: int) -> ProgramBuilder:
        program = scratch_program(BYTES)
        program.do("ingress", [send_to(2)])
        program.do("egress", [assign(B, num(value))])
        return program

    switch = marked(1).switch(queues={2: QueueConfig(rate_bps=1e6)})
    switch.receive(1, b"xy", 0)
    switch.commit(marked(2).compile())
    switch.receive(1, b"xy", 1)
    assert [f[1] for _, f in switch.advance(1000)] == [1, 2]


def test_packet_outs_enter_at_the_cpu_port() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [assign(B, std("ingress_port")), assign(std("egress_spec"), A)])
    switch = program.switch(cpu_port=200)
    switch.packet_out(bytes([200, 0]), 5)
    assert switch.advance(5) == [(200, bytes([200, 200]))]


def test_values_cross_the_queue() -> None:
    program = scratch_program(BYTES)
    program.metadata(m=8, n=12)
    program.do("ingress", [assign(field("meta", "m"), A), send_to(1)])
    program.do(
        "egress", [assign(B, op("+", field("meta", "m"), field("meta", "n"))), assign(A, num(0))]
    )
    assert one(program.switch(), bytes([42, 1]))[1] == bytes([0, 42])


def checksummed() -> ProgramBuilder:
    program = ProgramBuilder()
    program.header("ip", [["v", 4], ["w", 4], ["x", 8], ["sum", 16], ["y", 32]])
    program.state("start", [extract("ip")])
    inputs = [field("ip", n) for n in ("v", "w", "x", "y")]
    program.calculations = [{"name": "calc", "id": 0, "algo": "csum16", "input": inputs}]
    program.checksums = [
        {
            "name": "cksum",
            "id": 0,
            "target": ["ip", "sum"],
            "type": "generic",
            "calculation": "calc",
            "verify": True,
            "update": True,
            "if_cond": None,
        }
    ]
    return program


def internet_checksum(data: bytes) -> int:
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@pytest.mark.parametrize("body", [b"\x45\x00\x01\x02\x03\x04", bytes(6), b"\xff" * 6])
@pytest.mark.parametrize("right", [True, False])
def test_checksums_are_verified_and_updated(body: bytes, right: bool) -> None:
    program = checksummed()
    program.do("ingress", [assign(field("ip", "x"), std("checksum_error"))])
    given = internet_checksum(body) ^ (0 if right else 0x0101)
    _, out = one(program.switch(), body[:2] + given.to_bytes(2, "big") + body[2:])
    assert out[1] == (0 if right else 1)
    expected = internet_checksum(out[:2] + out[4:])
    assert int.from_bytes(out[2:4], "big") == expected


def test_a_checksum_with_a_condition_is_left_alone_where_it_does_not_hold() -> None:
    program = checksummed()
    program.checksums[0]["if_cond"] = op("==", field("ip", "v"), num(4))["value"]
    switch = program.switch()
    assert one(switch, b"\x50\x00\x12\x34abcd")[1] == b"\x50\x00\x12\x34abcd"
    assert one(switch, b"\x40\x00\x12\x34abcd")[1] != b"\x40\x00\x12\x34abcd"
