"""What a workload may hold, what is said about a wrong one, and how it is reshaped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep_ns3.workloads import (
    Collective,
    Compute,
    Group,
    Inner,
    Kind,
    Operation,
    Send,
    Workload,
    WorkloadError,
    groups,
    topological_order,
)


def workload(*operations: Operation, **more: object) -> Workload:
    return Workload(name="w", operations=operations, **more)  # type: ignore[arg-type]


def problems(*operations: Operation, **more: object) -> list[str]:
    with pytest.raises(WorkloadError) as caught:
        workload(*operations, **more)
    return list(caught.value.problems)


def reduce(size: int = 8, after: tuple[int, ...] = (), **more: object) -> Collective:
    return Collective(kind=Kind.ALL_REDUCE, bytes=size, after=after, **more)  # type: ignore[arg-type]


def test_a_cycle_is_named_with_its_operations() -> None:
    found = problems(
        Compute(ns=1, label="a"),
        Compute(ns=1, label="b", after=(0, 3)),
        Compute(ns=1, label="c", after=(1,)),
        Compute(ns=1, label="d", after=(2,)),
    )
    assert found == [
        "workload 'w': dependency cycle: operation 1 'b' waits for operation 3 'd' waits for "
        "operation 2 'c' waits for operation 1 'b'; take one of these waits out"
    ]


def test_an_operation_that_waits_for_itself_is_a_cycle() -> None:
    assert "operation 0 waits for operation 0;" in problems(Compute(ns=1, after=(0,)))[0]


def test_every_mistake_is_reported_at_once() -> None:
    found = problems(
        Compute(ns=-1, after=(8,)),
        reduce(-5),
        reduce(rings=((0, 1),)),
        reduce(group=Group.CUSTOM),
        reduce(group=Group.CUSTOM, rings=((0, 1), (1, 2))),
        Send(src=1, dst=1, bytes=4),
        Send(src=0, dst=9, bytes=4),
        Compute(ns=(1, 2), ranks=(0,)),
        ranks=4,
        iterations=0,
    )
    at = "workload 'w', operation"
    rings = "rings go with group 'custom', and only with it"
    assert found == [
        "workload 'w': iterations = 0 must be 1 or more",
        f"{at} 0: ns = -1 must be between 0 and 2**63 - 1",
        f"{at} 0: waits for operation 8; there are only 0..7",
        f"{at} 1: bytes = -5 must be between 0 and 2**63 - 1",
        f"{at} 2: {rings}",
        f"{at} 3: {rings}",
        f"{at} 4: a rank stands in the rings twice; rings of one operation are disjoint",
        f"{at} 5: rank 1 sends to itself; src and dst must differ",
        f"{at} 6: rank 9 is not a rank of the job (0..3)",
        f"{at} 7: 2 times for 1 ranks",
    ]


def test_no_operations_is_refused() -> None:
    assert problems() == ["workload 'w': no operations; a workload needs at least one"]


def test_order_respects_dependencies_and_otherwise_the_list() -> None:
    made = workload(
        Compute(ns=1, after=(2,)), Compute(ns=1), Compute(ns=1), Compute(ns=1, after=(0,))
    )
    assert topological_order(made) == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("group", "inner", "expected"),
    [
        (Group.ALL, Inner.MODEL, ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (Group.MODEL, Inner.MODEL, ((0, 1), (2, 3), (4, 5), (6, 7))),
        (Group.DATA, Inner.MODEL, ((0, 2, 4, 6), (1, 3, 5, 7))),
        (Group.MODEL, Inner.DATA, ((0, 4), (1, 5), (2, 6), (3, 7))),
        (Group.DATA, Inner.DATA, ((0, 1, 2, 3), (4, 5, 6, 7))),
    ],
)
def test_groups_of_eight_ranks_with_replicas_over_two(
    group: Group, inner: Inner, expected: tuple[tuple[int, ...], ...]
) -> None:
    assert groups(group, 8, 2, inner) == expected


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(Inner))
def test_a_model_group_and_a_data_group_meet_in_one_rank(m: int, d: int, inner: Inner) -> None:
    model, data = groups(Group.MODEL, m * d, m, inner), groups(Group.DATA, m * d, m, inner)
    assert {len(ring) for ring in model} == {m}
    assert {len(ring) for ring in data} == {d}
    assert sorted(rank for ring in model for rank in ring) == list(range(m * d))
    assert all(len(set(a) & set(b)) == 1 for a in model for b in data)


def test_a_split_that_does_not_divide_the_ranks_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"= 3 does not divide the 8 ranks.*one of 1, 2, 4, 8"):
        groups(Group.MODEL, 8, 3)


@pytest.mark.parametrize("speedup", [1, 2, 4, 8, 16, 32, 64])
def test_compute_is_scaled_and_bytes_are_not(speedup: int) -> None:
    made = workload(Compute(ns=6400), Compute(ns=(64, 128)), reduce(1000, (0,)))
    scaled = made.scaled(compute=1 / speedup)
    assert scaled.operations[0] == Compute(ns=6400 // speedup)
    assert scaled.operations[1] == Compute(ns=(64 // speedup, 128 // speedup))
    assert scaled.operations[2] == made.operations[2]
    assert scaled.total_compute_ns() == made.total_compute_ns() // speedup


def test_sizes_are_scaled_and_stay_above_nothing() -> None:
    made = workload(reduce(1000), reduce(1), reduce(0), Send(src=0, dst=1, bytes=10))
    sizes = [operation.bytes for operation in made.scaled(communication=0.3).operations]  # type: ignore[union-attr]
    assert sizes == [300, 1, 0, 3]


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_factors_out_of_range_are_refused(factor: float) -> None:
    with pytest.raises(WorkloadError, match="compute factor"):
        workload(Compute(ns=1)).scaled(compute=factor)
    with pytest.raises(WorkloadError, match="communication factor"):
        workload(Compute(ns=1)).scaled(communication=factor)


def test_serialized_is_one_chain_that_closes_over_iterations() -> None:
    made = workload(Compute(ns=1), reduce(after=(0,)), Compute(ns=1, after=(0,)), iterations=2)
    serial = made.serialized()
    assert [operation.after for operation in serial.operations] == [(), (0,), (0, 1)]
    assert serial.operations[0].after_previous == (2,)


def test_in_order_chains_collectives_of_a_group_and_leaves_others_alone() -> None:
    made = workload(
        Compute(ns=1),
        reduce(after=(0,), group=Group.DATA),
        reduce(after=(0,), group=Group.MODEL),
        reduce(after=(0,), group=Group.DATA),
    )
    ordered = made.in_order()
    assert [operation.after for operation in ordered.operations] == [(), (0,), (0,), (0, 1)]
    assert ordered.operations[1].after_previous == (3,)
    assert ordered.operations[2].after_previous == (2,)


def test_total_compute_is_that_of_the_busiest_rank() -> None:
    made = workload(
        Compute(ns=10), Compute(ns=(1, 5)), Compute(ns=3, ranks=(0,)), Compute(ns=9, ranks=(0,))
    )
    assert made.total_compute_ns() == 10 + 1 + 3 + 9


def test_json_gives_the_workload_back() -> None:
    made = workload(
        Compute(ns=(1, 2), label="c", after_previous=(2,)),
        reduce(after=(0,), group=Group.CUSTOM, rings=((0, 1),), share=True, algorithm="ring"),
        Send(src=0, dst=1, bytes=5, after=(1,)),
        iterations=3,
        model_parallel=None,
        inner=Inner.DATA,
        ranks=2,
    )
    assert Workload.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "w.json: not JSON: "),
        ("[]", "w.json: not a workload; it needs a list named operations"),
        (
            '{"operations": [{}]}',
            "w.json: operation 0: needs op = one of compute, collective, send",
        ),
        ('{"operations": [{"op": "send"}]}', "w.json: operation 0: Send.__init__() missing"),
        (
            '{"operations": [{"op": "collective", "kind": "gossip", "bytes": 1}]}',
            "w.json: operation 0: 'gossip' is not a valid Kind",
        ),
        ('{"name": "x", "operations": [], "speed": 1}', "w.json: Workload.__init__() got an"),
    ],
)
def test_json_that_is_no_workload_is_refused(text: str, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        Workload.from_json(text, "w.json")
    assert str(caught.value).startswith(message)
