"""What is written over P4Runtime is what packets meet."""

from __future__ import annotations

import queue

import grpc
import pytest
from finsy.proto import p4r
from p4rt_rig import (
    NAMES,
    Client,
    Rig,
    entry,
    ethernet,
    exact,
    ipv4,
    lpm,
    optional,
    ternary,
)


def ports(rig: Rig) -> list[int]:
    """The ports of all frames that left since the last call."""
    found = []
    while True:
        try:
            found.append(rig.sent.get_nowait()[0])
        except queue.Empty:
            return found


def test_exact_entry_forwards_until_it_is_deleted(client: Client, rig: Rig) -> None:
    rig.receive(1, ethernet(0x02AA))
    assert ports(rig) == []
    one = entry("l2", [exact(1, 0x02AA)], NAMES.does("forward", 5))
    client.insert(one)
    rig.receive(1, ethernet(0x02AA))
    assert ports(rig) == [5]
    client.modify(entry("l2", [exact(1, 0x02AA)], NAMES.does("forward", 6)))
    rig.receive(1, ethernet(0x02AA))
    assert ports(rig) == [6]
    client.delete(one)
    rig.receive(1, ethernet(0x02AA))
    assert ports(rig) == []


def test_counters_count_packets_and_bytes(client: Client, rig: Rig) -> None:
    client.insert(entry("l2", [exact(1, 2)], NAMES.does("forward", 5)))
    for _ in range(3):
        rig.receive(4, ethernet(2, bytes(50)))
    [counted] = client.read(entry("l2", counter_data=p4r.CounterData()))
    assert counted.table_entry.counter_data == p4r.CounterData(packet_count=3, byte_count=192)
    cell = p4r.CounterEntry(counter_id=NAMES["per_port"], index=p4r.Index(index=4))
    [indirect] = client.read(p4r.Entity(counter_entry=cell))
    assert indirect.counter_entry.data == p4r.CounterData(packet_count=3, byte_count=192)


def test_higher_priority_wins(client: Client, rig: Rig) -> None:
    client.insert(
        entry("l2", [exact(1, 2)], NAMES.does("forward", 5)),
        entry("acl", [optional(3, 0x88B5)], NAMES.does("set_class", 2), priority=1),
        entry("acl", [ternary(1, 0, 1)], NAMES.does("set_class", 3), priority=2),
    )
    rig.receive(1, ethernet(2))
    per_class = client.read(
        p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=NAMES["per_class"]))
    )
    assert [one.counter_entry.data.packet_count for one in per_class] == [0, 0, 0, 1, 0, 0, 0, 0]


def member(member_id: int, port: int) -> p4r.Entity:
    return p4r.Entity(
        action_profile_member=p4r.ActionProfileMember(
            action_profile_id=NAMES["ecmp"],
            member_id=member_id,
            action=NAMES.action("rewrite", port, 2, 3),
        )
    )


def group(group_id: int, *members: int) -> p4r.Entity:
    return p4r.Entity(
        action_profile_group=p4r.ActionProfileGroup(
            action_profile_id=NAMES["ecmp"],
            group_id=group_id,
            members=[p4r.ActionProfileGroup.Member(member_id=one, weight=1) for one in members],
        )
    )


ROUTE = entry("route", [lpm(1, 0x0A000000, 8)], NAMES.does("set_nexthop", 7))


def spread(rig: Rig) -> set[int]:
    for source in range(64):
        rig.receive(1, ipv4(0x0A000001, source))
    return set(ports(rig))


def test_group_spreads_flows_over_its_members(client: Client, rig: Rig) -> None:
    client.insert(ROUTE, member(1, 11), member(2, 12), member(3, 13))
    client.insert(group(1, 1, 2))
    to_group = p4r.TableAction(action_profile_group_id=1)
    client.insert(entry("nexthop", [exact(1, 7)], to_group))
    assert spread(rig) == {11, 12}
    client.modify(group(1, 2, 3))
    assert spread(rig) == {12, 13}
    client.modify(member(2, 22))
    assert spread(rig) == {22, 13}


def test_one_shot_group_spreads_flows_over_its_actions(client: Client, rig: Rig) -> None:
    chosen = p4r.ActionProfileActionSet()
    for port in (31, 32):
        chosen.action_profile_actions.add(action=NAMES.action("rewrite", port, 2, 3), weight=1)
    action = p4r.TableAction(action_profile_action_set=chosen)
    client.insert(ROUTE, entry("nexthop", [exact(1, 7)], action))
    assert spread(rig) == {31, 32}


def test_default_action_is_in_force(client: Client, rig: Rig) -> None:
    client.modify(entry("settings", [], NAMES.does("set_seed", 0xABC), is_default_action=True))
    packet = p4r.PacketOut(payload=ethernet(1))
    packet.metadata.add(metadata_id=1, value=b"\x04")
    packet.metadata.add(metadata_id=2, value=b"\x00")
    client.streams[0].send(p4r.StreamMessageRequest(packet=packet))
    assert rig.sent.get(timeout=20)[0] == 4
    assert rig.switch.pipeline is not None
    assert rig.switch.pipeline.registers["EntitiesIngress.scratch"].values[0] == 0xABC


def test_saved_config_forwards_only_after_commit(client: Client, rig: Rig) -> None:
    actions = p4r.SetForwardingPipelineConfigRequest
    client.insert(entry("l2", [exact(1, 2)], NAMES.does("forward", 5)))
    client.push(actions.VERIFY_AND_SAVE)
    client.insert(entry("l2", [exact(1, 2)], NAMES.does("forward", 6)))
    rig.receive(1, ethernet(2))
    assert ports(rig) == [5]
    client.set_config(actions.COMMIT, None)
    rig.receive(1, ethernet(2))
    assert ports(rig) == [6]


def test_rolled_back_batch_is_never_seen_by_packets(client: Client, rig: Rig) -> None:
    one = entry("l2", [exact(1, 2)], NAMES.does("forward", 5))
    client.insert(one)
    good = p4r.Update(
        type=p4r.Update.MODIFY, entity=entry("l2", [exact(1, 2)], NAMES.does("forward", 6))
    )
    bad = p4r.Update(type=p4r.Update.INSERT, entity=one)
    with pytest.raises(grpc.RpcError):
        client.write_updates([good, bad], atomicity=p4r.WriteRequest.DATAPLANE_ATOMIC)
    rig.receive(1, ethernet(2))
    assert ports(rig) == [5]
