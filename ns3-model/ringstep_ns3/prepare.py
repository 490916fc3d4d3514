"""Everything a run needs, checked and decided, before the simulator's core sees any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringstep.fabric.pathgraph import PlanError
from ringstep.fabric.planner import Demand, EdgeKey, plan_paths
from ringstep.fabric.tomlfile import Location
from ringstep.fabric.turns import turned, turns
from ringstep.protocol.limits import STEP_BITS_MAX
from ringstep.protocol.loop import Arm, ClosedLoop, LoopParams
from ringstep.protocol.marker import PROFILES, MarkerParams, ProgressMode, Scope, k_fixed
from ringstep.protocol.tag import TagLayout
from ringstep_ns3.background import FlowList, make_flows
from ringstep_ns3.jobs import PlacedJob, packets_of_steps, place_jobs, step_bits
from ringstep_ns3.loop import LOOP_KEYS, ArmPlan, LoopPlan
from ringstep_ns3.red import RedThresholds, mark_gap_us, red_rows
from ringstep_ns3.scenario import Job, MarkerTable, Scenario
from ringstep_ns3.streams import Stream
from ringstep_ns3.tomldoc import Findings
from ringstep_ns3.topology import Graph, make_graph, nearest


@dataclass(frozen=True, slots=True)
class PlannedPath:
    """A ring edge pinned to directed links, by node and link number; ``job`` is a job id.

    Several for one edge: its turns, one after the other by the step.
    """

    job: int
    src: int
    dst: int
    channel: int
    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """Something that happens to a cable; ``rate_bps`` with ``degrade`` only."""

    time_ns: int
    cable: int
    action: str
    rate_bps: int


@dataclass(frozen=True, slots=True)
class DropRule:
    """Packets to lose on the wire, as the core takes it; -1: any."""

    kind: str
    which: str
    n: int
    times: int
    src: int
    dst: int
    step: int
    link: int


@dataclass(frozen=True)
class Prepared:
    """A scenario with a seed, ready to be handed to the core."""

    scenario: Scenario
    seed: int
    graph: Graph
    jobs: tuple[PlacedJob, ...]
    flows: tuple[FlowList, ...]
    red: tuple[RedThresholds, ...]
    mark_gap_us: int
    """0: marks are not spaced."""
    marked: frozenset[str]
    """Switches that do the marking."""
    scope: Scope
    markers: tuple[MarkerParams | None, ...]
    """Per job; None: unknown to the marker."""
    loops: tuple[LoopPlan, ...]
    """Per job; empty: no closed loop."""
    paths: tuple[PlannedPath, ...]
    events: tuple[LinkEvent, ...]
    drops: tuple[DropRule, ...]
    rate_pairs: tuple[tuple[int, int], ...]


def prepare(scenario: Scenario, seed: int | None = None) -> Prepared:
    """Return a scenario checked as a whole, with all that a seed decides in Python decided.

    Raises:
        ScenarioError: the parts do not fit together; all problems found are listed.
    """
    seed = scenario.seed if seed is None else seed
    findings = scenario.findings()
    graph = make_graph(scenario, findings)
    if graph is None:
        findings.raise_if_any()
        raise AssertionError("no fabric and no problem")
    if not scenario.job and not scenario.background:
        findings.add((), "neither [[job]] nor [[background]]: nothing would be sent; add a [[job]]")
    jobs = place_jobs(scenario, graph, seed, findings)
    flows = make_flows(scenario, graph, seed, findings)
    red = red_rows(scenario.switch.red, graph, findings)
    gap = mark_gap_us(scenario, findings)
    marked = _marked(scenario, graph, gap, findings)
    scope, markers = _markers(scenario, jobs, findings)
    _check_trial(scenario, markers, red, findings)
    loops = _loops(scenario, jobs, markers, seed, findings)
    events = _events(scenario, graph, findings)
    drops = _drops(scenario, graph, findings)
    pairs = _rate_pairs(scenario, graph, findings)
    findings.raise_if_any()
    paths = _plan(scenario, graph, jobs, findings)
    findings.raise_if_any()
    return Prepared(
        scenario,
        seed,
        graph,
        jobs,
        flows,
        red,
        gap,
        marked,
        scope,
        markers,
        loops,
        paths,
        events,
        drops,
        pairs,
    )


def marker_params(table: MarkerTable, job: Job, packets_per_step: int) -> MarkerParams:
    """Return the marker's parameters for a job: the profile's, and what the table replaces.

    ``packets_per_step`` counts where the table says ``auto``.

    Raises:
        ValueError: a value that no data plane holds.
    """
    params = PROFILES[table.profile].params
    bits = step_bits(table, job)
    layout = TagLayout(STEP_BITS_MAX - bits, bits)
    anchored = table.progress == "anchored" or (
        table.progress == "auto" and job.sender != "qp_per_step"
    )
    params = replace(
        params,
        layout=layout,
        mode=ProgressMode.ANCHORED if anchored else ProgressMode.PER_STEP,
        packets_per_step=packets_per_step
        if isinstance(table.packets_per_step, str)
        else table.packets_per_step,
        generation=table.generation,
    )
    if table.k is not None:
        params = replace(params, k=k_fixed(table.k))
    if table.tau is not None:
        params = replace(params, tau_num=table.tau.numerator, tau_den=table.tau.denominator)
    if table.t_win is not None:
        params = replace(params, t_win=table.t_win // 1000)
    if table.n_sample is not None:
        params = replace(params, n_sample=table.n_sample)
    if table.n_warmup is not None:
        params = replace(params, n_warmup=table.n_warmup)
    if table.alpha_max is not None:
        params = replace(params, alpha_max=table.alpha_max)
    if table.q_gate == "off":
        params = replace(params, q_gate=None)
    elif isinstance(table.q_gate, int):
        params = replace(params, q_gate=table.q_gate)
    return params


def _markers(
    scenario: Scenario, jobs: Sequence[PlacedJob], findings: Findings
) -> tuple[Scope, tuple[MarkerParams | None, ...]]:
    table = scenario.marker
    scope = Scope(table.scope) if table.scope is not None else PROFILES[table.profile].scope
    if table.t_win is not None and table.t_win % 1000:
        findings.add(("marker", "t_win"), 'counts whole microseconds; write for example "100us"')
    if table.start and scenario.switch.marking == "priority":
        findings.add(("marker", "start"), 'goes with switch.marking = "marker" only; take it out')
    wanted = scenario.switch.marking != "none"
    markers: list[MarkerParams | None] = []
    for job in jobs:
        if not wanted or not job.table.marked:
            markers.append(None)
            continue
        try:
            markers.append(marker_params(table, job.table, _packets(scenario, job, findings)))
        except ValueError as error:
            findings.add(("marker",), f"for job {job.name!r}: {error}")
            markers.append(None)
    return scope, tuple(markers)


def _packets(scenario: Scenario, job: PlacedJob, findings: Findings) -> int:
    """Return what ``packets_per_step = "auto"`` stands for."""
    messages = job.table.messages_per_step or 1
    if messages == 1 or scenario.marker.packets_per_step != "auto":
        return 0
    least, others = packets_of_steps(job, scenario.transport.mtu)
    if others >= least:
        findings.add(
            ("marker", "packets_per_step"),
            f'"auto" tells the end of a step by its packets, but steps of job {job.name!r} differ '
            f"too much: the shortest has {least}, and all but the last message of another have "
            f"{others}; write a number",
        )
    return least


def _check_trial(
    scenario: Scenario,
    markers: Sequence[MarkerParams | None],
    red: Sequence[RedThresholds],
    findings: Findings,
) -> None:
    """Refuse rules under trial that make no sense together, or with the rest."""
    trial = scenario.marker.trial
    if trial is None:
        return
    where = ("marker", "trial")
    if scenario.switch.marking == "priority":
        findings.add(where, 'goes with switch.marking = "marker" only; take it out')
    if trial.relief != "off" and not scenario.switch.red.enabled:
        findings.add((*where, "relief"), "changes RED, which is off; take it out")
    if trial.relief != "off" and red and all(row.k_min == row.k_max for row in red):
        findings.add(
            (*where, "relief"),
            "spares marks between k_min and k_max, and RED has nothing between the two; take "
            "another switch.red.profile",
        )
    if trial.transfer is not None and trial.relief == "off":
        findings.add(
            (*where, "transfer"),
            'spends the marks that relief spares; write relief = "while_ahead" or "always"',
        )
    if trial.transfer is not None and trial.p_max < 1:
        findings.add((*where, "p_max"), "caps a probability, and transfer has none; take one out")
    least = min((params.layout.step_sign for params in markers if params is not None), default=0)
    if least and trial.min_lead >= least:
        findings.add(
            (*where, "min_lead"),
            f"{trial.min_lead} steps: the tag tells at most {least - 1} ahead from behind; write "
            "less",
        )


def _loops(
    scenario: Scenario,
    jobs: Sequence[PlacedJob],
    markers: Sequence[MarkerParams | None],
    seed: int,
    findings: Findings,
) -> tuple[LoopPlan, ...]:
    """What the closed loop of each job chooses from; none where something is wrong."""
    table = scenario.loop
    if not table.enabled:
        return ()
    good = _loop_fits(scenario, jobs, findings)
    plans = []
    for job, marker in zip(jobs, markers, strict=True):
        arms = {}
        for i, arm in enumerate(table.arm):
            where: Location = ("loop", "arm", i)
            if arm.marker and good and not job.table.marked:
                findings.add(where, f"{arm.name!r} marks, but job {job.name!r} has marked = false")
                good = False
            own = {
                key: getattr(arm, key) for key in ("k", "q_gate") if getattr(arm, key) is not None
            }
            params = marker
            try:
                if marker is not None:
                    table_of_arm = scenario.marker.model_copy(update=own)
                    changed = marker_params(table_of_arm, job.table, marker.packets_per_step)
                    params = replace(changed, enabled=arm.marker)
            except ValueError as error:
                findings.add(where, str(error))
                good = False
            arms[arm.name] = ArmPlan(arm.planned, params)
        if good:
            values = {key: getattr(table, key) for key in LOOP_KEYS}
            values["seed"] = Stream(seed, f"loop:{job.name}").below(1 << 31)
            plans.append(
                LoopPlan(
                    arms,
                    table.safe,
                    table.start,
                    LoopParams(**values),
                    job.iteration_ops * table.epoch,
                )
            )
    return tuple(plans)


def _loop_fits(scenario: Scenario, jobs: Sequence[PlacedJob], findings: Findings) -> bool:
    """Check the loop's table against itself, [switch], [marker] and the jobs."""
    table, switch = scenario.loop, scenario.switch
    found: list[tuple[Location, str]] = []
    try:
        ClosedLoop(
            [Arm(arm.name) for arm in table.arm],
            table.safe,
            table.start,
            **{key: getattr(table, key) for key in LOOP_KEYS},
        )
    except ValueError as error:
        found.append((("loop",), str(error)))
    for i, arm in enumerate(table.arm):
        where: Location = ("loop", "arm", i)
        if arm.planned and switch.lb != "planned":
            found.append(
                (where, f'{arm.name!r} needs switch.lb = "planned", which is {switch.lb!r}')
            )
        if arm.marker and switch.marking != "marker":
            found.append(
                (
                    where,
                    f'{arm.name!r} needs switch.marking = "marker", which is {switch.marking!r}',
                )
            )
        if not arm.marker and (arm.k, arm.q_gate) != (None, None):
            found.append((where, f"{arm.name!r}: 'k' and 'q_gate' go with marker = true"))
    if scenario.marker.start:
        found.append(
            (("marker", "start"), "goes without [loop], which switches the marker; take it out")
        )
    if jobs and all(job.table.iterations < 2 * table.epoch for job in jobs):
        found.append(
            (
                ("loop", "epoch"),
                f"{table.epoch} iterations, so that no job has two epochs; write job.iterations = "
                f"{2 * table.epoch} or more",
            )
        )
    for location, text in found:
        findings.add(location, text)
    return not found


