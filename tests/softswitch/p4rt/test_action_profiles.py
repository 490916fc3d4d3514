"""Members, groups and one-shot programming of action profiles and selectors."""

from __future__ import annotations

import grpc
import pytest
from finsy.proto import p4r
from p4rt_rig import NAMES, Client, details, entry, exact

from ringstep.softswitch.p4rt.errors import Code

INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE
ActionSet = p4r.ActionProfileActionSet


def refused(client: Client, kind: int, one: p4r.Entity) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as caught:
        client.write(kind, one)
    [error] = details(caught.value)
    return Code(error.canonical_code), error.message


def member(
    member_id: int, port: int = 1, profile: str = "ecmp", action: p4r.Action | None = None
) -> p4r.Entity:
    if action is None:
        action = (
            NAMES.action("rewrite", port, 2, 3)
            if profile == "ecmp"
            else NAMES.action("forward", port)
        )
    return p4r.Entity(
        action_profile_member=p4r.ActionProfileMember(
            action_profile_id=NAMES[profile], member_id=member_id, action=action
        )
    )


def group(
    group_id: int, *weighted: tuple[int, int], max_size: int = 0, profile: str = "ecmp"
) -> p4r.Entity:
    return p4r.Entity(
        action_profile_group=p4r.ActionProfileGroup(
            action_profile_id=NAMES[profile],
            group_id=group_id,
            max_size=max_size,
            members=[
                p4r.ActionProfileGroup.Member(member_id=member_id, weight=weight)
                for member_id, weight in weighted
            ],
        )
    )


def members_of(profile: str | None = None, member_id: int = 0) -> p4r.Entity:
    return p4r.Entity(
        action_profile_member=p4r.ActionProfileMember(
            action_profile_id=NAMES[profile] if profile else 0, member_id=member_id
        )
    )


def groups_of(profile: str | None = None, group_id: int = 0) -> p4r.Entity:
    return p4r.Entity(
        action_profile_group=p4r.ActionProfileGroup(
            action_profile_id=NAMES[profile] if profile else 0, group_id=group_id
        )
    )


def hop(nexthop_id: int, action: p4r.TableAction) -> p4r.Entity:
    return entry("nexthop", [exact(1, nexthop_id)], action)


def to_group(group_id: int) -> p4r.TableAction:
    return p4r.TableAction(action_profile_group_id=group_id)


def to_member(member_id: int) -> p4r.TableAction:
    return p4r.TableAction(action_profile_member_id=member_id)


def one_shot(
    *weighted: tuple[int, int], mode: int = 0, size: int = 0, watch_port: bytes = b""
) -> p4r.TableAction:
    chosen = ActionSet(action_selection_mode=mode, size_semantics=size)  # type: ignore[arg-type]
    for port, weight in weighted:
        one = chosen.action_profile_actions.add(
            action=NAMES.action("rewrite", port, 2, 3), weight=weight
        )
        if watch_port:
            one.watch_port = watch_port
    return p4r.TableAction(action_profile_action_set=chosen)


# ------------------------------------------------------------------------- members and groups


def test_members_and_groups_read_back(client: Client) -> None:
    client.insert(member(1), member(2, 5), member(1, 3, "shared_actions"))
    client.insert(group(1, (1, 1), (2, 3)), group(9, max_size=4))
    client.insert(hop(7, to_group(1)), hop(8, to_member(2)), hop(9, to_group(9)))
    assert client.read(members_of("ecmp")) == [member(1), member(2, 5)]
    assert client.read(members_of("ecmp", 2)) == [member(2, 5)]
    assert len(client.read(members_of())) == 3
    assert client.read(groups_of("ecmp")) == [group(1, (1, 1), (2, 3)), group(9, max_size=4)]
    assert client.read(groups_of("ecmp", 9)) == [group(9, max_size=4)]
    assert len(client.read(groups_of())) == 2
    assert client.read(entry("nexthop")) == [
        hop(7, to_group(1)),
        hop(8, to_member(2)),
        hop(9, to_group(9)),
    ]


