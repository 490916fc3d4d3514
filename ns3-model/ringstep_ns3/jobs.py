"""From ``[[job]]`` to programs on hosts: placement, rings, operations, start times, stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ringstep.fabric.tomlfile import Location
from ringstep.protocol.limits import MAX_JOBS, STEP_BITS_MAX, UDP_SPORT_BASE
from ringstep_ns3.scenario import (
    CollectiveKeys,
    Job,
    MarkerTable,
    OpTable,
    Scenario,
    WorkloadTable,
)
from ringstep_ns3.streams import Stream
from ringstep_ns3.tomldoc import Findings
from ringstep_ns3.topology import Graph, nearest
from ringstep_ns3.workloads.model import WorkloadError
from ringstep_ns3.workloads.options import build
from ringstep_ns3.workloads.program import ProgramOp, Style, program

_RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
_ALGORITHMS = {
    "all_reduce": ("ring", "ring_2d", "double_binary_tree", "halving_doubling"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring",),
    "all_to_all": ("direct",),
    "send": ("direct",),
}
_MAX_OPS = 1_000_000


@dataclass(frozen=True, slots=True)
class JobOp:
    """One operation, as the core takes it; ranks are positions in the job's host list."""

    kind: str
    name: str
    size: int = 0
    algorithm: str = "ring"
    rings: tuple[tuple[int, ...], ...] = ()
    dims: tuple[int, ...] = ()
    channels: int = 1
    passes: int = 1
    chunks: int = 1
    window: int = 0
    root: int = 0
    src: int = 0
    dst: int = 0
    compute_ns: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def steps(self, ranks: int) -> int:
        """Return how many step indices this operation uses (trees: an upper bound)."""
        longest = max((len(ring) for ring in self.rings), default=ranks)
        if self.kind == "compute":
            return 0
        if self.kind == "send":
            return self.passes
        if self.kind == "all_to_all":
            return (longest - 1) * self.passes
        if self.kind == "broadcast":
            return (longest - 2 + self.chunks) * self.passes
        if self.algorithm == "ring_2d":
            return 2 * sum(length - 1 for length in self.dims) * self.passes
        if self.algorithm == "halving_doubling":
            return 2 * (longest.bit_length() + 1) * self.passes
        if self.algorithm == "double_binary_tree":
            return 2 * (longest.bit_length() + self.chunks) * self.passes
        return _RING_STEPS[self.kind] * (longest - 1) * self.passes

    def ring_shares(self, ranks: int) -> set[int]:
        """Return the bytes that a step of a ring carries on one channel: the sizes there are."""
        if self.kind not in _RING_STEPS or self.algorithm not in ("ring", "ring_2d"):
            return set()
        stages = {(len(ring), self.size) for ring in self.rings or (tuple(range(ranks)),)}
        if self.algorithm == "ring_2d":
            inner, outer = self.dims
            stages = {(inner, self.size), (outer, -(-self.size // inner))}
        return {
            _part(_part(size, self.channels, channel), length, chunk)
            for length, size in stages
            for channel in range(self.channels)
            for chunk in range(length)
        }

    def ring_edges(self, ranks: int) -> list[tuple[int, int, int]]:
        """Return (rank, its successor, channel) for every edge of every ring; others have none.

        Channel c of ring r is r x channels + c; the rows and the columns of a 2D ring count from 0.
        """
        if self.kind not in (*_RING_STEPS, "broadcast") or self.algorithm not in (
            "ring",
            "ring_2d",
        ):
            return []
        stages = [list(self.rings) or [tuple(range(ranks))]]
        if self.algorithm == "ring_2d":
            inner = self.dims[0]
            rows = [tuple(range(i, i + inner)) for i in range(0, ranks, inner)]
            stages = [rows, [tuple(range(i, ranks, inner)) for i in range(inner)]]
        return [
            (rank, ring[(i + 1) % len(ring)], number * self.channels + channel)
            for rings in stages
            for number, ring in enumerate(rings)
            for channel in range(self.channels)
            for i, rank in enumerate(ring)
            # A broadcast ends before it comes back to its root.
            if self.kind != "broadcast" or ring[(i + 1) % len(ring)] != self.root
        ]


def _part(total: int, parts: int, index: int) -> int:
    """Return the size of a part of a buffer, as the core cuts it."""
    return total * (index + 1) // parts - total * index // parts


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job that is ready to run; ``index`` is its ``[[job]]`` table, from 0. Times in ns."""

    job_id: int
    index: int
    name: str
    table: Job
    hosts: tuple[str, ...]
    ops: tuple[JobOp, ...]
    start_ns: int
    rank_delay_ns: tuple[int, ...]
    step_delay_ns: tuple[int, ...]
    compute_scale: tuple[float, ...]

    @property
    def steps(self) -> int:
        """Step indices that the whole program uses."""
        return sum(op.steps(len(self.hosts)) for op in self.ops)

    @property
    def iteration_ops(self) -> int:
        """Operations of one iteration; those of an iteration stand together in ``ops``."""
        return len(self.ops) // self.table.iterations


def place_jobs(
    scenario: Scenario, graph: Graph, seed: int, findings: Findings
) -> tuple[PlacedJob, ...]:
    """Return all jobs of a scenario, copies included; what is wrong goes to ``findings``."""
    placed: list[PlacedJob] = []
    taken: set[str] = set()
    names: dict[str, int] = {}
    if sum(job.copies for job in scenario.job) > MAX_JOBS:
        findings.add(("job",), f"more than {MAX_JOBS} jobs; job ids are 1..{MAX_JOBS}")
        return ()
    for index, job in enumerate(scenario.job):
        where: Location = ("job", index)
        name = job.name or f"job{index + 1}"
        if name in names:
            findings.add(
                (*where, "name"),
                f"{name!r} is the name of job[{names[name] + 1}] too; take another",
            )
        names.setdefault(name, index)
        ranks = _ranks(job, graph, where, findings)
        if ranks is None:
            continue
        ops = _program(job, ranks, scenario.folder, where, findings)
        stragglers = [s for s in job.straggler if s.rank < ranks]
        for i, straggler in enumerate(job.straggler):
            if straggler.rank >= ranks:
                findings.add(
                    (*where, "straggler", i, "rank"),
                    f"{straggler.rank} is not in the job; its ranks are 0..{ranks - 1}",
                )
        if ops is None:
            continue
        starts = _starts(job, seed, name)
        for copy in range(job.copies):
            full_name = name if job.copies == 1 else f"{name}-{copy + 1}"
            hosts = _hosts(job, graph, ranks, taken, Stream(seed, f"placement:{full_name}"))
            _check_reachable(hosts, graph, where, findings)
            jitter = Stream(seed, f"jitter:{full_name}")
            delays = [int(jitter.uniform() * job.jitter) for _ in hosts] if job.jitter else []
            for straggler in stragglers:
                delays = delays or [0] * ranks
                delays[straggler.rank] += straggler.delay
            step_delays = [0] * ranks if any(s.step_delay for s in stragglers) else []
            scales = [1.0] * ranks if any(s.compute != 1 for s in stragglers) else []
            for straggler in stragglers:
                if step_delays:
                    step_delays[straggler.rank] += straggler.step_delay
                if scales:
                    scales[straggler.rank] *= straggler.compute
            placed.append(
                PlacedJob(
                    len(placed) + 1,
                    index,
                    full_name,
                    job,
                    hosts,
                    ops,
                    starts[copy],
                    tuple(delays),
                    tuple(step_delays),
                    tuple(scales),
                )
            )
        _check_steps(scenario, placed[-1], where, findings)
        if job.messages_per_step is not None and not any(op.ring_shares(ranks) for op in ops):
            findings.add(
                (*where, "messages_per_step"),
                "cuts steps of rings, and the job has none; take it out",
            )
    return tuple(placed)


def _ranks(job: Job, graph: Graph, where: Location, findings: Findings) -> int | None:
    hosts, unknown = graph.hosts_of(job.hosts or ("all",))
    if unknown:
        findings.add(
            (*where, "hosts"),
            f"{unknown[0]!r} is no host of the fabric; "
            f"{nearest(unknown[0], (*graph.hosts, *graph.switches))}",
        )
        return None
    if job.placement == "explicit":
        if not job.hosts:
            findings.add(
                (*where, "placement"),
                '"explicit" needs the hosts; write for example hosts = ["h0", "h8"]',
            )
            return None
        if len(set(job.hosts)) < len(job.hosts):
            twice = next(h for h in job.hosts if job.hosts.count(h) > 1)
            findings.add(
                (*where, "hosts"), f"{twice!r} stands twice; a host holds one rank of a job"
            )
            return None
    ranks = job.ranks if job.ranks is not None else len(hosts)
    if ranks > len(hosts) or (job.placement == "explicit" and ranks != len(hosts)):
        findings.add(
            (*where, "ranks"),
            f"{ranks} ranks, but {len(hosts)} hosts; a host holds one rank of a job: take ranks = "
            f"{len(hosts)} or a larger fabric",
        )
        return None
    return ranks


def _hosts(job: Job, graph: Graph, ranks: int, taken: set[str], stream: Stream) -> tuple[str, ...]:
    candidates, _ = graph.hosts_of(job.hosts or ("all",))
    if job.placement == "explicit":
        return tuple(candidates)
    free = [host for host in candidates if host not in taken]
    if len(free) < ranks:
        taken.difference_update(candidates)
        free = candidates
    if job.placement == "random":
        free = [free[i] for i in stream.permutation(len(free))]
    elif job.placement == "striped":
        position: dict[str, int] = {}
        order = []
        for i, host in enumerate(free):
            tor = graph.tor_of.get(host, host)
            position[tor] = position.get(tor, -1) + 1
            order.append((position[tor], i, host))
        free = [host for _, _, host in sorted(order)]
    chosen = tuple(free[:ranks])
    taken.update(chosen)
    return chosen


def _check_reachable(
    hosts: Sequence[str], graph: Graph, where: Location, findings: Findings
) -> None:
    for host in hosts[1:]:
        if graph.parts[host] != graph.parts[hosts[0]]:
            findings.add(
                (*where, "hosts"),
                f"no path joins {hosts[0]!r} and {host!r}; add a link between their switches, or "
                "place the job on one side",
            )
            return


def packets_of_steps(job: PlacedJob, mtu: int) -> tuple[int, int]:
    """Return the fewest packets of a ring step, and the most before the last message of one.

    ``mtu`` is the payload of a packet in bytes. A job without rings: (0, 0).
    """
    messages = job.table.messages_per_step or 1
    whole: list[int] = []
    before_last: list[int] = []
    for share in {size for op in job.ops for size in op.ring_shares(len(job.hosts))}:
        packets = [max(1, -(-_part(share, messages, i) // mtu)) for i in range(messages)]
        whole.append(sum(packets))
        before_last.append(sum(packets[:-1]))
    return min(whole, default=0), max(before_last, default=0)


def step_bits(table: MarkerTable, job: Job) -> int:
    """Return how many bits of the step the marker sees of a job."""
    if table.step_bits is not None:
        return table.step_bits
    if job.sender == "qp_pool" and job.port == "per_step":
        return max((job.pool - 1).bit_length(), 1)
    return STEP_BITS_MAX


def _check_steps(scenario: Scenario, job: PlacedJob, where: Location, findings: Findings) -> None:
    steps = job.steps
    base = scenario.transport.sport_base
    if base != UDP_SPORT_BASE and base + steps > 1 << 16:
        findings.add(
            where,
            f"counts {steps} steps; with transport.sport_base = {base} the source port holds "
            f"{(1 << 16) - base}: take fewer passes or iterations, or sport_base = 0xC000, which "
            "wraps",
        )
    bits = step_bits(scenario.marker, job.table)
    marked = scenario.switch.marking == "marker" and job.table.marked
    if job.table.sender == "qp_pool" and job.table.port == "per_step":
        pool = job.table.pool
        if marked and (pool < 8 or pool & (pool - 1)):
            findings.add(
                (*where, "pool"),
                f"{pool} QPs: the port carries the step modulo the pool, and the marker tells "
                "steps apart by whole bits, at least 3; take 8, 16, 32 ...",
            )
    elif marked and steps > 1 << bits and scenario.marker.step_wrap == "refuse":
        findings.add(
            where,
            f"counts {steps} steps; the tag of {bits} bits holds {1 << bits}: take fewer passes or "
            'iterations, or marker.step_wrap = "allow", which is safe while steps in flight differ '
            f"by less than {1 << (bits - 1)}",
        )


def _starts(job: Job, seed: int, name: str) -> list[int]:
    starts, time = [], job.start
    stream = Stream(seed, f"arrivals:{name}")
    for _ in range(job.copies):
        if job.arrivals == "poisson":
            time += round(stream.exponential(job.interval))
        starts.append(time)
        if job.arrivals == "fixed":
            time += job.interval
    return starts


# --- Programs ---------------------------------------------------------------------------------


def _program(
    job: Job, ranks: int, folder: Path, where: Location, findings: Findings
) -> tuple[JobOp, ...] | None:
    if job.op and job.workload is not None:
        findings.add(
            (*where, "workload"), "stands beside [[job.op]]; a job has one program: take one out"
        )
        return None
    if job.workload is not None:
        return _from_workload(job, job.workload, ranks, folder, where, findings)
    if job.op:
        once = _from_ops(job, ranks, where, findings)
    else:
        collective = _collective(job, job.collective, "", ranks, where, findings)
        if collective is None:
            return None
        once = [replace(collective, name=job.collective)]
        if job.compute:
            once = [
                JobOp("compute", "compute", compute_ns=(job.compute,)),
                replace(once[0], after=(0,)),
            ]
    if once is None:
        return None
    if len(once) * job.iterations > _MAX_OPS:
        findings.add(
            (*where, "iterations"),
            f"{len(once) * job.iterations} operations; a program holds {_MAX_OPS}",
        )
        return None
    return _repeat(once, job.iterations)


def _repeat(once: Sequence[JobOp], iterations: int) -> tuple[JobOp, ...]:
    """The program over and over: what starts an iteration waits for all that ends the last one."""
    waited = {i for op in once for i in op.after}
    sinks = [i for i in range(len(once)) if i not in waited]
    ops: list[JobOp] = []
    for iteration in range(iterations):
        base = iteration * len(once)
        for op in once:
            after = tuple(base + i for i in op.after)
            if iteration and not op.after:
                after = tuple(base - len(once) + i for i in sinks)
            name = op.name if iterations == 1 else f"{iteration + 1}/{op.name}"
            ops.append(replace(op, name=name, after=after))
    return tuple(ops)


def _from_ops(job: Job, ranks: int, where: Location, findings: Findings) -> list[JobOp] | None:
    names = [op.name or f"op{i + 1}" for i, op in enumerate(job.op)]
    number: dict[str, int] = {}
    for i, name in enumerate(names):
        if name in number:
            findings.add(
                (*where, "op", i, "name"),
                f"{name!r} is the name of op[{number[name] + 1}] too; take another",
            )
        number.setdefault(name, i)
    ops: list[JobOp] = []
    good = len(number) == len(names)
    for i, table in enumerate(job.op):
        here: Location = (*where, "op", i)
        after: list[int] = [i - 1] if table.after is None and i else []
        for name in table.after or ():
            if name in number:
                after.append(number[name])
            else:
                findings.add((*here, "after"), f"{name!r} is no operation; {nearest(name, names)}")
                good = False
        op = _one_op(table, ranks, here, findings)
        if op is None:
            good = False
            continue
        ops.append(replace(op, name=names[i], after=tuple(sorted(set(after)))))
    if not good:
        return None
    if cycle := _cycle([op.after for op in ops]):
        text = " -> ".join(names[i] for i in cycle)
        findings.add(
            (*where, "op", cycle[0], "after"),
            f"the operations wait for one another: {text}; take one of them out of 'after'",
        )
        return None
    return ops


def _one_op(table: OpTable, ranks: int, where: Location, findings: Findings) -> JobOp | None:
    if table.kind != "compute":
        return _collective(table, table.kind, table.name, ranks, where, findings)
    if table.time == 0:
        findings.add((*where, "time"), 'how long to compute is missing; write time = "1ms"')
        return None
    return JobOp("compute", table.name, compute_ns=(table.time,))


def _cycle(after: Sequence[Sequence[int]]) -> list[int]:
    """Return operations that wait for one another, the first one repeated at the end."""
    state = [0] * len(after)
    for start in range(len(after)):
        if state[start]:
            continue
        path = [(start, 0)]
        state[start] = 1
        while path:
            here, position = path[-1]
            if position == len(after[here]):
                state[here] = 2
                path.pop()
                continue
            path[-1] = (here, position + 1)
            there = after[here][position]
            if state[there] == 1:
                on_path = [node for node, _ in path]
                return [*on_path[on_path.index(there) :], there]
            if state[there] == 0:
                state[there] = 1
                path.append((there, 0))
    return []


def _collective(
    table: CollectiveKeys,
    kind: str,
    name: str,
    ranks: int,
    where: Location,
    findings: Findings,
) -> JobOp | None:
    algorithm = table.algorithm
    if algorithm == "ring" and "ring" not in _ALGORITHMS[kind]:
        algorithm = "direct"
    if algorithm not in _ALGORITHMS[kind]:
        findings.add(
            (*where, "algorithm"),
            f"{algorithm!r} does not do {kind}; write {' or '.join(_ALGORITHMS[kind])}",
        )
        return None
    if kind == "send":
        return _send(table, name, ranks, where, findings)
    rings = _rings(table, algorithm, ranks, where, findings)
    if rings is None or not _dims_fit(table, algorithm, ranks, where, findings):
        return None
    size = _size(table, kind, algorithm, rings, ranks, where, findings)
    if size is None:
        return None
    if table.root >= ranks:
        findings.add((*where, "root"), f"{table.root} is no rank; ranks are 0..{ranks - 1}")
        return None
    return JobOp(
        kind,
        name,
        size,
        algorithm,
        rings,
        table.dims,
        table.channels,
        table.passes,
        table.chunks,
        table.in_flight,
        table.root,
    )


def _send(
    table: CollectiveKeys, name: str, ranks: int, where: Location, findings: Findings
) -> JobOp | None:
    good = True
    for key, rank in (("src", table.src), ("dst", table.dst)):
        if rank >= ranks:
            findings.add((*where, key), f"{rank} is no rank; ranks are 0..{ranks - 1}")
            good = False
    if good and table.src == table.dst:
        findings.add((*where, "dst"), "is the sender itself; take another rank")
        good = False
    size = _size(table, "send", "direct", (), ranks, where, findings)
    if not good or size is None:
        return None
    return JobOp("send", name, size, "direct", passes=table.passes, src=table.src, dst=table.dst)


def _rings(
    table: CollectiveKeys, algorithm: str, ranks: int, where: Location, findings: Findings
) -> tuple[tuple[int, ...], ...] | None:
    """Rings of ranks; empty: one over all of them."""
    if table.rings:
        if table.ring_size is not None:
            findings.add((*where, "ring_size"), "stands beside 'rings'; take one of the two out")
            return None
        if algorithm == "ring_2d":
            findings.add((*where, "rings"), "stands beside ring_2d, whose rings follow from 'dims'")
            return None
        seen: dict[int, int] = {}
        for i, ring in enumerate(table.rings):
            if len(ring) < 2:
                findings.add(
                    (*where, "rings"),
                    f"ring {i + 1} has {len(ring)} rank; a ring over one node sends nothing: name "
                    "two or more",
                )
                return None
            for rank in ring:
                if rank >= ranks:
                    findings.add(
                        (*where, "rings"),
                        f"rank {rank} is not in the job; ranks are 0..{ranks - 1}",
                    )
                    return None
                if rank in seen:
                    findings.add(
                        (*where, "rings"),
                        f"rank {rank} stands in ring {seen[rank] + 1} and ring {i + 1}; rings "
                        "share no rank",
                    )
                    return None
                seen[rank] = i
        return table.rings
    length = table.ring_size if table.ring_size is not None else ranks
    if length < 2 or ranks < 2:
        key = "ring_size" if table.ring_size is not None and ranks >= 2 else "ranks"
        location = (*where[:2], "ranks") if key == "ranks" else (*where, "ring_size")
        findings.add(
            location,
            "a ring over one node sends nothing; take two or more ranks"
            if key == "ranks"
            else "a ring over one node sends nothing; take ring_size = 2 or more",
        )
        return None
    if table.ring_size is None or algorithm == "ring_2d" or length == ranks:
        return ()
    if ranks % length:
        findings.add(
            (*where, "ring_size"),
            f"{length} does not divide the job's {ranks} ranks; take a divisor, or list 'rings'",
        )
        return None
    count = ranks // length
    if table.ring_layout == "strided":
        return tuple(tuple(range(first, ranks, count)) for first in range(count))
    return tuple(tuple(range(first * length, (first + 1) * length)) for first in range(count))


def _dims_fit(
    table: CollectiveKeys, algorithm: str, ranks: int, where: Location, findings: Findings
) -> bool:
    if algorithm == "ring_2d":
        if len(table.dims) != 2:
            findings.add(
                where, f"ring_2d needs 'dims'; write dims = [inner, outer] with product {ranks}"
            )
            return False
        if table.dims[0] * table.dims[1] != ranks or min(table.dims) < 2:
            findings.add(
                (*where, "dims"),
                f"{table.dims[0]} x {table.dims[1]} ranks, but the job has {ranks}; the product "
                "must be that, and each at least 2",
            )
            return False
    elif table.dims:
        findings.add((*where, "dims"), 'goes with algorithm = "ring_2d" only; take it out')
        return False
    return True


def _size(
    table: CollectiveKeys,
    kind: str,
    algorithm: str,
    rings: tuple[tuple[int, ...], ...],
    ranks: int,
    where: Location,
    findings: Findings,
) -> int | None:
    if table.size is not None and table.chunk is not None:
        findings.add(
            (*where, "chunk"), "stands beside 'size'; one follows from the other: take one"
        )
        return None
    if table.size is not None:
        return table.size
    if table.chunk is None:
        example = 'chunk = "8MiB"' if kind in _RING_STEPS else 'size = "64MiB"'
        findings.add(where, f"how much to send is missing; write for example {example}")
        return None
    lengths = {len(ring) for ring in rings} or {ranks}
    if kind == "all_to_all":
        return table.chunk * ranks
    if kind not in _RING_STEPS or algorithm != "ring" or len(lengths) > 1:
        findings.add(
            (*where, "chunk"), "is for rings of one length; write 'size', the buffer per rank"
        )
        return None
    return table.chunk * lengths.pop() * table.channels


def _from_workload(
    job: Job,
    table: WorkloadTable,
    ranks: int,
    folder: Path,
    where: Location,
    findings: Findings,
) -> tuple[JobOp, ...] | None:
    rings = _rings(job, job.algorithm, ranks, where, findings)
    if rings is None or not _dims_fit(job, job.algorithm, ranks, where, findings):
        return None
    style = Style(
        algorithm=job.algorithm,
        rings=rings,
        dims=job.dims,
        channels=job.channels,
        chunks=job.chunks,
        window=job.in_flight,
    )
    try:
        workload = build(table.source, table.options, folder)
        if job.iterations > 1:
            workload = workload.with_iterations(workload.iterations * job.iterations)
        return tuple(_from_program(op) for op in program(workload, ranks, style))
    except WorkloadError as error:
        for problem in error.problems:
            findings.add((*where, "workload"), problem)
        return None


def _from_program(op: ProgramOp) -> JobOp:
    return JobOp(
        op.kind,
        op.name,
        op.bytes,
        op.algorithm,
        op.rings,
        op.dims,
        op.channels,
        1,
        op.chunks,
        op.window,
        op.root,
        op.src,
        op.dst,
        op.compute_ns,
        op.after,
    )