def _marked(scenario: Scenario, graph: Graph, gap_us: int, findings: Findings) -> frozenset[str]:
    marked: set[str] = set()
    if scenario.switch.marking == "none" and not gap_us:
        return frozenset()
    for name in scenario.switch.marked:
        if name == "all":
            marked.update(graph.switches)
        elif name == "tor":
            marked.update(
                s for s, tier in zip(graph.switches, graph.tiers, strict=True) if tier == 0
            )
        elif name in graph.switches:
            marked.add(name)
        else:
            findings.add(
                ("switch", "marked"),
                f'{name!r} is no switch; {nearest(name, graph.switches)}; or "all" or "tor"',
            )
    return frozenset(marked)


def _events(scenario: Scenario, graph: Graph, findings: Findings) -> tuple[LinkEvent, ...]:
    events = []
    for i, event in enumerate(scenario.event):
        cable = graph.cable_number.get(event.link)
        if cable is None:
            findings.add(
                ("event", i, "link"),
                f"{event.link!r} is no link; {nearest(event.link, sorted(graph.cable_number))}",
            )
        if event.action == "degrade" and event.rate is None:
            findings.add(("event", i), "'rate' is missing; write for example rate = \"1G\"")
        if event.action != "degrade" and event.rate is not None:
            findings.add(("event", i, "rate"), 'goes with action = "degrade" only; take it out')
        events.append(LinkEvent(event.at, cable or 0, event.action, event.rate or 0))
    return tuple(events)


