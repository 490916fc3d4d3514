"""What a training job does, without a word about how the simulator runs it.

A :class:`Workload` is a list of operations with dependencies by index: computation, collectives
over groups of ranks, messages from rank to rank. :mod:`ringstep_ns3.workloads.program` turns it
into the core's job program; nothing else knows both.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

MAX_BYTES = (1 << 63) - 1
MAX_NS = (1 << 63) - 1


class WorkloadError(ValueError):
    """A workload that cannot be used; ``problems`` holds one line per mistake."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class Kind(StrEnum):
    """What a collective does; the values are the names the core uses."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"


class Group(StrEnum):
    """Over which ranks a collective runs.

    ``DATA``: the ranks that hold the same part of the model; ``MODEL``: the ranks that hold the
    parts of one replica; ``ALL``: every rank; ``CUSTOM``: the rings that the operation lists.
    """

    ALL = "all"
    DATA = "data"
    MODEL = "model"
    CUSTOM = "custom"


class Inner(StrEnum):
    """Which groups consist of neighbouring ranks; the others stride over them."""

    MODEL = "model"
    DATA = "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Computation for ``ns`` nanoseconds: one number, or one per rank of ``ranks``.

    ``ranks`` None: every rank. ``after``: operations of the same iteration that have to be done at
    a rank before the rank starts this one; ``after_previous``: operations of the iteration before.
    An operation that has neither starts once the iteration before is wholly done.
    """

    ns: int | tuple[int, ...]
    ranks: tuple[int, ...] | None = None
    label: str = ""
    after: tuple[int, ...] = ()
    after_previous: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective over ``bytes`` per rank of a group.

    ``bytes``: the buffer of a rank before and after (all_reduce, broadcast), before
    (reduce_scatter, all_to_all, its own part included) or after it (all_gather). With ``share``
    it is the part that one rank brings in, so the buffer is that times the size of the group.
    ``rings``: disjoint lists of ranks, with group ``CUSTOM`` only. ``root``: the rank that
    broadcasts. ``algorithm``: a hint; empty leaves the choice to the job.
    """

    kind: Kind
    bytes: int
    group: Group = Group.ALL
    rings: tuple[tuple[int, ...], ...] = ()
    root: int = 0
    share: bool = False
    algorithm: str = ""
    label: str = ""
    after: tuple[int, ...] = ()
    after_previous: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """A message of ``bytes`` from rank ``src`` to rank ``dst``."""

    src: int
    dst: int
    bytes: int
    label: str = ""
    after: tuple[int, ...] = ()
    after_previous: tuple[int, ...] = ()


Operation = Compute | Collective | Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Operations of one iteration, and how often it runs.

    ``model_parallel``: ranks over which one replica of the model is spread; None where the source
    does not say and it has to be set before use. ``inner`` says which groups are neighbours.
    ``ranks``: the number of ranks that the source is made for; None: any.

    Raises:
        WorkloadError: what :func:`check` finds.
    """

    name: str
    operations: tuple[Operation, ...]
    iterations: int = 1
    model_parallel: int | None = 1
    inner: Inner = Inner.MODEL
    ranks: int | None = None

    def __post_init__(self) -> None:
        check(self)

    def total_bytes(self, group: Group | None = None, kind: Kind | None = None) -> int:
        """Return the bytes of the collectives of one iteration, as their ``bytes`` count them."""
        return sum(
            operation.bytes
            for operation in self.operations
            if isinstance(operation, Collective)
            and (group is None or operation.group is group)
            and (kind is None or operation.kind is kind)
        )

    def total_compute_ns(self) -> int:
        """Return the longest computation of any rank in one iteration, waiting left out."""
        everywhere = 0
        by_rank: dict[int, int] = {}
        for operation in self.operations:
            if not isinstance(operation, Compute):
                continue
            if operation.ranks is None and isinstance(operation.ns, int):
                everywhere += operation.ns
                continue
            for rank, ns in compute_by_rank(operation).items():
                by_rank[rank] = by_rank.get(rank, 0) + ns
        return everywhere + max(by_rank.values(), default=0)

    def with_iterations(self, iterations: int) -> Workload:
        """Return the same workload run ``iterations`` times."""
        return replace(self, iterations=iterations)

    def with_model_parallel(self, model_parallel: int, inner: Inner | None = None) -> Workload:
        """Return the same workload with the size of its model groups set."""
        return replace(self, model_parallel=model_parallel, inner=inner or self.inner)

    def scaled(self, *, compute: float = 1.0, communication: float = 1.0) -> Workload:
        """Return the workload with times multiplied by ``compute`` and sizes by ``communication``.

        Rounded to whole nanoseconds and bytes; a size stays at least 1. ``compute=1 / 64`` is the
        right end of Fig. 6 of the Symphony paper.

        Raises:
            WorkloadError: a factor that is negative or not finite, or a ``communication`` of 0.
        """
        if not 0 <= compute < float("inf"):
            raise WorkloadError(f"compute factor {compute} must be a number from 0 up")
        if not 0 < communication < float("inf"):
            raise WorkloadError(f"communication factor {communication} must be a number above 0")

        def scale(operation: Operation) -> Operation:
            if isinstance(operation, Compute):
                if isinstance(operation.ns, int):
                    return replace(operation, ns=round(operation.ns * compute))
                return replace(operation, ns=tuple(round(ns * compute) for ns in operation.ns))
            if operation.bytes == 0:
                return operation
            return replace(operation, bytes=max(1, round(operation.bytes * communication)))

        return replace(self, operations=tuple(scale(operation) for operation in self.operations))

    def serialized(self) -> Workload:
        """Return the workload without overlap: one operation after the other, as they are listed.

        The order is that of the list where dependencies allow it.
        """
        order = topological_order(self)
        operations = list(self.operations)
        for earlier, later in itertools.pairwise(order):
            operations[later] = _with_after(operations[later], {earlier})
        if order:
            # Nothing of the next iteration starts before the last operation of this one.
            first, last = order[0], order[-1]
            operations[first] = replace(operations[first], after_previous=(last,))
        return replace(self, operations=tuple(operations))

    def in_order(self) -> Workload:
        """Return the workload with at most one collective at a time in each group.

        Collectives start in the order of the list, as on one communicator of NCCL; without it
        each starts as soon as its own dependencies are done.
        """
        order = topological_order(self)
        operations = list(self.operations)
        first: dict[tuple[Group, tuple[tuple[int, ...], ...]], int] = {}
        last: dict[tuple[Group, tuple[tuple[int, ...], ...]], int] = {}
        for index in order:
            operation = self.operations[index]
            if not isinstance(operation, Collective):
                continue
            key = (operation.group, operation.rings)
            if key in last:
                operations[index] = _with_after(operation, {last[key]})
            first.setdefault(key, index)
            last[key] = index
        for key, index in first.items():
            operation = operations[index]
            # A root of the iteration already waits for everything before it.
            if operation.after or operation.after_previous:
                previous = tuple(sorted({*operation.after_previous, last[key]}))
                operations[index] = replace(operation, after_previous=previous)
        return replace(self, operations=tuple(operations))

    def to_json(self) -> str:
        """Return the workload as JSON text, one line, keys sorted."""
        data = asdict(self)
        for entry, operation in zip(data["operations"], self.operations, strict=True):
            entry["op"] = type(operation).__name__.lower()
        return json.dumps(data, sort_keys=True)

    @staticmethod
    def from_json(text: str, name: str = "workload") -> Workload:
        """Return the workload that :meth:`to_json` wrote.

        Raises:
            WorkloadError: text that is not such JSON; ``name`` is what the message calls it.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise WorkloadError(f"{name}: not JSON: {error}") from None
        if not isinstance(data, dict) or not isinstance(data.get("operations"), list):
            raise WorkloadError(f"{name}: not a workload; it needs a list named operations")
        try:
            operations = tuple(
                _operation_from(entry, f"{name}: operation {index}")
                for index, entry in enumerate(data.pop("operations"))
            )
            if "inner" in data:
                data["inner"] = Inner(data["inner"])
            return Workload(operations=operations, **data)
        except WorkloadError:
            raise
        except (TypeError, ValueError) as error:
            raise WorkloadError(f"{name}: {error}") from None


def _with_after(operation: Operation, more: set[int]) -> Operation:
    return replace(operation, after=tuple(sorted({*operation.after, *more})))


_OPERATIONS: Mapping[str, type[Operation]] = {
    "compute": Compute,
    "collective": Collective,
    "send": Send,
}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _operation_from(entry: object, where: str) -> Operation:
    if not isinstance(entry, dict) or entry.get("op") not in _OPERATIONS:
        raise WorkloadError(f"{where}: needs op = one of {', '.join(_OPERATIONS)}")
    fields = {key: _tuples(value) for key, value in entry.items() if key != "op"}
    try:
        if "kind" in fields:
            fields["kind"] = Kind(fields["kind"])
        if "group" in fields:
            fields["group"] = Group(fields["group"])
        return _OPERATIONS[entry["op"]](**fields)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"{where}: {error}") from None


def describe(operations: Sequence[Operation], index: int) -> str:
    """Return how messages call an operation, e.g. ``operation 3 'fc6 gradient'``."""
    label = operations[index].label
    return f"operation {index} {label!r}" if label else f"operation {index}"


def compute_by_rank(operation: Compute) -> dict[int, int]:
    """Return the nanoseconds by rank of a computation that lists ranks or one time per rank.

    Raises:
        WorkloadError: it does neither, so it holds for any rank.
    """
    if isinstance(operation.ns, int):
        if operation.ranks is None:
            raise WorkloadError("the computation is the same at every rank")
        return dict.fromkeys(operation.ranks, operation.ns)
    ranks = operation.ranks if operation.ranks is not None else range(len(operation.ns))
    return dict(zip(ranks, operation.ns, strict=True))


def topological_order(workload: Workload) -> list[int]:
    """Return the operations in an order that respects ``after``, otherwise that of the list.

    Raises:
        WorkloadError: a cycle, with its operations named.
    """
    operations = workload.operations
    return sort_by_dependencies(
        [operation.after for operation in operations],
        lambda index: describe(operations, index),
        f"workload {workload.name!r}",
    )


def sort_by_dependencies(
    after: Sequence[Sequence[int]], describe_one: Callable[[int], str], where: str
) -> list[int]:
    """Return 0..n-1 so that each comes after what ``after`` lists for it; smallest index first.

    Raises:
        WorkloadError: a cycle; ``describe_one`` names its members, ``where`` opens the message.
    """
    waiting = [len(set(before)) for before in after]
    followers: list[list[int]] = [[] for _ in after]
    for index, before in enumerate(after):
        for other in set(before):
            followers[other].append(index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    if len(order) < len(after):
        cycle = _find_cycle(after, waiting)
        members = " waits for ".join(describe_one(index) for index in [*cycle, cycle[0]])
        raise WorkloadError(f"{where}: dependency cycle: {members}; take one of these waits out")
    return order


def _find_cycle(after: Sequence[Sequence[int]], waiting: Sequence[int]) -> list[int]:
    index = next(index for index, count in enumerate(waiting) if count > 0)
    seen: dict[int, int] = {}
    path: list[int] = []
    while index not in seen:
        seen[index] = len(path)
        path.append(index)
        index = min(before for before in after[index] if waiting[before] > 0)
    return path[seen[index] :]


def groups(
    group: Group, ranks: int, model_parallel: int, inner: Inner = Inner.MODEL
) -> tuple[tuple[int, ...], ...]:
    """Return the disjoint lists of ranks that ``group`` means in a job of ``ranks`` ranks.

    With ``inner`` MODEL each run of ``model_parallel`` neighbours holds one replica; with DATA
    each run of ``ranks / model_parallel`` neighbours holds the same part of the model.

    Raises:
        WorkloadError: ``model_parallel`` does not divide ``ranks``, or group CUSTOM.
    """
    if group is Group.CUSTOM:
        raise WorkloadError("a custom group has no general list of ranks; read operation.rings")
    if group is Group.ALL:
        return (tuple(range(ranks)),)
    if model_parallel < 1 or ranks % model_parallel:
        raise WorkloadError(
            f"model_parallel = {model_parallel} does not divide the {ranks} ranks of the job; "
            f"choose one of {', '.join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)}"
        )
    block = model_parallel if inner is Inner.MODEL else ranks // model_parallel
    if (group is Group.MODEL) == (inner is Inner.MODEL):
        return tuple(tuple(range(start, start + block)) for start in range(0, ranks, block))
    return tuple(tuple(range(offset, ranks, block)) for offset in range(block))


def check(workload: Workload) -> None:
    """Say everything that is wrong with a workload at once.

    Raises:
        WorkloadError: no operations, iterations below 1, a size or time out of range, a group that
            contradicts itself, a dependency on an operation that is not there, a cycle.
    """
    where = f"workload {workload.name!r}"
    problems: list[str] = []
    if not workload.operations:
        problems.append(f"{where}: no operations; a workload needs at least one")
    if workload.iterations < 1:
        problems.append(f"{where}: iterations = {workload.iterations} must be 1 or more")
    if workload.model_parallel is not None and workload.model_parallel < 1:
        problems.append(f"{where}: model_parallel = {workload.model_parallel} must be 1 or more")
    count = len(workload.operations)
    for index, operation in enumerate(workload.operations):
        at = f"{where}, {describe(workload.operations, index)}"
        problems += [f"{at}: {problem}" for problem in _problems_of(operation, workload.ranks)]
        problems += [
            f"{at}: waits for operation {other}; there are only 0..{count - 1}"
            for other in (*operation.after, *operation.after_previous)
            if not 0 <= other < count
        ]
    if problems:
        raise WorkloadError(problems)
    topological_order(workload)


def _problems_of(operation: Operation, ranks: int | None) -> list[str]:
    if isinstance(operation, Compute):
        return _compute_problems(operation, ranks)
    problems = []
    if not 0 <= operation.bytes <= MAX_BYTES:
        problems.append(f"bytes = {operation.bytes} must be between 0 and 2**63 - 1")
    if isinstance(operation, Send):
        if operation.src == operation.dst:
            problems.append(f"rank {operation.src} sends to itself; src and dst must differ")
        problems += _rank_problems((operation.src, operation.dst), ranks)
        return problems
    if (operation.group is Group.CUSTOM) != bool(operation.rings):
        problems.append("rings go with group 'custom', and only with it")
    members = [rank for ring in operation.rings for rank in ring]
    if len(set(members)) < len(members):
        problems.append("a rank stands in the rings twice; rings of one operation are disjoint")
    problems += _rank_problems(members, ranks)
    return problems


def _compute_problems(operation: Compute, ranks: int | None) -> list[str]:
    problems = []
    times = (operation.ns,) if isinstance(operation.ns, int) else operation.ns
    problems += [
        f"ns = {ns} must be between 0 and 2**63 - 1" for ns in times if ns < 0 or ns > MAX_NS
    ]
    if operation.ranks is not None:
        problems += _rank_problems(operation.ranks, ranks)
        if len(set(operation.ranks)) < len(operation.ranks):
            problems.append("a rank stands in ranks twice")
        if not isinstance(operation.ns, int) and len(operation.ns) != len(operation.ranks):
            problems.append(f"{len(operation.ns)} times for {len(operation.ranks)} ranks")
    elif not isinstance(operation.ns, int) and ranks is not None and len(operation.ns) != ranks:
        problems.append(f"{len(operation.ns)} times for {ranks} ranks")
    return problems


def _rank_problems(members: Iterable[int], ranks: int | None) -> list[str]:
    return [
        f"rank {rank} is not a rank of the job (0..{'' if ranks is None else ranks - 1})"
        for rank in members
        if rank < 0 or (ranks is not None and rank >= ranks)
    ]
