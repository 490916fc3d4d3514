"""What the core is given: unrolled iterations, resolved groups, nothing that does nothing."""

from __future__ import annotations

import ast
from dataclasses import fields
from importlib.resources import files

import pytest

from ringstep_ns3.workloads import (
    Collective,
    Compute,
    Group,
    Inner,
    Kind,
    Operation,
    ProgramOp,
    Send,
    Style,
    Workload,
    WorkloadError,
    build,
    core_ops,
    program,
)


def workload(*operations: Operation, **more: object) -> Workload:
    return Workload(name="w", operations=operations, **more)  # type: ignore[arg-type]


def reduce(size: int = 8, after: tuple[int, ...] = (), **more: object) -> Collective:
    return Collective(kind=Kind.ALL_REDUCE, bytes=size, after=after, **more)  # type: ignore[arg-type]


def waits(operations: list[ProgramOp]) -> list[tuple[int, ...]]:
    return [operation.after for operation in operations]


def test_iterations_are_unrolled_with_a_barrier_where_nothing_else_is_said() -> None:
    made = workload(Compute(ns=1), reduce(after=(0,)), Compute(ns=1, after=(0,)), iterations=2)
    assert waits(program(made, 4)) == [(), (0,), (0,), (1, 2), (3,), (3,)]
    assert [operation.origin for operation in program(made, 4)][3:] == [(1, 0), (1, 1), (1, 2)]


def test_waits_on_the_iteration_before_replace_the_barrier() -> None:
    made = workload(
        Compute(ns=1, after_previous=(2,)),
        reduce(after=(0,)),
        Compute(ns=1, after=(0,)),
        iterations=3,
    )
    assert waits(program(made, 4)) == [(), (0,), (0,), (2,), (3,), (3,), (5,), (6,), (6,)]


def test_what_does_nothing_is_left_out_and_its_waits_are_inherited() -> None:
    made = workload(
        Compute(ns=5),
        Compute(ns=0, after=(0,)),
        reduce(0, (1,)),
        reduce(8, (2,), group=Group.MODEL),
        Compute(ns=7, after=(3,)),
    )
    assert waits(program(made, 4)) == [(), (0,)]
    with pytest.raises(WorkloadError, match="nothing to do for 1 rank"):
        program(workload(reduce()), 1)


def test_operations_may_be_listed_before_what_they_wait_for() -> None:
    made = workload(Compute(ns=1, label="late", after=(1,)), Compute(ns=2, label="early"))
    assert [operation.name for operation in program(made, 2)] == ["early", "late"]


def test_groups_become_rings() -> None:
    made = workload(reduce(group=Group.MODEL), reduce(group=Group.DATA), reduce(), model_parallel=2)
    rings = [operation.rings for operation in program(made, 4)]
    assert rings == [((0, 1), (2, 3)), ((0, 2), (1, 3)), ()]
    swapped = made.with_model_parallel(2, Inner.DATA)
    assert [operation.rings for operation in program(swapped, 4)] == [rings[1], rings[0], ()]


def test_a_group_of_everyone_takes_the_rings_of_the_job() -> None:
    style = Style(rings=((0, 2, 1, 3),), channels=2)
    made = workload(reduce(group=Group.DATA), reduce(group=Group.MODEL))
    (whole,) = program(made, 4, style)
    assert (whole.rings, whole.channels) == (((0, 2, 1, 3),), 2)
    part = program(made.with_model_parallel(2), 4, style)[0]
    assert (part.rings, part.channels) == (((0, 2), (1, 3)), 2)


def test_a_2d_ring_is_for_everyone_and_made_of_its_dimensions() -> None:
    style = Style(algorithm="ring_2d", rings=((0, 2, 1, 3),), dims=(2, 2))
    made = workload(reduce(group=Group.DATA))
    (whole,) = program(made, 4, style)
    assert (whole.algorithm, whole.dims, whole.rings) == ("ring_2d", (2, 2), ())
    part = program(made.with_model_parallel(2), 4, style)[0]
    assert (part.algorithm, part.dims, part.rings) == ("ring", (), ((0, 2), (1, 3)))


