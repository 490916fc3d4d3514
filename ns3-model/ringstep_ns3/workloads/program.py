"""From a workload to the core's job program: the one place that knows both.

:func:`program` unrolls iterations, resolves groups to rings and leaves out what does nothing;
its result is plain data. :func:`core_ops` makes the core's ``Op`` objects of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringstep_ns3.workloads.model import (
    Collective,
    Compute,
    Group,
    Kind,
    Operation,
    Send,
    Workload,
    WorkloadError,
    compute_by_rank,
    describe,
    groups,
    topological_order,
)

if TYPE_CHECKING:
    from ringstep_ns3._core import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a job carries out collectives, where an operation does not say.

    ``algorithm`` is for all_reduce (others take the ring, all_to_all goes direct). ``rings``: the
    rings of collectives over every rank; empty: one ring in rank order. ``dims``: inner and outer
    size for ``ring_2d``. ``channels``, ``chunks``, ``window``: as the core's ``Op``.
    """

    algorithm: str = "ring"
    rings: tuple[tuple[int, ...], ...] = ()
    dims: tuple[int, ...] = ()
    channels: int = 1
    chunks: int = 1
    window: int = 0


@dataclass(slots=True, kw_only=True)
class ProgramOp:
    """One operation of a program; the fields are those of the core's ``Op``.

    ``origin``: iteration and index of the workload's operation behind it.
    """

    kind: str
    name: str
    origin: tuple[int, int]
    bytes: int = 0
    algorithm: str = "ring"
    rings: tuple[tuple[int, ...], ...] = ()
    dims: tuple[int, ...] = ()
    channels: int = 1
    chunks: int = 1
    window: int = 0
    root: int = 0
    src: int = 0
    dst: int = 0
    compute_ns: tuple[int, ...] = ()
    after: tuple[int, ...] = field(default=())


def program(workload: Workload, ranks: int, style: Style | None = None) -> list[ProgramOp]:
    """Return the operations of all iterations for a job of ``ranks`` ranks, in order of issue.

    Operations that do nothing (0 ns, 0 bytes, groups of one rank) are left out; what waited for
    them waits for what they waited for.

    Raises:
        WorkloadError: ``ranks`` below 1 or not what the workload is made for, a model group size
            that is missing or does not divide ``ranks``, a rank that is not there, or a workload
            of which nothing is left.
    """
    where = f"workload {workload.name!r}"
    if ranks < 1:
        raise WorkloadError(f"{where}: a job needs at least 1 rank, not {ranks}")
    if workload.ranks is not None and workload.ranks != ranks:
        raise WorkloadError(
            f"{where}: made for {workload.ranks} ranks, the job has {ranks}; "
            f"give the job {workload.ranks} hosts"
        )
    order = topological_order(workload)
    templates = [
        _template(workload, index, ranks, style or Style())
        for index in range(len(workload.operations))
    ]
    sinks = _sinks(workload.operations)
    result: list[ProgramOp] = []
    # For each operation: the program's operations that stand for "it is done".
    previous: dict[int, frozenset[int]] = {}
    for iteration in range(workload.iterations):
        done: dict[int, frozenset[int]] = {}
        barrier = (
            frozenset().union(*(previous[sink] for sink in sinks)) if previous else frozenset()
        )
        for index in order:
            operation = workload.operations[index]
            waits: frozenset[int] = frozenset()
            waits = waits.union(*(done[other] for other in operation.after))
            if previous:
                waits = waits.union(*(previous[other] for other in operation.after_previous))
                if not operation.after and not operation.after_previous:
                    waits = barrier
            template = templates[index]
            if template is None:
                done[index] = waits
                continue
            done[index] = frozenset((len(result),))
            result.append(_placed(template, workload, iteration, waits))
        previous = done
    if not result:
        raise WorkloadError(
            f"{where}: nothing to do for {ranks} rank(s): every operation has size 0 or "
            "a group of one rank; give the job more hosts"
        )
    return result


def core_ops(operations: Sequence[ProgramOp]) -> list[Op]:
    """Return the operations as objects of the core, for ``JobSpec(ops=...)``."""
    from ringstep_ns3._core import Op

    return [
        Op(
            kind=operation.kind,
            bytes_=operation.bytes,
            algorithm=operation.algorithm,
            rings=operation.rings,
            dims=operation.dims,
            channels=operation.channels,
            chunks=operation.chunks,
            window=operation.window,
            root=operation.root,
            src=operation.src,
            dst=operation.dst,
            compute_ns=operation.compute_ns,
            after=operation.after,
            name=operation.name,
        )
        for operation in operations
    ]