def _drops(scenario: Scenario, graph: Graph, findings: Findings) -> tuple[DropRule, ...]:
    rules = []
    for i, drop in enumerate(scenario.drop):
        ends = []
        for key, name in (("src", drop.src), ("dst", drop.dst)):
            number = -1
            if name != "any":
                number = graph.number.get(name, -1) if name in graph.hosts else -1
                if number < 0:
                    findings.add(
                        ("drop", i, key), f"{name!r} is no host; {nearest(name, graph.hosts)}"
                    )
            ends.append(number)
        link = -1
        if drop.link != "any":
            link = graph.link_number.get(drop.link, -1)
            if link < 0:
                findings.add(
                    ("drop", i, "link"),
                    f"{drop.link!r} is no directed link; {nearest(drop.link, graph.link_names)}",
                )
        step = -1 if drop.step is None else drop.step
        rules.append(
            DropRule(drop.kind, drop.which, drop.n, drop.times, ends[0], ends[1], step, link)
        )
    return tuple(rules)


def _rate_pairs(
    scenario: Scenario, graph: Graph, findings: Findings
) -> tuple[tuple[int, int], ...]:
    pairs = []
    for names in scenario.output.rates:
        unknown = [name for name in names if name not in graph.hosts]
        if len(names) != 2 or unknown:
            wrong = f"{unknown[0]!r} is no host; " if unknown else ""
            findings.add(
                ("output", "rates"),
                f'{wrong}write pairs of hosts, such as [["{graph.hosts[0]}", "{graph.hosts[-1]}"]]',
            )
            continue
        pairs.append((graph.number[names[0]], graph.number[names[1]]))
    return tuple(pairs)


