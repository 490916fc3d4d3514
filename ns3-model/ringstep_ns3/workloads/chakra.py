"""Reader and writer for Chakra execution traces: one ``PREFIX.N.et`` per rank N.

A trace is a file of protobuf messages, each with its length as a varint before it: a
``GlobalMetadata``, then ``Node`` after ``Node``; gzip is undone. Reading joins the traces of all
ranks into one :class:`Workload`: the n-th collective of a group is one operation for all its ranks,
a send and its receive are one message, and where every rank runs the same graph its computations
are one operation with a time per rank.

Needs ``protobuf`` (extra ``[chakra]``). MLCommons' own Python package is not published on PyPI (the
``chakra`` there is another project), so :mod:`.chakra_schema` describes the messages itself.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    groups,
    sort_by_dependencies,
    topological_order,
)

if TYPE_CHECKING:
    from types import ModuleType

_MICROSECOND_NS = 1000
_BARRIER_BYTES = 1
_TITLE_LENGTH = 60
_VERSION = "0.0.4"

Ranks = tuple[int, ...]


def _schema() -> ModuleType:
    try:
        from ringstep_ns3.workloads import chakra_schema
    except ImportError as error:
        raise WorkloadError(
            f"Chakra traces need protobuf ({error}); pip install 'ringstep-ns3[chakra]'"
        ) from None
    return chakra_schema


@dataclass(slots=True, kw_only=True)
class _Node:
    """What the simulator needs of a node, with dependencies as positions in its trace."""

    id: int
    name: str
    type: int
    micros: int
    attributes: dict[str, Any]
    process_groups: str
    dependencies: list[int]
    after: list[int] = field(default_factory=list)

    @property
    def title(self) -> str:
        """How messages call the node; names of kernels run to hundreds of characters."""
        name = self.name if len(self.name) <= _TITLE_LENGTH else self.name[:_TITLE_LENGTH] + "..."
        return f"node {self.id} {name!r}"


@dataclass(slots=True)
class _Trace:
    path: Path
    nodes: list[_Node]

    def where(self, position: int) -> str:
        node = self.nodes[position]
        return f"{self.path}: {node.title}"


def read_chakra(
    prefix: str | Path,
    *,
    name: str | None = None,
    comm_groups: str | Path | None = None,
    dims: Sequence[int] = (),
    device_flops: float = 0.0,
    ignore_missing: bool = False,
) -> Workload:
    """Return the workload of the traces ``PREFIX.0.et``, ``PREFIX.1.et``, ...

    ``comm_groups``: JSON file ``{"1": [ranks], ...}`` for nodes with ``pg_name`` (groups that
    PyTorch's metadata node lists are known without). ``dims``: sizes of the dimensions behind
    ``involved_dim``, the first of neighbouring ranks. ``device_flops``: rate for computations that
    give ``num_ops`` and no duration; 0 leaves them at no time. Memory nodes take their duration,
    a barrier is an all_reduce of 1 byte, a collective over 0 bytes does nothing. ``ignore_missing``
    drops dependencies on nodes that the trace does not hold, as some recorded traces have them.

    Raises:
        WorkloadError: files missing or broken, ranks that disagree on a collective, a message
            without its other end, an unknown group, a collective kind the simulator has not, a
            dependency on a missing node or a cycle; with file and node.
    """
    schema = _schema()
    prefix = Path(prefix)
    traces = [_read_trace(path, schema, ignore_missing) for path in _trace_paths(prefix)]
    known = _load_groups(comm_groups, len(traces)) if comm_groups is not None else {}
    joiner = _Joiner(traces, known, tuple(dims), device_flops, schema)
    return Workload(
        name=name or prefix.name,
        operations=tuple(joiner.operations()),
        ranks=len(traces),
    )


def _trace_paths(prefix: Path) -> list[Path]:
    pattern = re.compile(re.escape(prefix.name) + r"\.(\d+)\.et")
    found: dict[int, Path] = {}
    try:
        for path in prefix.parent.iterdir():
            match = pattern.fullmatch(path.name)
            if match:
                found[int(match.group(1))] = path
    except OSError as error:
        raise WorkloadError(f"{prefix.parent}: {error.strerror or error}") from None
    if not found:
        raise WorkloadError(
            f"{prefix}: no traces {prefix.name}.0.et, {prefix.name}.1.et ... in {prefix.parent}; "
            "give the common beginning of their names"
        )
    missing = [rank for rank in range(max(found) + 1) if rank not in found]
    if missing:
        raise WorkloadError(
            f"{prefix}.{missing[0]}.et is missing ({max(found) + 1 - len(missing)} of "
            f"{max(found) + 1} ranks have a trace); every rank from 0 on needs one"
        )
    return [found[rank] for rank in sorted(found)]


# --- One trace ---------------------------------------------------------------------------------


def _read_trace(path: Path, schema: ModuleType, ignore_missing: bool) -> _Trace:
    from google.protobuf.message import DecodeError

    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError) as error:
        raise WorkloadError(f"{path}: {error}") from None
    nodes: list[_Node] = []
    for number, (offset, payload) in enumerate(_messages(path, data)):
        message = schema.GlobalMetadata() if number == 0 else schema.Node()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise WorkloadError(
                f"{path}: byte {offset}: not a Chakra {type(message).__name__} ({error}); "
                "an execution trace of schema 0.0.4 or 1.0.0 is needed"
            ) from None
        if number > 0:
            nodes.append(_node(message))
    if not nodes:
        raise WorkloadError(f"{path}: no nodes; an execution trace holds metadata, then nodes")
    trace = _Trace(path, nodes)
    _resolve(trace, ignore_missing)
    return trace


def _messages(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(data):
        start, size, shift = offset, 0, 0
        while True:
            if offset == len(data) or shift > 28:
                raise WorkloadError(
                    f"{path}: byte {start}: broken length; the file is cut or no trace"
                )
            byte = data[offset]
            offset += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if offset + size > len(data):
            raise WorkloadError(
                f"{path}: byte {start}: a message of {size} bytes, but {len(data) - offset} are "
                "left; the file is cut or no trace"
            )
        yield start, data[offset : offset + size]
        offset += size


def _node(message: Any) -> _Node:
    attributes: dict[str, Any] = {}
    for attribute in message.attr:
        which = attribute.WhichOneof("value")
        if which is not None:
            value = getattr(attribute, which)
            attributes[attribute.name] = list(value.values) if which.endswith("_list") else value
    runtime = attributes.get("runtime", 0)
    return _Node(
        id=message.id,
        name=message.name,
        type=message.type,
        micros=message.duration_micros or (runtime if isinstance(runtime, int) else 0),
        attributes=attributes,
        process_groups=message.inputs.values,
        dependencies=[*message.ctrl_deps, *message.data_deps],
    )


def _resolve(trace: _Trace, ignore_missing: bool) -> None:
    """Turn dependencies by id into positions, and put the nodes in an order that respects them."""
    trace.nodes.sort(key=lambda node: node.id)
    position: dict[int, int] = {}
    for index, node in enumerate(trace.nodes):
        if node.id in position:
            raise WorkloadError(f"{trace.where(index)}: the id is taken by another node before it")
        position[node.id] = index
    for index, node in enumerate(trace.nodes):
        for other in node.dependencies:
            if other not in position and not ignore_missing:
                raise WorkloadError(
                    f"{trace.where(index)}: depends on node {other}, which the trace does not "
                    "hold; set ignore_missing to drop such dependencies"
                )
        node.after = sorted({position[it] for it in node.dependencies if it in position})
    order = sort_by_dependencies(
        [node.after for node in trace.nodes],
        lambda index: trace.nodes[index].title,
        str(trace.path),
    )
    place = {index: rank for rank, index in enumerate(order)}
    trace.nodes = [trace.nodes[index] for index in order]
    for node in trace.nodes:
        node.after = sorted(place[index] for index in node.after)


# --- All traces together -----------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    """A collective of one rank: which, over whom, and the how-manieth of that group."""

    kind: Kind
    bytes: int
    share: bool
    root: int
    family: tuple[Ranks, ...]
    group: Ranks
    turn: int


class _Joiner:
    def __init__(
        self,
        traces: list[_Trace],
        known: Mapping[str, Ranks],
        dims: Ranks,
        device_flops: float,
        schema: ModuleType,
    ) -> None:
        self._traces = traces
        self._ranks = len(traces)
        self._known = dict(known)
        self._dims = dims
        self._device_flops = device_flops
        self._types = schema.NodeType
        self._comm_types = schema.CommType
        self._operations: list[Operation] = []
        self._after: list[set[int]] = []
        # (rank, position) -> operation
        self._index: dict[tuple[int, int], int] = {}
        product = 1
        for size in dims:
            product *= size
        if dims and product != self._ranks:
            raise WorkloadError(
                f"dims = {'x'.join(map(str, dims))} make {product} ranks, the traces have "
                f"{self._ranks}"
            )

    def operations(self) -> list[Operation]:
        for rank, trace in enumerate(self._traces):
            self._learn_groups(rank, trace)
        calls = self._calls()
        shared = self._one_graph(calls)
        collectives: dict[tuple[tuple[Ranks, ...], int], int] = {}
        sent: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        joins: list[tuple[int, int, tuple[int, int, int]]] = []
        for position, rank in self._sweep():
            node = self._traces[rank].nodes[position]
            if node.type == self._types.COMM_COLL_NODE:
                call = calls[rank, position]
                key = (call.family, call.turn)
                if key not in collectives:
                    collectives[key] = self._add(self._collective(call, node.name))
                self._index[rank, position] = collectives[key]
            elif node.type == self._types.COMM_SEND_NODE:
                end = self._end(rank, position, "comm_dst")
                message = (rank, end, self._integer(rank, position, "comm_tag", 0))
                size = self._integer(rank, position, "comm_size")
                index = self._add(Send(src=rank, dst=end, bytes=size, label=node.name))
                sent[message].append(index)
                self._index[rank, position] = index
            elif node.type == self._types.COMM_RECV_NODE:
                end = self._end(rank, position, "comm_src")
                tag = self._integer(rank, position, "comm_tag", 0)
                # A message leaves whether or not its receiver waits, so a receive is a join of its
                # own: it takes the message and what the node itself depends on.
                self._index[rank, position] = self._add(
                    Compute(ns=0, ranks=(rank,), label=node.name)
                )
                joins.append((rank, position, (end, rank, tag)))
            elif shared and rank > 0:
                self._index[rank, position] = self._index[0, position]
            else:
                self._index[rank, position] = self._add(self._compute(position, rank, shared))
        self._check_complete(calls)
        self._depend()
        self._join(sent, joins)
        return [
            replace(operation, after=tuple(sorted(after)))
            for operation, after in zip(self._operations, self._after, strict=True)
        ]

    def _add(self, operation: Operation) -> int:
        self._operations.append(operation)
        self._after.append(set())
        return len(self._operations) - 1

    def _sweep(self) -> Iterator[tuple[int, int]]:
        """Go through all nodes, position by position and there rank by rank."""
        longest = max(len(trace.nodes) for trace in self._traces)
        for position in range(longest):
            for rank, trace in enumerate(self._traces):
                if position < len(trace.nodes):
                    yield position, rank

    def _depend(self) -> None:
        for (rank, position), index in self._index.items():
            node = self._traces[rank].nodes[position]
            self._after[index].update(self._index[rank, other] for other in node.after)

    def _join(
        self,
        sent: Mapping[tuple[int, int, int], deque[int]],
        joins: list[tuple[int, int, tuple[int, int, int]]],
    ) -> None:
        for rank, position, message in joins:
            waiting = sent.get(message)
            src, dst, tag = message
            if not waiting:
                raise WorkloadError(
                    f"{self._traces[rank].where(position)}: no message from rank {src} to {dst} "
                    f"with tag {tag} is left for it in {self._traces[src].path.name}"
                )
            index = waiting.popleft()
            operation = self._operations[index]
            size = self._integer(rank, position, "comm_size")
            if isinstance(operation, Send) and operation.bytes != size:
                raise WorkloadError(
                    f"{self._traces[rank].where(position)}: waits for {size} bytes, rank {src} "
                    f"sends {operation.bytes}"
                )
            self._after[self._index[rank, position]].add(index)
        for (src, dst, tag), left in sent.items():
            if left:
                label = self._operations[left[0]].label
                raise WorkloadError(
                    f"{self._traces[src].path}: message {label!r} from rank {src} to {dst} with "
                    f"tag {tag} is never received in {self._traces[dst].path.name}"
                )

    # --- Attributes ---

    def _integer(self, rank: int, position: int, name: str, default: int | None = None) -> int:
        value = self._traces[rank].nodes[position].attributes.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            said = "is missing" if value is None else f"is {value!r}"
            raise WorkloadError(
                f"{self._traces[rank].where(position)}: attribute {name} {said}; "
                "a whole number from 0 up is needed"
            )
        return value

    def _end(self, rank: int, position: int, name: str) -> int:
        end = self._integer(rank, position, name)
        if end >= self._ranks or end == rank:
            raise WorkloadError(
                f"{self._traces[rank].where(position)}: {name} = {end} is not another rank "
                f"(0..{self._ranks - 1})"
            )
        return end

    # --- Groups ---

    def _learn_groups(self, rank: int, trace: _Trace) -> None:
        """Take in the process groups that PyTorch's metadata node lists as JSON."""
        for position, node in enumerate(trace.nodes):
            start, end = node.process_groups.find("["), node.process_groups.rfind("]")
            if node.type != self._types.METADATA_NODE or '"pg_name"' not in node.process_groups:
                continue
            try:
                text = node.process_groups[start : end + 1]
                # The list may come as the only string of a list, ["[{...}]"] with any quotes.
                inner = re.search(r"\[\s*\{.*\}\s*\]", text, re.DOTALL)
                for entry in json.loads(inner.group() if inner else text):
                    members = tuple(entry["ranks"]) or tuple(range(self._ranks))
                    self._known.setdefault(str(entry["pg_name"]), members)
            except (ValueError, KeyError, TypeError) as error:
                raise WorkloadError(
                    f"{trace.where(position)}: process groups are not JSON as PyTorch writes it "
                    f"({error!r})"
                ) from None

    def _calls(self) -> dict[tuple[int, int], _Call]:
        """Return every rank's collectives, numbered within their groups."""
        calls: dict[tuple[int, int], _Call] = {}
        scripts: dict[tuple[int, tuple[Ranks, ...], Ranks], list[tuple[Kind, int]]] = {}
        for rank, trace in enumerate(self._traces):
            for position, node in enumerate(trace.nodes):
                if node.type != self._types.COMM_COLL_NODE:
                    continue
                family, group = self._family(rank, position)
                script = scripts.setdefault((rank, family, group), [])
                kind, size, share = self._what(rank, position)
                root = self._integer(rank, position, "root", 0)
                calls[rank, position] = _Call(kind, size, share, root, family, group, len(script))
                script.append((kind, size))
        families = self._merge_families(scripts)
        for call in calls.values():
            call.family = families[call.family]
        return calls

    def _merge_families(
        self, scripts: Mapping[tuple[int, tuple[Ranks, ...], Ranks], list[tuple[Kind, int]]]
    ) -> dict[tuple[Ranks, ...], tuple[Ranks, ...]]:
        """Let disjoint groups of one size that do the same run as rings of one operation."""
        by_group: dict[tuple[Ranks, ...], list[tuple[Kind, int]]] = {}
        for (_rank, family, _group), script in scripts.items():
            by_group.setdefault(family, script)
        merged: list[list[tuple[Ranks, ...]]] = []
        for family in by_group:
            for other in merged:
                rings = [ring for one in other for ring in one]
                taken = {rank for ring in rings for rank in ring}
                if (
                    len(family) == 1
                    and len(family[0]) == len(rings[0])
                    and not taken & set(family[0])
                    and by_group[other[0]] == by_group[family]
                ):
                    other.append(family)
                    break
            else:
                merged.append([family])
        result = {}
        for members in merged:
            together = tuple(sorted(ring for family in members for ring in family))
            result.update(dict.fromkeys(members, together))
        return result

    def _family(self, rank: int, position: int) -> tuple[tuple[Ranks, ...], Ranks]:
        """Return the rings that run this collective side by side, and the rank's own."""
        node = self._traces[rank].nodes[position]
        everyone = tuple(range(self._ranks))
        group_name = str(node.attributes.get("pg_name", ""))
        involved = node.attributes.get("involved_dim")
        if group_name in self._known:
            members = self._known[group_name]
            if rank not in members:
                raise WorkloadError(
                    f"{self._traces[rank].where(position)}: rank {rank} is not in group "
                    f"{group_name!r} {list(members)}"
                )
            return (members,), members
        if group_name not in ("", "0"):
            raise WorkloadError(
                f"{self._traces[rank].where(position)}: group {group_name!r} is not known; give "
                'comm_groups, a JSON file such as {"1": [0, 1], "2": [2, 3]}'
            )
        if isinstance(involved, list) and not all(involved[: len(self._dims) or None]):
            rings = self._involved(rank, position, [bool(use) for use in involved])
            return rings, next(ring for ring in rings if rank in ring)
        return (everyone,), everyone

    def _involved(self, rank: int, position: int, involved: list[bool]) -> tuple[Ranks, ...]:
        if not self._dims or len(involved) < len(self._dims):
            raise WorkloadError(
                f"{self._traces[rank].where(position)}: involved_dim = {involved} needs the sizes "
                "of these dimensions; set dims, such as 8x4"
            )
        rings: dict[Ranks, list[int]] = {}
        for member in range(self._ranks):
            rest, outside = member, []
            for size, use in zip(self._dims, involved, strict=False):
                rest, coordinate = divmod(rest, size)
                if not use:
                    outside.append(coordinate)
            rings.setdefault(tuple(outside), []).append(member)
        return tuple(tuple(ring) for ring in rings.values())

    def _what(self, rank: int, position: int) -> tuple[Kind, int, bool]:
        """Return kind, bytes, and whether they are one rank's share."""
        number = self._integer(rank, position, "comm_type")
        types = self._comm_types
        kinds = {
            types.ALL_REDUCE: Kind.ALL_REDUCE,
            types.ALL_GATHER: Kind.ALL_GATHER,
            types.BROADCAST: Kind.BROADCAST,
            types.ALL_TO_ALL: Kind.ALL_TO_ALL,
            types.REDUCE_SCATTER: Kind.REDUCE_SCATTER,
            types.REDUCE_SCATTER_BLOCK: Kind.REDUCE_SCATTER,
            types.BARRIER: Kind.ALL_REDUCE,
        }
        if number not in kinds:
            known = {kind.value: kind.name for kind in types}
            raise WorkloadError(
                f"{self._traces[rank].where(position)}: comm_type {known.get(number, number)} is "
                f"not simulated; there are {', '.join(kind.name for kind in kinds)}"
            )
        if number == types.BARRIER:
            return Kind.ALL_REDUCE, _BARRIER_BYTES, False
        kind = kinds[types(number)]
        return kind, self._integer(rank, position, "comm_size"), kind is Kind.ALL_GATHER

    def _check_complete(self, calls: Mapping[tuple[int, int], _Call]) -> None:
        """Check that every rank of rings that run side by side makes the same calls."""
        by_call: dict[tuple[tuple[Ranks, ...], int], dict[int, int]] = {}
        for (rank, position), call in calls.items():
            by_call.setdefault((call.family, call.turn), {})[rank] = position
        for (family, turn), positions in by_call.items():
            first = min(positions)
            call = calls[first, positions[first]]
            where = self._traces[first].where(positions[first])
            for rank in (rank for ring in family for rank in ring):
                if rank >= self._ranks:
                    raise WorkloadError(f"{where}: its group holds rank {rank}, which has no trace")
                if rank not in positions:
                    raise WorkloadError(
                        f"{where}: collective {turn} of its group is missing in "
                        f"{self._traces[rank].path.name}; every rank of a group must make it"
                    )
                other = calls[rank, positions[rank]]
                if (other.kind, other.bytes) != (call.kind, call.bytes):
                    raise WorkloadError(
                        f"{where}: {call.kind} over {call.bytes} bytes here, {other.kind} over "
                        f"{other.bytes} bytes in {self._traces[rank].where(positions[rank])}; "
                        "the ranks of a group must agree"
                    )

    # --- Operations ---

    def _one_graph(self, calls: Mapping[tuple[int, int], _Call]) -> bool:
        """Say whether every rank runs the same graph, without messages from rank to rank."""

        def shape(rank: int) -> Iterator[tuple[object, ...]]:
            for position, node in enumerate(self._traces[rank].nodes):
                call = calls.get((rank, position))
                made = (call.family, call.turn) if call else None
                yield (node.type, tuple(node.after), made)

        messages = (self._types.COMM_SEND_NODE, self._types.COMM_RECV_NODE)
        if any(node.type in messages for node in self._traces[0].nodes):
            return False
        first = list(shape(0))
        return all(list(shape(rank)) == first for rank in range(1, self._ranks))

    def _compute(self, position: int, rank: int, shared: bool) -> Compute:
        members = range(self._ranks) if shared else (rank,)
        times = [self._time_ns(member, position) for member in members]
        label = self._traces[rank].nodes[position].name
        if not shared:
            return Compute(ns=times[0], ranks=(rank,), label=label)
        return Compute(ns=times[0] if len(set(times)) == 1 else tuple(times), label=label)

    def _time_ns(self, rank: int, position: int) -> int:
        node = self._traces[rank].nodes[position]
        if node.type in (self._types.METADATA_NODE, self._types.INVALID_NODE):
            return 0
        work = node.attributes.get("num_ops", 0)
        if node.micros == 0 and self._device_flops > 0 and isinstance(work, int):
            return round(work / self._device_flops * 1e9)
        return node.micros * _MICROSECOND_NS

    def _collective(self, call: _Call, label: str) -> Collective:
        whole = call.family == (tuple(range(self._ranks)),)
        return Collective(
            kind=call.kind,
            bytes=call.bytes,
            group=Group.ALL if whole else Group.CUSTOM,
            rings=() if whole else call.family,
            root=call.root,
            share=call.share,
            label=label,
        )


def _load_groups(path: str | Path, ranks: int) -> dict[str, Ranks]:
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None
    known: dict[str, Ranks] = {}
    if not isinstance(data, dict):
        raise WorkloadError(f'{path}: must be an object such as {{"1": [0, 1], "2": [2, 3]}}')
    for name, members in data.items():
        good = isinstance(members, list) and all(
            type(rank) is int and 0 <= rank < ranks for rank in members
        )
        if not good or not members or len(set(members)) < len(members):
            raise WorkloadError(
                f"{path}: group {name!r} must list different ranks between 0 and {ranks - 1}"
            )
        known[name] = tuple(members)
    return known


# --- Writing -----------------------------------------------------------------------------------


def write_chakra(workload: Workload, ranks: int, prefix: str | Path) -> Path | None:
    """Write one iteration as ``PREFIX.N.et`` for each rank; return the file of groups, if any.

    Collectives over parts of the ranks name a group of ``PREFIX.groups.json``, which
    :func:`read_chakra` takes as ``comm_groups``. What waits on the iteration before is left out.

    Raises:
        WorkloadError: a time that is not whole microseconds (the format has no finer ones), an
            all_gather that its ranks cannot share evenly, a folder that cannot be written.
    """
    writer = _Writer(workload, ranks, _schema())
    prefix = Path(prefix)
    try:
        for rank in range(ranks):
            Path(f"{prefix}.{rank}.et").write_bytes(writer.trace(rank))
        if not writer.groups:
            return None
        path = Path(f"{prefix}.groups.json")
        names = {str(number): list(ring) for ring, number in writer.groups.items()}
        path.write_text(json.dumps(names) + "\n", encoding="utf-8")
        return path
    except OSError as error:
        raise WorkloadError(
            f"{prefix}: {error.strerror or error}; give a folder to write to"
        ) from None


class _Writer:
    def __init__(self, workload: Workload, ranks: int, schema: ModuleType) -> None:
        self._workload = workload
        self._ranks = ranks
        self._schema = schema
        self._order = topological_order(workload)
        self.groups: dict[Ranks, int] = {}

    def trace(self, rank: int) -> bytes:
        data = _framed(self._schema.GlobalMetadata(version=_VERSION))
        for index in self._order:
            data += _framed(self._node(index, rank))
        return data

    def _node(self, index: int, rank: int) -> Any:
        operation = self._workload.operations[index]
        node = self._schema.Node(id=index, name=operation.label)
        node.data_deps.extend(operation.after)
        add: Callable[..., Any] = node.attr.add
        if isinstance(operation, Compute):
            node.type = self._schema.NodeType.COMP_NODE
            node.duration_micros = self._micros(operation, index, rank)
        elif isinstance(operation, Send) and rank in (operation.src, operation.dst):
            sends = rank == operation.src
            node.type = (
                self._schema.NodeType.COMM_SEND_NODE
                if sends
                else self._schema.NodeType.COMM_RECV_NODE
            )
            add(name="comm_size", int64_val=operation.bytes)
            add(name="comm_src", int32_val=operation.src)
            add(name="comm_dst", int32_val=operation.dst)
            add(name="comm_tag", int32_val=index)
        elif isinstance(operation, Collective) and (ring := self._ring(operation, rank)):
            node.type = self._schema.NodeType.COMM_COLL_NODE
            add(name="comm_type", int64_val=self._schema.CommType[operation.kind.name].value)
            add(name="comm_size", int64_val=self._size(operation, ring, index))
            if operation.kind is Kind.BROADCAST:
                add(name="root", int64_val=operation.root)
            if len(ring) < self._ranks:
                number = self.groups.setdefault(ring, len(self.groups) + 1)
                add(name="pg_name", string_val=str(number))
        else:
            # The rank has no part in it, but what it waits for later still goes through here.
            node.type = self._schema.NodeType.METADATA_NODE
        add(name="is_cpu_op", bool_val=False)
        return node

    def _ring(self, operation: Collective, rank: int) -> Ranks | None:
        rings: Iterable[Ranks] = operation.rings
        if operation.group is not Group.CUSTOM:
            size = self._workload.model_parallel or 1
            rings = groups(operation.group, self._ranks, size, self._workload.inner)
        ring = next((ring for ring in rings if rank in ring), None)
        return ring if ring is not None and len(ring) > 1 else None

    def _size(self, operation: Collective, ring: Ranks, index: int) -> int:
        if operation.kind is not Kind.ALL_GATHER:
            return operation.bytes * (len(ring) if operation.share else 1)
        if operation.share:
            return operation.bytes
        if operation.bytes % len(ring):
            raise WorkloadError(
                f"workload {self._workload.name!r}, operation {index}: all_gather of "
                f"{operation.bytes} bytes does not divide over {len(ring)} ranks; Chakra counts "
                "the share of one"
            )
        return operation.bytes // len(ring)

    def _micros(self, operation: Compute, index: int, rank: int) -> int:
        if operation.ranks is None and isinstance(operation.ns, int):
            ns = operation.ns
        else:
            ns = compute_by_rank(operation).get(rank, 0)
        if ns % _MICROSECOND_NS:
            raise WorkloadError(
                f"workload {self._workload.name!r}, operation {index}: {ns} ns is not a whole "
                "number of microseconds, which is what Chakra's duration_micros holds"
            )
        return ns // _MICROSECOND_NS


def _framed(message: Any) -> bytes:
    payload: bytes = message.SerializeToString(deterministic=True)
    size, prefix = len(payload), bytearray()
    while size > 0x7F:
        prefix.append(0x80 | (size & 0x7F))
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + payload