def test_algorithms_by_kind_and_hint() -> None:
    made = workload(
        reduce(),
        reduce(algorithm="ring"),
        Collective(kind=Kind.ALL_TO_ALL, bytes=8),
        Collective(kind=Kind.ALL_GATHER, bytes=8),
        Send(src=0, dst=1, bytes=1),
    )
    style = Style(algorithm="double_binary_tree")
    assert [operation.algorithm for operation in program(made, 4, style)] == [
        "double_binary_tree", "ring", "direct", "ring", "direct",
    ]  # fmt: skip


def test_a_share_is_multiplied_by_the_size_of_the_group() -> None:
    gather = Collective(kind=Kind.ALL_GATHER, bytes=10, group=Group.MODEL, share=True)
    made = workload(gather, model_parallel=4)
    assert program(made, 8)[0].bytes == 40
    uneven = Collective(
        kind=Kind.ALL_GATHER, bytes=1, group=Group.CUSTOM, rings=((0, 1), (2, 3, 4)), share=True
    )
    with pytest.raises(WorkloadError, match="rings of 2 and 3 ranks"):
        program(workload(uneven), 5)


def test_computation_of_some_ranks_is_zero_at_the_others() -> None:
    made = workload(Compute(ns=5, ranks=(1, 2)), Compute(ns=(4, 4, 4)), Compute(ns=(1, 2, 3)))
    assert [operation.compute_ns for operation in program(made, 3)] == [(0, 5, 5), (4,), (1, 2, 3)]


@pytest.mark.parametrize(
    ("made", "ranks", "message"),
    [
        (workload(reduce()), 0, "a job needs at least 1 rank, not 0"),
        (workload(reduce(), ranks=8), 4, "made for 8 ranks, the job has 4; give the job 8 hosts"),
        (workload(Send(src=0, dst=5, bytes=1)), 4, "operation 0: rank 5 is not in the job, which"),
        (workload(Compute(ns=(1, 2))), 4, "operation 0: 2 times for the 4 ranks of the job"),
        (
            workload(reduce(group=Group.DATA), model_parallel=None),
            4,
            "set model_parallel to a divisor of the job's 4 ranks",
        ),
        (
            workload(reduce(group=Group.DATA), model_parallel=3),
            4,
            "model_parallel = 3 does not divide the 4 ranks of the job; choose one of 1, 2, 4",
        ),
    ],
)
def test_a_job_that_does_not_fit_is_refused(made: Workload, ranks: int, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        program(made, ranks)
    assert message in str(caught.value)
    assert str(caught.value).startswith("workload 'w'")


@pytest.mark.parametrize("source", ["astra:resnet50", "astra:transformer", "astra:dlrm", "gpt2"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("collectives", ["in_order", "concurrent"])
def test_programs_only_wait_for_earlier_operations(
    source: str, overlap: bool, collectives: str
) -> None:
    options = {"iterations": 3, "overlap": overlap, "collectives": collectives}
    operations = program(build(source, {**options, "model_parallel": 4}), 8)
    for index, operation in enumerate(operations):
        assert all(other < index for other in operation.after)


def core_op_parameters() -> set[str]:
    stub = ast.parse((files("ringstep_ns3") / "_core.pyi").read_text())
    (op,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "Op")
    (init,) = (n for n in op.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    return {argument.arg for argument in init.args.kwonlyargs}


def test_a_program_says_all_that_the_core_asks() -> None:
    ours = {field.name for field in fields(ProgramOp)} - {"origin", "bytes"} | {"bytes_"}
    # Passes repeat one operation; a program repeats by listing.
    assert ours == core_op_parameters() - {"passes"}


def test_the_core_takes_the_operations() -> None:
    pytest.importorskip("ringstep_ns3._core", reason="needs the core: pip install ./ns3-model")
    operations = program(build("astra:dlrm"), 4)
    made = core_ops(operations)
    assert [op.kind for op in made] == [operation.kind for operation in operations]
    assert [tuple(op.after) for op in made] == [operation.after for operation in operations]
    assert [op.bytes_ for op in made] == [operation.bytes for operation in operations]
