"""Copies of packets: multicast, clones, resubmission, recirculation, truncation.

What is expected stands in BMv2's docs/simple_switch.md and in its ingress_thread and
egress_thread; tests/p4 runs a program with all of them on BMv2 itself where it is installed.
"""

from __future__ import annotations

from typing import Any

import pytest
from bmv2_json import (
    ProgramBuilder,
    arg,
    assign,
    call,
    extract,
    field,
    header,
    jump_if_zero,
    key,
    meta,
    num,
    op,
    scratch_program,
    send_to,
    std,
    through,
)

from ringstep.softswitch.engine import MAX_COMING_BACK, MAX_PASSES, Switch
from ringstep.softswitch.queueing import QueueConfig
from ringstep.softswitch.replication import CloneSession, Replica
from ringstep.softswitch.tables import ActionCall, Entry, Exact

BYTES = {"a": 8, "b": 8, "c": 8, "d": 8}
A, B, C, D = (field("h", name) for name in BYTES)
FRAME = bytes([1, 2, 3, 4]) + b"payload"
KIND, RID = std("instance_type"), std("egress_rid")


def program(**metadata: int) -> ProgramBuilder:
    made = scratch_program(BYTES)
    if metadata:
        made.metadata(**metadata)
    return made


def note(target: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    return assign(target, source)


def when(condition: dict[str, Any], *primitives: dict[str, Any]) -> list[dict[str, Any]]:
    """The body of an action that runs `primitives` where a data value is not zero."""
    return [jump_if_zero(op("d2b", None, condition), 1 + len(primitives)), *primitives]


def equals(value: dict[str, Any], number: int) -> dict[str, Any]:
    return op("==", value, num(number))


def switch_with(
    made: ProgramBuilder,
    groups: dict[int, list[Replica]] | None = None,
    sessions: dict[int, CloneSession] | None = None,
    **options: Any,
) -> Switch:
    switch = made.switch(**options)
    assert switch.pipeline is not None
    for group, replicas in (groups or {}).items():
        switch.pipeline.replication.set_group(group, tuple(replicas))
    for session, config in (sessions or {}).items():
        switch.pipeline.replication.set_session(session, config)
    return switch


# -- multicast


def multicast(group: int = 7) -> ProgramBuilder:
    made = program()
    made.do("ingress", [assign(std("mcast_grp"), num(group)), send_to(9), assign(A, num(0x11))])
    made.do("egress", [note(B, RID), note(C, KIND), note(D, std("egress_port"))])
    return made


def test_a_multicast_packet_leaves_once_per_replica() -> None:
    replicas = [Replica(5, 2), Replica(3, 1), Replica(4, 2), Replica(3, 2)]
    sent = through(switch_with(multicast(), {7: replicas}), FRAME)
    assert [(port, frame[:4]) for port, frame in sent] == [
        (3, bytes([0x11, 1, 5, 3])),
        (3, bytes([0x11, 2, 5, 3])),
        (4, bytes([0x11, 2, 5, 4])),
        (5, bytes([0x11, 2, 5, 5])),
    ]
    assert all(frame[4:] == b"payload" for _, frame in sent)


def test_an_unknown_group_makes_no_copies_and_no_unicast() -> None:
    switch = switch_with(multicast(), {8: [Replica(3)]})
    assert through(switch, FRAME) == []
    assert switch.port_stats()[1].ingress_drops == 0


def test_group_zero_is_unicast() -> None:
    ((port, frame),) = through(switch_with(multicast(0), {7: [Replica(3)]}), FRAME)
    assert (port, frame[:4]) == (9, bytes([0x11, 0, 0, 9]))


def test_mark_to_drop_takes_the_group_back_and_a_later_port_does_not() -> None:
    made = program()
    made.do("ingress", [assign(std("mcast_grp"), num(7))])
    made.do("ingress", [call("mark_to_drop", header("standard_metadata"))])
    made.do("ingress", when(equals(A, 1), send_to(2)))
    switch = switch_with(made, {7: [Replica(3)]})
    assert [port for port, _ in through(switch, FRAME)] == [2]
    assert through(switch, bytes([0]) + FRAME[1:]) == []
    assert switch.port_stats()[1].ingress_drops == 1


def test_a_group_beats_the_drop_port() -> None:
    made = program()
    made.do("ingress", [call("mark_to_drop", header("standard_metadata"))])
    made.do("ingress", [assign(std("mcast_grp"), num(7))])
    assert [port for port, _ in through(switch_with(made, {7: [Replica(3)]}), FRAME)] == [3]


def test_every_replica_waits_in_its_own_queue() -> None:
    slow = QueueConfig(rate_pps=1000, capacity=1)
    switch = switch_with(
        multicast(), {7: [Replica(3), Replica(4), Replica(4, 1)]}, queues={4: slow}
    )
    switch.receive(1, FRAME, 0)
    switch.receive(1, FRAME, 0)
    assert [port for port, _ in switch.advance(0)] == [3, 4, 3]
    assert [port for port, _ in switch.advance(2000)] == [4]
    assert switch.port_stats()[4].tail_drops == 2


def test_egress_changes_to_one_copy_do_not_show_in_another() -> None:
    made = program(m=8)
    made.do("ingress", [assign(std("mcast_grp"), num(7)), assign(meta("m"), num(1))])
    made.do("egress", [assign(A, op("+", A, meta("m"))), assign(meta("m"), num(99))])
    switch = switch_with(made, {7: [Replica(3), Replica(4), Replica(5)]})
    assert [frame[0] for _, frame in through(switch, FRAME)] == [2, 2, 2]


def test_mark_to_drop_of_a_copy_of_the_metadata_drops_only_when_copied_back() -> None:
    # p4c copies standard_metadata into another instance for sub-controls.
    made = program()
    made.headers.append(("smeta", "standard_metadata", True))
    made.do("ingress", [send_to(4), call("mark_to_drop", header("smeta"))])
    assert [port for port, _ in through(made.switch(), FRAME)] == [4]
    made.do("ingress", [assign(std("egress_spec"), field("smeta", "egress_spec"))])
    assert through(made.switch(), FRAME) == []


# -- clones made in ingress


def clones_in_ingress(*kept: dict[str, Any]) -> ProgramBuilder:
    """Clones every packet to session 5, changes the original, and writes metadata into both."""
    made = program(m=8, n=8)
    keep = made.field_list(*kept)
    made.do(
        "ingress",
        [
            assign(meta("m"), num(0x22)),
            assign(meta("n"), num(0x33)),
            call("clone_ingress_pkt_to_egress", num(5), keep),
            assign(A, num(0xEE)),
            assign(meta("m"), num(0x44)),
            send_to(2),
        ],
    )
    made.do("egress", [note(B, meta("m")), note(C, KIND), note(D, meta("n"))])
    return made


def test_a_clone_is_the_packet_as_it_came_with_the_metadata_of_its_list() -> None:
    sessions = {5: CloneSession((Replica(8, 1), Replica(9, 2)))}
    sent = through(switch_with(clones_in_ingress(meta("m")), sessions=sessions), FRAME)
    assert [(port, frame) for port, frame in sent] == [
        # The value at the end of ingress, not at the call.
        (8, bytes([1, 0x44, 1, 0]) + b"payload"),
        (9, bytes([1, 0x44, 1, 0]) + b"payload"),
        (2, bytes([0xEE, 0x44, 0, 0x33]) + b"payload"),
    ]


def test_a_clone_of_an_empty_list_loses_its_metadata_ingress_port_included() -> None:
    made = clones_in_ingress()
    made.do("egress", [note(A, std("ingress_port"))])
    sent = through(switch_with(made, sessions={5: CloneSession((Replica(8),))}), FRAME, port=3)
    assert [(port, frame[:4]) for port, frame in sent] == [
        (8, bytes([0, 0, 1, 0])),
        (2, bytes([3, 0x44, 0, 0x33])),
    ]


def test_a_list_can_keep_standard_metadata() -> None:
    made = clones_in_ingress(std("ingress_port"))
    made.do("egress", [note(A, std("ingress_port"))])
    sent = through(switch_with(made, sessions={5: CloneSession((Replica(8),))}), FRAME, port=3)
    assert [frame[0] for _, frame in sent] == [3, 3]


def test_the_original_may_be_dropped_and_the_clone_lives() -> None:
    made = program()
    keep = made.field_list()
    made.do("ingress", [call("clone_ingress_pkt_to_egress", num(5), keep)])
    made.do("ingress", [call("mark_to_drop", header("standard_metadata"))])
    switch = switch_with(made, sessions={5: CloneSession((Replica(8),))})
    assert through(switch, FRAME) == [(8, FRAME)]
    assert switch.port_stats()[1].ingress_drops == 1


@pytest.mark.parametrize("session", [4, 5 + 0x8000])
def test_sessions_are_15_bits_and_unknown_ones_make_no_clones(session: int) -> None:
    made = program()
    made.do("ingress", [call("clone_ingress_pkt_to_egress", num(session), made.field_list())])
    made.do("ingress", [send_to(2)])
    sent = through(switch_with(made, sessions={5: CloneSession((Replica(8),))}), FRAME)
    assert [port for port, _ in sent] == ([8, 2] if session != 4 else [2])


def test_session_zero_is_a_session() -> None:
    made = program()
    made.do("ingress", [call("clone_ingress_pkt_to_egress", num(0), made.field_list())])
    sent = through(switch_with(made, sessions={0: CloneSession((Replica(8),))}), FRAME)
    assert sorted(port for port, _ in sent) == [0, 8]


def test_the_last_call_decides_and_each_list_keeps_its_own() -> None:
    made = program(m=8, n=8)
    first, second = made.field_list(meta("m")), made.field_list(meta("n"), meta("m"))
    made.do("ingress", [assign(meta("m"), num(1)), assign(meta("n"), num(2)), send_to(2)])
    made.do("ingress", [call("clone_ingress_pkt_to_egress", num(5), first)])
    made.do("ingress", when(equals(A, 9), call("clone_ingress_pkt_to_egress", num(6), second)))
    made.do("egress", [note(B, meta("m")), note(C, meta("n"))])
    sessions = {5: CloneSession((Replica(8),)), 6: CloneSession((Replica(9),))}
    switch = switch_with(made, sessions=sessions)
    assert [(p, f[1:3]) for p, f in through(switch, FRAME)] == [(8, b"\1\0"), (2, b"\1\2")]
    sent = through(switch, bytes([9]) + FRAME[1:])
    assert [(p, f[1:3]) for p, f in sent] == [(9, b"\1\2"), (2, b"\1\2")]


@pytest.mark.parametrize(("length", "left"), [(0, 11), (3, 3), (5, 5), (99, 11)])
def test_a_session_may_cut_its_clones(length: int, left: int) -> None:
    session = CloneSession((Replica(8),), max_length=length)
    sent = dict(through(switch_with(clones_in_ingress(), sessions={5: session}), FRAME))
    assert (len(sent[8]), len(sent[2])) == (left, 11)


# -- clones made in egress


def clones_in_egress() -> ProgramBuilder:
    """Egress adds 1 to `a` and clones what is not a clone, after `m` was set in ingress."""
    made = program(m=8, n=8)
    keep = made.field_list(meta("n"))
    made.do("ingress", [send_to(2), assign(meta("m"), num(0x22)), assign(meta("n"), num(0x33))])
    made.do(
        "egress", [assign(A, op("+", A, num(1))), assign(meta("n"), op("+", meta("n"), num(1)))]
    )
    made.do(
        "egress",
        when(op("!=", KIND, num(2)), call("clone_egress_pkt_to_egress", num(5), keep)),
    )
    made.do("egress", [note(B, meta("m")), note(C, KIND), note(D, meta("n"))])
    return made


def test_a_clone_made_in_egress_is_the_packet_as_it_leaves_and_passes_egress_again() -> None:
    switch = switch_with(clones_in_egress(), sessions={5: CloneSession((Replica(8, 3),))})
    assert through(switch, FRAME) == [
        (2, bytes([2, 0x22, 0, 0x34]) + b"payload"),
        (8, bytes([3, 0, 2, 0x35]) + b"payload"),
    ]


def test_headers_that_egress_added_or_removed_are_so_in_the_clone() -> None:
    made = program()
    made.header("extra", [["x", 8]])
    keep = made.field_list()
    made.do("ingress", [send_to(2)])
    made.do("egress", [assign(A, op("+", A, num(1)))])
    made.do(
        "egress",
        when(
            op("!=", KIND, num(2)),
            call("add_header", header("extra")),
            assign(field("extra", "x"), num(0xAB)),
            call("clone_egress_pkt_to_egress", num(5), keep),
        ),
    )
    made.do("egress", when(op("==", KIND, num(2)), call("remove_header", header("h"))))
    switch = switch_with(made, sessions={5: CloneSession((Replica(8),))})
    assert through(switch, FRAME) == [
        (2, bytes([2, 2, 3, 4]) + b"\xabpayload"),
        (8, b"\xabpayload"),
    ]


def test_the_original_may_be_dropped_in_egress() -> None:
    made = program()
    keep = made.field_list()
    made.do("egress", [call("clone_egress_pkt_to_egress", num(5), keep)])
    made.do(
        "egress", when(op("==", KIND, num(0)), call("mark_to_drop", header("standard_metadata")))
    )
    made.do("egress", when(op("!=", KIND, num(0)), assign(A, num(7))))
    switch = switch_with(made, sessions={5: CloneSession((Replica(8),))})
    switch.receive(1, FRAME, 0)
    # Each clone is cloned again: what ends it is the limit.
    sent = switch.advance(0)
    assert [port for port, _ in sent] == [8] * MAX_PASSES
    assert switch.stats.copy_drops == 1


def test_a_clone_may_be_delayed_by_its_queue() -> None:
    switch = switch_with(
        clones_in_egress(),
        sessions={5: CloneSession((Replica(8),))},
        queues={8: QueueConfig(rate_bps=8e6), 2: QueueConfig(rate_bps=8e6)},
    )
    switch.receive(1, FRAME, 0)
    assert switch.advance(10) == []
    assert [port for port, _ in switch.advance(11)] == [2]
    assert [port for port, _ in switch.advance(21)] == []
    assert [port for port, _ in switch.advance(22)] == [8]


# -- resubmission


def resubmits(*kept: str) -> ProgramBuilder:
    made = program(m=8, n=8)
    keep = made.field_list(*(meta(name) for name in kept))
    made.do("ingress", [assign(meta("m"), op("+", meta("m"), num(1)))])
    made.do(
        "ingress", [assign(meta("n"), op("+", meta("n"), num(1))), assign(A, op("+", A, num(1)))]
    )
    made.do("ingress", when(op("!=", KIND, num(6)), call("resubmit", keep)))
    made.do("ingress", [send_to(2), note(B, KIND), note(C, std("ingress_port"))])
    made.do("ingress", [note(D, meta("m"))])
    return made


def test_a_resubmitted_packet_is_the_one_that_came_in() -> None:
    assert through(resubmits("m").switch(), FRAME, port=3) == [
        (2, bytes([2, 6, 0, 2]) + b"payload")
    ]
    assert through(resubmits().switch(), FRAME, port=3)[0][1][3] == 1


def test_resubmission_comes_before_multicast_and_after_clones() -> None:
    made = program()
    keep = made.field_list()
    made.do("ingress", [assign(std("mcast_grp"), num(7))])
    made.do("ingress", [call("clone_ingress_pkt_to_egress", num(5), keep)])
    made.do("ingress", when(op("!=", KIND, num(6)), call("resubmit", keep)))
    made.do("egress", [note(A, KIND)])
    switch = switch_with(made, {7: [Replica(3)]}, {5: CloneSession((Replica(8),))})
    sent = through(switch, FRAME)
    assert [(port, frame[0]) for port, frame in sent] == [(8, 1), (8, 1), (3, 5)]


def test_resubmission_without_end_is_cut_and_counted() -> None:
    made = program()
    made.do("ingress", [call("resubmit", made.field_list())])
    switch = made.switch()
    assert through(switch, FRAME) == []
    assert switch.stats.copy_drops == 1
    assert switch.port_stats()[1].ingress_drops == 0


# -- recirculation


def test_a_recirculated_packet_enters_as_it_would_have_left() -> None:
    made = program(m=8)
    made.header("extra", [["x", 8]])
    keep = made.field_list(meta("m"))
    made.do("ingress", [send_to(2), assign(meta("m"), op("+", meta("m"), num(1)))])
    made.do("ingress", [note(B, KIND), note(C, std("packet_length"))])
    made.do("egress", [assign(D, meta("m")), assign(A, op("+", A, num(1)))])
    made.do(
        "egress",
        when(
            op("<", meta("m"), num(4)),
            call("add_header", header("extra")),
            assign(field("extra", "x"), meta("m")),
            call("recirculate", keep),
        ),
    )
    switch = made.switch()
    assert through(switch, FRAME, port=3) == [
        (2, bytes([5, 4, 14, 4]) + b"\3\2\1payload"),
    ]
    assert switch.port_stats()[2].tx_packets == 1


def test_recirculate_called_in_ingress_waits_for_the_end_of_egress() -> None:
    made = program()
    keep = made.field_list()
    made.do("ingress", [send_to(2)])
    made.do("ingress", when(op("==", KIND, num(0)), call("recirculate", keep)))
    made.do("egress", [assign(A, op("+", A, num(1)))])
    assert through(made.switch(), FRAME) == [(2, bytes([3]) + FRAME[1:])]


def test_a_dropped_packet_is_not_recirculated() -> None:
    made = program()
    made.do("egress", [call("recirculate", made.field_list())])
    made.do("egress", [call("mark_to_drop", header("standard_metadata"))])
    switch = made.switch()
    assert through(switch, FRAME) == []
    assert switch.port_stats()[0].egress_drops == 1


def test_recirculation_without_end_is_cut_and_counted() -> None:
    made = program()
    made.do("egress", [call("recirculate", made.field_list())])
    switch = made.switch()
    assert through(switch, FRAME) == []
    assert switch.stats.copy_drops == 1


def test_packets_that_multiply_without_end_are_bounded() -> None:
    made = program()
    keep = made.field_list()
    made.do("egress", [call("clone_egress_pkt_to_egress", num(5), keep)])
    made.do("egress", [call("recirculate", keep)])
    switch = switch_with(made, sessions={5: CloneSession((Replica(1), Replica(2)))})
    assert through(switch, FRAME) == []
    assert switch.stats.copy_drops > MAX_COMING_BACK


def test_a_packet_of_a_replaced_pipeline_does_not_come_back() -> None:
    made = program()
    made.do("egress", [call("recirculate", made.field_list())])
    switch = made.switch(queues={0: QueueConfig(rate_bps=8e6)})
    switch.receive(1, FRAME, 0)
    switch.commit(made.compile())
    assert switch.advance(1000) == []
    assert switch.stats.copy_drops == 1


# -- truncation


@pytest.mark.parametrize("control", ["ingress", "egress"])
@pytest.mark.parametrize(
    ("lengths", "left"), [([0], 0), ([3], 3), ([9, 5], 5), ([5, 9], 5), ([99], 11)]
)
def test_the_shortest_truncation_counts(control: str, lengths: list[int], left: int) -> None:
    made = program()
    made.do("ingress", [send_to(2)])
    for length in lengths:
        made.do(control, [call("truncate", num(length))])
    made.do("egress", [assign(A, num(0x77))])
    expected = (bytes([0x77]) + FRAME[1:])[:left]
    assert through(made.switch(), FRAME) == [(2, expected)]


def test_a_truncated_packet_recirculates_truncated() -> None:
    made = program(first=8)
    keep = made.field_list()
    made.do("ingress", [send_to(2), note(B, std("packet_length"))])
    made.do("ingress", when(op("==", KIND, num(0)), assign(meta("first"), num(1))))
    made.do("egress", when(meta("first"), call("truncate", num(6)), call("recirculate", keep)))
    assert through(made.switch(), FRAME) == [(2, bytes([1, 6, 3, 4]) + b"pa")]


# -- what may stand where


def test_entries_choose_what_is_copied() -> None:
    made = program()
    keep = made.field_list()
    clone = made.action(
        "clone_to", [call("clone_ingress_pkt_to_egress", arg(0), keep)], {"session": 16}
    )
    group = made.action("to_group", [assign(std("mcast_grp"), arg(0))], {"group": 16})
    made.table("ingress", "t", [key("exact", A)], [clone, group])
    switch = switch_with(made, {3: [Replica(3), Replica(4)]}, {9: CloneSession((Replica(8),))})
    assert switch.pipeline is not None
    table = switch.pipeline.tables["t"]
    table.insert(Entry((Exact(1),), 0, ActionCall("clone_to", (9,))))
    table.insert(Entry((Exact(2),), 0, ActionCall("to_group", (3,))))
    ports = {a: [p for p, _ in through(switch, bytes([a]) + FRAME[1:])] for a in (1, 2, 3)}
    assert ports == {1: [8, 0], 2: [3, 4], 3: [0]}


def test_a_packet_too_short_for_its_header_is_copied_as_well() -> None:
    made = program()
    made.states[0]["parser_ops"].append(extract("h2"))
    made.header("h2", [["z", 32]])
    made.do("ingress", [assign(std("mcast_grp"), num(7))])
    switch = switch_with(made, {7: [Replica(3)]})
    assert through(switch, FRAME[:6]) == [(3, FRAME[:6])]