def test_members_and_groups_are_modified(client: Client) -> None:
    client.insert(member(1), member(2))
    client.insert(group(1, (1, 1), max_size=6))
    client.modify(member(1, 9))
    client.modify(group(1, (1, 2), (2, 4), max_size=6))
    assert client.read(members_of("ecmp", 1)) == [member(1, 9)]
    assert client.read(groups_of("ecmp")) == [group(1, (1, 2), (2, 4), max_size=6)]


def test_deleting_what_is_in_use_is_a_failed_precondition(client: Client) -> None:
    client.insert(member(1), member(2))
    client.insert(group(1, (1, 1)))
    client.insert(hop(7, to_group(1)), hop(8, to_member(2)))
    for one in (member(1), member(2), group(1)):
        assert refused(client, DELETE, one)[0] is Code.FAILED_PRECONDITION
    client.delete(hop(7, to_group(1)), hop(8, to_member(2)))
    client.delete(group(1))
    client.delete(member(1), member(2))
    assert client.read(members_of(), groups_of()) == []


@pytest.mark.parametrize(
    ("kind", "one", "code"),
    [
        (INSERT, member(1), "ALREADY_EXISTS"),
        (INSERT, group(1), "ALREADY_EXISTS"),
        (MODIFY, member(9), "NOT_FOUND"),
        (DELETE, member(9), "NOT_FOUND"),
        (MODIFY, group(9), "NOT_FOUND"),
        (DELETE, group(9), "NOT_FOUND"),
        (INSERT, member(0), "INVALID_ARGUMENT"),
        (INSERT, group(0), "INVALID_ARGUMENT"),
        (INSERT, member(3, action=NAMES.action("forward", 1)), "INVALID_ARGUMENT"),
        (INSERT, member(3, 512), "OUT_OF_RANGE"),
        (INSERT, members_of("ecmp", 3), "INVALID_ARGUMENT"),
        (MODIFY, members_of("ecmp", 1), "INVALID_ARGUMENT"),
        (INSERT, group(2, (9, 1)), "NOT_FOUND"),
        (INSERT, group(2, (1, 0)), "INVALID_ARGUMENT"),
        (INSERT, group(2, (1, -1)), "INVALID_ARGUMENT"),
        (INSERT, group(2, (1, 1), (1, 2)), "INVALID_ARGUMENT"),
        (INSERT, group(2, (1, 3), max_size=2), "RESOURCE_EXHAUSTED"),
        (INSERT, group(2, max_size=-1), "INVALID_ARGUMENT"),
        (MODIFY, group(1, (1, 1), max_size=2), "INVALID_ARGUMENT"),
        (INSERT, group(2, (1, 1), profile="shared_actions"), "INVALID_ARGUMENT"),
        (INSERT, hop(7, to_member(9)), "NOT_FOUND"),
        (INSERT, hop(7, to_group(9)), "NOT_FOUND"),
        (INSERT, hop(7, to_member(0)), "INVALID_ARGUMENT"),
        (INSERT, hop(7, NAMES.does("rewrite", 1, 2, 3)), "INVALID_ARGUMENT"),
        (INSERT, entry("by_port", [exact(1, 1)], to_group(1)), "INVALID_ARGUMENT"),
        (
            INSERT,
            p4r.Entity(action_profile_member=p4r.ActionProfileMember(member_id=1)),
            "INVALID_ARGUMENT",
        ),
        (
            INSERT,
            p4r.Entity(
                action_profile_member=p4r.ActionProfileMember(action_profile_id=5, member_id=1)
            ),
            "NOT_FOUND",
        ),
    ],
)
def test_refusals(client: Client, kind: int, one: p4r.Entity, code: str) -> None:
    client.insert(member(1))
    client.insert(group(1, (1, 1), max_size=4))
    before = client.read(members_of(), groups_of(), entry("nexthop"))
    found, message = refused(client, kind, one)
    assert found.name == code, message
    assert client.read(members_of(), groups_of(), entry("nexthop")) == before


def test_full_profile_is_resource_exhausted(client: Client) -> None:
    client.insert(*[member(one, profile="shared_actions") for one in range(1, 9)])
    assert refused(client, INSERT, member(9, profile="shared_actions"))[0] is (
        Code.RESOURCE_EXHAUSTED
    )


def test_watch_ports_are_unimplemented(client: Client) -> None:
    client.insert(member(1))
    watched = group(1, (1, 1))
    watched.action_profile_group.members[0].watch_port = b"\x01"
    assert refused(client, INSERT, watched)[0] is Code.UNIMPLEMENTED