def _plan(
    scenario: Scenario, graph: Graph, jobs: Sequence[PlacedJob], findings: Findings
) -> tuple[PlannedPath, ...]:
    """Pin every ring edge of every job, all jobs planned together, each edge weighing the same.

    Where a job's plan turns with the step, each edge has all its paths, from that of turn 0 on.
    """
    if scenario.switch.lb != "planned":
        return ()
    demands: list[Demand] = []
    edges: dict[EdgeKey, tuple[int, str, str, int]] = {}
    for job in jobs:
        wanted = dict.fromkeys(edge for op in job.ops for edge in op.ring_edges(len(job.hosts)))
        for index, (from_rank, to_rank, channel) in enumerate(wanted):
            src, dst = job.hosts[from_rank], job.hosts[to_rank]
            key = EdgeKey(f"{job.job_id}", channel, index)
            demands.append(Demand(key, src, dst))
            edges[key] = (job.job_id, src, dst, channel)
    try:
        plan = plan_paths(graph.planner_fabric(), demands)
    except PlanError as error:
        findings.add(("switch", "lb"), str(error))
        return ()
    turn_of = {job.job_id: _turning(scenario, job) for job in jobs}
    count = turns(plan) if any(turn_of.values()) else 1
    paths = []
    for key, (job_id, src, dst, channel) in edges.items():
        first = graph.link_number[f"{src}->{graph.tor_of[src]}"]
        for turn in range(count if turn_of[job_id] else 1):
            hops = turned(plan, plan.edges[key], turn)
            links = (first, *(graph.egress[hop.switch, hop.port] for hop in hops))
            paths.append(PlannedPath(job_id, graph.number[src], graph.number[dst], channel, links))
    return tuple(paths)


def _turning(scenario: Scenario, job: PlacedJob) -> bool:
    plan = scenario.switch.plan
    if plan == "auto":
        return job.table.port == "per_step" and job.table.sender != "persistent"
    return plan == "step"
