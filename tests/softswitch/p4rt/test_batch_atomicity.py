"""CONTINUE_ON_ERROR, ROLLBACK_ON_ERROR and DATAPLANE_ATOMIC batches."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r
from p4rt_rig import NAMES, Client, details, entry, exact

from ringstep.softswitch.p4rt.errors import Code

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
ALL_OR_NOTHING = [p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC]


def l2(address: int, port: int = 1, **fields: object) -> p4r.Entity:
    return entry("l2", [exact(1, address)], NAMES.does("forward", port), **fields)


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


def counter(index: int, packets: int) -> p4r.Entity:
    return p4r.Entity(
        counter_entry=p4r.CounterEntry(
            counter_id=NAMES["per_port"],
            index=p4r.Index(index=index),
            data=p4r.CounterData(packet_count=packets),
        )
    )


def count(address: int, packets: int) -> p4r.Entity:
    return p4r.Entity(
        direct_counter_entry=p4r.DirectCounterEntry(
            table_entry=p4r.TableEntry(table_id=NAMES["l2"], match=[exact(1, address)]),
            data=p4r.CounterData(packet_count=packets),
        )
    )


def seed(value: int) -> p4r.Entity:
    return entry(
        "settings", [], NAMES.does("set_seed", value), is_default_action=True, metadata=b"m"
    )


def everything(client: Client) -> list[p4r.Entity]:
    return client.read(
        p4r.Entity(table_entry=p4r.TableEntry()),
        p4r.Entity(table_entry=p4r.TableEntry(is_default_action=True)),
        p4r.Entity(action_profile_member=p4r.ActionProfileMember()),
        p4r.Entity(action_profile_group=p4r.ActionProfileGroup()),
        p4r.Entity(counter_entry=p4r.CounterEntry()),
        p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry()),
    )


def test_continue_on_error_attempts_every_update(client: Client) -> None:
    with pytest.raises(grpc.RpcError):
        client.insert(l2(1), l2(1), l2(2))
    assert len(client.read(entry("l2"))) == 2


@pytest.mark.parametrize("atomicity", ALL_OR_NOTHING)
def test_batch_that_succeeds_is_applied(client: Client, atomicity: int) -> None:
    client.insert(l2(1), l2(2), atomicity=atomicity)
    assert len(client.read(entry("l2"))) == 2


@pytest.mark.parametrize("atomicity", ALL_OR_NOTHING)
def test_batch_that_fails_leaves_everything_as_it_was(client: Client, atomicity: int) -> None:
    client.insert(l2(1), member(1, 1), counter_free := member(2, 2))
    client.insert(group(1, 1), group(2, 2))
    client.modify(count(1, 44), counter(3, 5), seed(1))
    before = everything(client)
    batch = [
        (MODIFY, l2(1, 9, metadata=b"new")),
        (MODIFY, count(1, 1)),
        (DELETE, l2(1)),
        (INSERT, l2(5)),
        (MODIFY, member(1, 7)),
        (INSERT, member(3, 3)),
        (MODIFY, group(1, 1, 3)),
        (INSERT, group(3, 3)),
        (DELETE, group(2)),
        (DELETE, counter_free),
        (MODIFY, counter(3, 99)),
        (MODIFY, seed(2)),
        (DELETE, l2(77)),
        (INSERT, l2(6)),
    ]
    with pytest.raises(grpc.RpcError) as caught:
        client.write_updates(
            [p4r.Update(type=kind, entity=one) for kind, one in batch], atomicity=atomicity
        )
    codes = [Code(one.canonical_code) for one in details(caught.value)]
    assert codes == [Code.ABORTED] * 12 + [Code.NOT_FOUND] + [Code.ABORTED]
    messages = [one.message for one in details(caught.value)]
    assert messages[0].startswith("rolled back")
    assert messages[13].startswith("not attempted")
    assert everything(client) == before


def test_unknown_atomicity_is_invalid(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.insert(l2(1), atomicity=7)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_update_that_fails_half_way_leaves_no_trace(client: Client) -> None:
    with pytest.raises(grpc.RpcError):
        client.insert(l2(1, counter_data=p4r.CounterData(packet_count=-1)))
    assert client.read(entry("l2")) == []