def test_members_of_a_group_may_have_different_actions(client: Client) -> None:
    client.insert(member(1), member(2, action=NAMES.action("NoAction")))
    client.insert(group(1, (1, 1), (2, 1)))
    assert client.read(groups_of("ecmp")) == [group(1, (1, 1), (2, 1))]


def test_selectors_that_weigh_by_themselves_are_unimplemented(client: Client) -> None:
    config = client.get_config().config
    for profile in config.p4info.action_profiles:
        profile.weights_disallowed = profile.with_selector
    client.set_config(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    client.insert(member(1))
    assert refused(client, INSERT, group(1, (1, 0)))[0] is Code.UNIMPLEMENTED


def test_member_id_without_profile_cannot_be_read(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.read(members_of(None, 4))
    assert [one.canonical_code for one in details(caught.value)] == [Code.INVALID_ARGUMENT]


# ----------------------------------------------------------------------------------- one-shot


@pytest.mark.parametrize(
    "action",
    [
        one_shot((1, 1), (2, 2)),
        one_shot((1, 1), (1, 1)),
        one_shot(),
        one_shot((1, 1), mode=ActionSet.HASH, size=ActionSet.SUM_OF_WEIGHTS),
    ],
)
def test_one_shot_reads_back_as_written(client: Client, action: p4r.TableAction) -> None:
    client.insert(hop(7, action))
    assert client.read(entry("nexthop")) == [hop(7, action)]
    assert client.read(members_of(), groups_of()) == []


def test_one_shot_is_modified_and_deleted(client: Client) -> None:
    client.insert(hop(7, one_shot((1, 1), mode=ActionSet.HASH)))
    client.modify(hop(7, one_shot((2, 5))))
    assert client.read(entry("nexthop")) == [hop(7, one_shot((2, 5)))]
    client.delete(hop(7, p4r.TableAction()))
    client.insert(member(1))


def test_one_shot_and_members_do_not_mix(client: Client) -> None:
    client.insert(hop(7, one_shot((1, 1))))
    assert refused(client, INSERT, member(1))[0] is Code.INVALID_ARGUMENT
    assert refused(client, INSERT, group(1))[0] is Code.INVALID_ARGUMENT
    client.delete(hop(7, one_shot()))
    client.insert(member(1))
    assert refused(client, INSERT, hop(7, one_shot((1, 1))))[0] is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (one_shot((1, 0)), "INVALID_ARGUMENT"),
        (one_shot((512, 1)), "OUT_OF_RANGE"),
        (one_shot((1, 1), mode=ActionSet.RANDOM), "UNIMPLEMENTED"),
        (one_shot((1, 1), size=ActionSet.SUM_OF_MEMBERS), "UNIMPLEMENTED"),
        (one_shot((1, 1), watch_port=b"\x01"), "UNIMPLEMENTED"),
    ],
)
def test_one_shot_refusals(client: Client, action: p4r.TableAction, code: str) -> None:
    assert refused(client, INSERT, hop(7, action))[0].name == code
    assert client.read(entry("nexthop")) == []


def test_one_shot_needs_a_selector(client: Client) -> None:
    one = entry("by_port", [exact(1, 1)], one_shot())
    assert refused(client, INSERT, one)[0] is Code.INVALID_ARGUMENT


def test_one_shot_size_is_bounded_by_max_group_size(client: Client) -> None:
    config = client.get_config().config
    for profile in config.p4info.action_profiles:
        if profile.with_selector:
            profile.max_group_size = 3
    client.set_config(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    client.insert(hop(7, one_shot((1, 1), (2, 2))))
    assert refused(client, INSERT, hop(8, one_shot((1, 2), (2, 2))))[0] is Code.INVALID_ARGUMENT


def test_max_size_is_bounded_by_max_group_size(client: Client) -> None:
    config = client.get_config().config
    for profile in config.p4info.action_profiles:
        if profile.with_selector:
            profile.max_group_size = 3
    client.set_config(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)
    client.insert(group(1, max_size=3))
    for max_size in (0, 4):
        assert refused(client, INSERT, group(2, max_size=max_size))[0] is Code.INVALID_ARGUMENT
