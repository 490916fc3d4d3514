"""What is written, and in which order, to get from one state to another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringstep.controller.entries import (
    Exact,
    GroupRef,
    ProfileKey,
    SwitchTables,
    action,
    entry_key,
)
from ringstep.controller.plan import apply_update, new_jobs, plan_updates

BLOCK = entry_key("block_map", job=Exact(1), egress_port=Exact(2))
PARAMS = entry_key("job_params", job=Exact(1))
RULE = entry_key("job_by_pair", src_addr=Exact(1), dst_addr=Exact(2))
NEXTHOP = entry_key("nexthop", nexthop_id=Exact(1))
ROUTE = entry_key("route_v4", dst_addr=Exact(9))
UNKNOWN = entry_key("someone_elses", key=Exact(1))

FULL = SwitchTables(
    defaults={"switch_config": action("set_switch", {"ecmp_seed": 1})},
    members={ProfileKey("ecmp", 1): action("forward", {"port": 1})},
    groups={ProfileKey("ecmp", 1): ((1, 1),)},
    entries={
        RULE: action("set_job", {"job": 1}),
        PARAMS: action("set_params"),
        BLOCK: action("set_block", {"block": 0}),
        ROUTE: action("set_nexthop", {"nexthop_id": 1}),
        NEXTHOP: GroupRef(1),
    },
)


def written(actual: SwitchTables, desired: SwitchTables) -> list[str]:
    return [str(update) for phase in plan_updates(actual, desired) for update in phase]


def holding(**generations: int) -> SwitchTables:
    """A switch with jobs, given as ``job7=generation``."""
    return SwitchTables(
        entries={
            entry_key("job_params", job=Exact(int(name.removeprefix("job")))): action(
                "set_params", {"generation": generation, "k": generation}
            )
            for name, generation in generations.items()
        }
    )


def jobs_new_to(actual: SwitchTables, desired: SwitchTables) -> list[int]:
    phases = plan_updates(actual, desired)
    return new_jobs((update for phase in phases for update in phase), actual)


def test_counters_are_new_to_jobs_that_came_or_were_handed_out_anew() -> None:
    assert jobs_new_to(holding(), holding(job9=1, job2=1)) == [2, 9]
    assert jobs_new_to(holding(job1=1, job2=1, job3=1), holding(job1=1, job2=2)) == [2]


def test_changed_parameters_of_the_same_hand_out_keep_the_counters() -> None:
    key = entry_key("job_params", job=Exact(1))
    changed = SwitchTables(entries={key: action("set_params", {"generation": 1, "k": 9})})
    assert jobs_new_to(holding(job1=1), changed) == []


def test_equal_states_need_nothing() -> None:
    assert plan_updates(FULL, FULL.copy()) == []


def test_what_is_referred_to_is_inserted_first() -> None:
    assert written(SwitchTables(), FULL) == [
        "INSERT member 1 of ecmp -> forward(port=1)",
        "INSERT group 1 of ecmp -> members 1",
        "MODIFY default action of switch_config -> set_switch(ecmp_seed=1)",
        "INSERT block_map egress_port=2 job=1 -> set_block(block=0)",
        "INSERT job_params job=1 -> set_params()",
        "INSERT nexthop nexthop_id=1 -> group 1",
        "INSERT route_v4 dst_addr=9 -> set_nexthop(nexthop_id=1)",
        "INSERT job_by_pair dst_addr=2 src_addr=1 -> set_job(job=1)",
    ]


def test_what_refers_is_deleted_first() -> None:
    desired = SwitchTables(defaults=dict(FULL.defaults))
    assert written(FULL, desired) == [
        "DELETE job_by_pair dst_addr=2 src_addr=1",
        "DELETE route_v4 dst_addr=9",
        "DELETE nexthop nexthop_id=1",
        "DELETE job_params job=1",
        "DELETE block_map egress_port=2 job=1",
        "DELETE group 1 of ecmp",
        "DELETE member 1 of ecmp",
    ]


def test_changed_values_are_modified_and_defaults_nobody_set_are_left() -> None:
    desired = FULL.copy()
    desired.entries[BLOCK] = action("set_block", {"block": 9})
    desired.groups[ProfileKey("ecmp", 1)] = ((1, 1), (2, 1))
    desired.members[ProfileKey("ecmp", 2)] = action("forward", {"port": 2})
    actual = FULL.copy()
    actual.defaults["route_v4"] = action("drop")
    assert written(actual, desired) == [
        "INSERT member 2 of ecmp -> forward(port=2)",
        "MODIFY group 1 of ecmp -> members 1 2",
        "MODIFY block_map egress_port=2 job=1 -> set_block(block=9)",
    ]


def test_entries_of_unknown_tables_are_removed() -> None:
    actual = FULL.copy()
    actual.entries[UNKNOWN] = action("x")
    assert written(actual, FULL) == ["DELETE someone_elses key=1"]


KEYS = st.sampled_from([BLOCK, PARAMS, RULE, NEXTHOP, ROUTE])
STATES = st.builds(
    SwitchTables,
    defaults=st.just({}),
    members=st.dictionaries(
        st.builds(ProfileKey, st.just("ecmp"), st.integers(1, 3)),
        st.builds(action, st.sampled_from(["a", "b"])),
    ),
    groups=st.dictionaries(
        st.builds(ProfileKey, st.just("ecmp"), st.integers(1, 3)),
        st.just(((1, 1),)) | st.just(((1, 1), (2, 1))),
    ),
    entries=st.dictionaries(KEYS, st.builds(action, st.sampled_from(["a", "b"]))),
)


@given(STATES, STATES)
def test_plan_leads_from_any_state_to_any_other(
    actual: SwitchTables, desired: SwitchTables
) -> None:
    for phase in plan_updates(actual, desired):
        for update in phase:
            apply_update(actual, update)
    assert actual == desired
    assert plan_updates(actual, desired) == []