def _placed(
    template: ProgramOp, workload: Workload, iteration: int, waits: frozenset[int]
) -> ProgramOp:
    name = template.name
    if workload.iterations > 1:
        name = f"{iteration}/{name}"
    return ProgramOp(
        kind=template.kind,
        name=name,
        origin=(iteration, template.origin[1]),
        bytes=template.bytes,
        algorithm=template.algorithm,
        rings=template.rings,
        dims=template.dims,
        channels=template.channels,
        chunks=template.chunks,
        window=template.window,
        root=template.root,
        src=template.src,
        dst=template.dst,
        compute_ns=template.compute_ns,
        after=tuple(sorted(waits)),
    )


def _sinks(operations: Sequence[Operation]) -> list[int]:
    """Return the operations that nothing else of their iteration waits for."""
    waited_for = {other for operation in operations for other in operation.after}
    return [index for index in range(len(operations)) if index not in waited_for]


def _template(workload: Workload, index: int, ranks: int, style: Style) -> ProgramOp | None:
    """Return the operation with its groups resolved, or None if it does nothing."""
    operation = workload.operations[index]
    where = f"workload {workload.name!r}, {describe(workload.operations, index)}"
    name = operation.label or f"op{index}"
    if isinstance(operation, Compute):
        times = _compute_ns(operation, ranks, where)
        if not any(times):
            return None
        return ProgramOp(kind="compute", name=name, origin=(0, index), compute_ns=times)
    if isinstance(operation, Send):
        _check_ranks((operation.src, operation.dst), ranks, where)
        if operation.bytes == 0:
            return None
        return ProgramOp(
            kind="send",
            name=name,
            origin=(0, index),
            bytes=operation.bytes,
            algorithm="direct",
            src=operation.src,
            dst=operation.dst,
        )
    return _collective(workload, operation, name, index, ranks, style, where)


def _collective(
    workload: Workload,
    operation: Collective,
    name: str,
    index: int,
    ranks: int,
    style: Style,
    where: str,
) -> ProgramOp | None:
    rings = tuple(ring for ring in _rings(workload, operation, ranks, where) if len(ring) > 1)
    if operation.bytes == 0 or not rings:
        return None
    size = operation.bytes
    if operation.share:
        sizes = {len(ring) for ring in rings}
        if len(sizes) > 1:
            raise WorkloadError(
                f"{where}: rings of {' and '.join(map(str, sorted(sizes)))} ranks with bytes given "
                "per rank; make one operation for each size"
            )
        size *= sizes.pop()
    whole = rings == (tuple(range(ranks)),)
    algorithm = _algorithm(operation, style, whole)
    if whole:
        # A 2D ring makes its rings of its dimensions.
        rings = () if algorithm == "ring_2d" else style.rings
    return ProgramOp(
        kind=operation.kind.value,
        name=name,
        origin=(0, index),
        bytes=size,
        algorithm=algorithm,
        rings=rings,
        dims=style.dims if algorithm == "ring_2d" else (),
        channels=style.channels,
        chunks=style.chunks,
        window=style.window,
        root=operation.root,
    )


def _algorithm(operation: Collective, style: Style, whole: bool) -> str:
    if operation.algorithm:
        return operation.algorithm
    if operation.kind is Kind.ALL_TO_ALL:
        return "direct"
    # The dimensions of a 2D ring are those of the whole job; its parts take plain rings.
    if operation.kind is not Kind.ALL_REDUCE or (style.algorithm == "ring_2d" and not whole):
        return "ring"
    return style.algorithm


def _rings(
    workload: Workload, operation: Collective, ranks: int, where: str
) -> tuple[tuple[int, ...], ...]:
    if operation.group is Group.CUSTOM:
        _check_ranks([rank for ring in operation.rings for rank in ring], ranks, where)
        return operation.rings
    if operation.group is not Group.ALL and workload.model_parallel is None:
        raise WorkloadError(
            f"workload {workload.name!r} does not say over how many ranks a replica of the model "
            f"is spread; set model_parallel to a divisor of the job's {ranks} ranks"
        )
    try:
        return groups(operation.group, ranks, workload.model_parallel or 1, workload.inner)
    except WorkloadError as error:
        raise WorkloadError(f"workload {workload.name!r}: {error}") from None


def _compute_ns(operation: Compute, ranks: int, where: str) -> tuple[int, ...]:
    if operation.ranks is None and isinstance(operation.ns, int):
        return (operation.ns,)
    by_rank = compute_by_rank(operation)
    _check_ranks(by_rank, ranks, where)
    if operation.ranks is None and len(by_rank) != ranks:
        raise WorkloadError(f"{where}: {len(by_rank)} times for the {ranks} ranks of the job")
    times = tuple(by_rank.get(rank, 0) for rank in range(ranks))
    return times[:1] if len(set(times)) == 1 else times


def _check_ranks(members: Sequence[int] | dict[int, int], ranks: int, where: str) -> None:
    beyond = sorted({rank for rank in members if rank >= ranks})
    if beyond:
        raise WorkloadError(
            f"{where}: rank {beyond[0]} is not in the job, which has {ranks} (0..{ranks - 1})"
        )
