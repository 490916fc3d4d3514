"""From a prepared scenario to the core's network, traffic and simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from ringstep.fabric.tomlfile import Location
from ringstep.protocol.marker import MarkerParams, ProgressMode, Scope
from ringstep_ns3 import _core
from ringstep_ns3.jobs import PlacedJob
from ringstep_ns3.loop import JobLoop
from ringstep_ns3.prepare import Prepared
from ringstep_ns3.scenario import Cc, DcqcnKeys, Scenario, ScenarioError
from ringstep_ns3.severed import severed
from ringstep_ns3.topology import nearest
from ringstep_ns3.units import format_time

_DCQCN_FIELDS: Final = (
    ("t_alpha", "t_alpha_us", 1e-3),
    ("t_dec", "t_dec_us", 1e-3),
    ("t_rp", "t_rp_us", 1e-3),
    ("g", "g", 1),
    ("f", "f", 1),
    ("rate_ai", "rate_ai_bps", 1),
    ("rate_hai", "rate_hai_bps", 1),
    ("min_rate", "min_rate_bps", 1),
    ("clamp_target", "clamp_target", 1),
    ("clamp_after_time_inc", "clamp_after_time_inc", 1),
    ("gd", "gd", 1),
    ("min_dec_fac", "min_dec_fac", 1),
    ("rate_on_first_cnp", "rate_on_first_cnp", 1),
    ("initial_alpha", "initial_alpha", 1),
    ("reaction", "reaction", 1),
    ("hai_scaling", "hai_scaling", 1),
)
"""Key of [cc.dcqcn], field of the core, factor from the one's unit to the other's."""


Policy = Callable[[_core.MarkingPacket], bool]


@dataclass(frozen=True)
class Built:
    """A simulation that is ready to run; ``warnings`` are set-ups that may surprise.

    ``policies`` names the switches on which a function in Python decides on marks.
    """

    prepared: Prepared
    simulation: _core.Simulation
    warnings: tuple[str, ...]
    policies: tuple[str, ...] = ()
    loops: tuple[JobLoop, ...] = ()


def build(prepared: Prepared) -> Built:
    """Return the core's simulation of a prepared scenario.

    Raises:
        ScenarioError: the core refuses it.
    """
    scenario = prepared.scenario
    with _refused(scenario, ("switch",)):
        simulation = _core.Simulation(
            _network(prepared), _transport(prepared), seed=prepared.seed, stats=_stats(scenario)
        )
    for job, marker in zip(prepared.jobs, prepared.markers, strict=True):
        with _refused(scenario, ("job", job.index)):
            simulation.add_job(_job(prepared, job, marker))
    for flows in prepared.flows:
        if not flows.src:
            continue
        table = scenario.background[flows.index]
        with _refused(scenario, ("background", flows.index)):
            simulation.add_flows(
                flows.src,
                flows.dst,
                flows.size,
                flows.start_ns,
                priority=table.priority,
                cc=_named_cc(table.cc),
            )
    for src, dst in prepared.rate_pairs:
        simulation.trace_rate(src, dst)
    _start_late(prepared, simulation)
    warnings = (*_warnings(prepared), *simulation.warnings())
    return Built(prepared, simulation, warnings, loops=_loops(prepared, simulation))


def with_policies(built: Built, policies: Mapping[str, Policy]) -> Built:
    """Let functions decide on marks beside RED, in place of ``switch.marking`` on those switches.

    ``policies`` maps switch names to functions of a packet that tell whether to mark it.

    Raises:
        ScenarioError: no such switch.
    """
    graph = built.prepared.graph
    for name, policy in policies.items():
        if name not in graph.switches:
            raise ScenarioError(
                built.prepared.scenario.name,
                [f"policies: {name!r} is no switch; {nearest(name, graph.switches)}"],
            )
        built.simulation.set_marking_policy(graph.number[name], policy)
    return replace(built, policies=tuple(sorted(policies)))


@contextmanager
def _refused(scenario: Scenario, location: Location) -> Iterator[None]:
    """Turn what the core refuses into a message that names the table of the scenario."""
    try:
        yield
    except ValueError as error:
        findings = scenario.findings()
        findings.add(location, str(error))
        findings.raise_if_any()


def _loops(prepared: Prepared, simulation: _core.Simulation) -> tuple[JobLoop, ...]:
    """The closed loops, each job with its first arm."""
    if not prepared.loops:
        return ()
    loops = tuple(
        JobLoop(job.job_id, len(job.ops), job.start_ns, plan)
        for job, plan in zip(prepared.jobs, prepared.loops, strict=True)
    )
    for loop in loops:
        take_arm(simulation, loop)
    return loops


def take_arm(simulation: _core.Simulation, loop: JobLoop) -> None:
    """Let what the job sends from now on take the arm of the epoch under way."""
    settings = loop.settings
    simulation.set_planned(loop.job, settings.planned)
    if settings.marker is not None:
        simulation.set_marker(loop.job, _marker(settings.marker))


@contextmanager
def closed_loops(built: Built) -> Iterator[None]:
    """Let the loops follow the run inside the block."""
    if not built.loops:
        yield
        return
    simulation, loops = built.simulation, {loop.job: loop for loop in built.loops}

    def on_operation(job: int, op: int, time_ns: int) -> None:
        if loops[job].done(op, time_ns):
            take_arm(simulation, loops[job])

    simulation.on_operation(on_operation)
    try:
        yield
    finally:
        simulation.on_operation(None)


def _start_late(prepared: Prepared, simulation: _core.Simulation) -> None:
    """Hold the markers back until ``marker.start``: a policy that never marks stands before them.

    It goes in place of the switch's own marking, which therefore sees no packet before that time.
    """
    start_ns = prepared.scenario.marker.start
    if not start_ns or prepared.scenario.switch.marking != "marker":
        return
    switches = [prepared.graph.number[name] for name in sorted(prepared.marked)]
    for switch in switches:
        simulation.set_marking_policy(switch, lambda _packet: False)

    def switch_on() -> None:
        for switch in switches:
            simulation.set_marking_policy(switch, None)

    simulation.at(start_ns, switch_on)


def effective_dcqcn(scenario: Scenario, rate_bps: int) -> dict[str, object]:
    """Return every DCQCN parameter of a sender of ``rate_bps``, in the units of the core."""
    params = _dcqcn(scenario.cc, rate_bps)
    names = [field for _, field, _ in _DCQCN_FIELDS]
    return {
        name: getattr(params, name) for name in (*names, "byte_counter_bytes", "cnp_interval_us")
    }


def _warnings(prepared: Prepared) -> list[str]:
    scenario = prepared.scenario
    overridden = bool(scenario.cc.dcqcn.model_fields_set)
    found = []
    if overridden and len(set(prepared.graph.access_bps.values())) > 1:
        found.append(
            "cc.dcqcn replaces keys of a preset, and hosts differ in rate: the preset is evaluated "
            f"at {prepared.graph.hosts[0]}'s rate for all"
        )
    if scenario.switch.marking == "marker" and not any(prepared.markers):
        found.append('switch.marking = "marker", but no job is marked; nothing but RED marks')
    apart = severed(prepared)
    if apart is not None and scenario.until is None:
        found.append(
            f"event[{apart.event + 1}] leaves no path between {apart.first} and {apart.second} "
            f"from {format_time(apart.time_ns)} on; what they still have to exchange then never "
            "arrives, and the run ends once nothing gets through any more"
        )
    found += _without_effect(scenario)
    return found


def _without_effect(scenario: Scenario) -> list[str]:
    """Say which keys the file or the command line sets although others keep them from working."""
    data = scenario.document.data
    found = []
    cc = data.get("cc", {})
    spaced = scenario.switch.mark_gap not in ("auto", "off")
    if scenario.switch.marking == "none" and not spaced and scenario.switch.marked != ("all",):
        found.append('switch.marked has no effect while switch.marking = "none"')
    if scenario.switch.marking == "none" and scenario.marker.trial is not None:
        found.append('marker.trial has no effect while switch.marking = "none"')
    if scenario.transport.window == "none" and scenario.transport.window_bytes is not None:
        found.append('transport.window_bytes has no effect while transport.window = "none"')
    if scenario.cc.kind != "fixed" and scenario.cc.fixed_rate is not None:
        found.append(f'cc.fixed_rate has no effect while cc.kind = "{scenario.cc.kind}"')
    if scenario.cc.kind != "dcqcn" and (cc.get("dcqcn") or "preset" in cc):
        found.append(f'cc.preset and cc.dcqcn have no effect while cc.kind = "{scenario.cc.kind}"')
    return found


def _network(prepared: Prepared) -> _core.Network:
    scenario, graph = prepared.scenario, prepared.graph
    network = _core.Network()
    for host in graph.hosts:
        network.add_host(host)
    for switch, tier in zip(graph.switches, graph.tiers, strict=True):
        network.add_switch(_switch(prepared, switch), switch, tier)
    for cable in graph.cables:
        network.add_link(
            graph.number[cable.a],
            graph.number[cable.b],
            cable.rate_bps,
            cable.delay_ns,
            rate_back_bps=cable.rate_back_bps,
            delay_back_ns=cable.delay_back_ns,
            loss=cable.loss,
        )
    for event in prepared.events:
        network.add_event(event.time_ns, event.cable, event.action, event.rate_bps)
    for rule in prepared.drops:
        network.add_drop(
            kind=rule.kind,
            which=rule.which,
            n=rule.n,
            times=rule.times,
            src=rule.src,
            dst=rule.dst,
            step=rule.step,
            link=rule.link,
        )
    for path in prepared.paths:
        network.set_planned_path(path.src, path.dst, path.channel, path.links, job=path.job)
    assert scenario.switch.lb == "planned" or not prepared.paths
    return network


def _trial(prepared: Prepared) -> _core.TrialRules | None:
    table = prepared.scenario.marker.trial
    if table is None:
        return None
    return _core.TrialRules(
        hold_ns=table.hold or 0,
        min_lead=table.min_lead,
        mark_gap_ns=table.mark_gap or 0,
        p_max=table.p_max,
        relief=table.relief,
        transfer=table.transfer or 0,
        last_lost=table.last_lost,
    )


def _switch(prepared: Prepared, name: str) -> _core.SwitchConfig:
    table = prepared.scenario.switch
    pfc = table.pfc
    marking = table.marking if name in prepared.marked else "none"
    return _core.SwitchConfig(
        buffer_bytes=table.buffer or 0,
        pfc=_core.PfcConfig(
            enabled=pfc.enabled and table.buffer is not None,
            shift=pfc.shift,
            reserve_bytes=pfc.reserve,
            resume_offset_bytes=pfc.resume_offset,
            headroom=pfc.headroom,
            headroom_bytes=pfc.headroom_bytes or 0,
            pause_bytes=pfc.pause_size,
        ),
        red=[
            _core.RedEntry(
                rate_bps=row.rate_bps,
                k_min_bytes=row.k_min,
                k_max_bytes=row.k_max,
                p_max=row.p_max,
            )
            for row in prepared.red
        ],
        mark_gap_us=prepared.mark_gap_us if name in prepared.marked else 0,
        lb="ecmp" if table.lb == "planned" else table.lb,
        flowlet_gap_ns=table.flowlet_gap,
        load_horizon_ns=table.load_horizon,
        ecmp_hash=table.ecmp_hash,
        marking=marking,
        marker_scope="switch" if prepared.scope is Scope.SWITCH else "port",
        trial=_trial(prepared) if marking == "marker" else None,
        scheduler=table.scheduler,
    )


def _transport(prepared: Prepared) -> _core.TransportConfig:
    table = prepared.scenario.transport
    rate_bps = prepared.graph.access_bps[prepared.graph.hosts[0]]
    return _core.TransportConfig(
        mtu_bytes=table.mtu,
        header_bytes=table.header,
        ack_bytes=table.ack_size,
        cnp_bytes=table.cnp_size,
        cc=_cc(prepared.scenario.cc, rate_bps),
        window=table.window,
        window_bytes=table.window_bytes or 0,
        ack_interval=table.ack_interval,
        recovery=table.recovery,
        rto_ns=table.rto or 0,
        nak_interval_ns=table.nak_interval,
        nic=table.nic,
        ack_priority=table.ack_priority,
        round_to_ns=table.round_to_ns,
        first_psn=table.first_psn,
        sport_base=table.sport_base,
        dport=table.dport,
    )


def _cc(table: Cc, rate_bps: int) -> _core.CcConfig:
    hpcc = _core.HpccParams(
        eta=table.hpcc.eta,
        max_stage=table.hpcc.max_stage,
        rate_ai_bps=table.hpcc.rate_ai,
        min_rate_bps=table.hpcc.min_rate,
        multi_rate=table.hpcc.multi_rate,
    )
    if not table.dcqcn.model_fields_set:
        return _core.CcConfig(
            kind=table.kind,
            preset=table.preset,
            hpcc=hpcc,
            fixed_rate_bps=float(table.fixed_rate or 0),
        )
    return _core.CcConfig(
        kind=table.kind,
        preset="",
        dcqcn=_dcqcn(table, rate_bps),
        hpcc=hpcc,
        fixed_rate_bps=float(table.fixed_rate or 0),
    )


def _dcqcn(table: Cc, rate_bps: int) -> _core.DcqcnParams:
    params = _core.dcqcn_preset(table.preset, rate_bps)
    keys: DcqcnKeys = table.dcqcn
    for key, name, factor in _DCQCN_FIELDS:
        value = getattr(keys, key)
        if value is not None:
            scaled = value * factor if factor != 1 else value
            setattr(params, name, type(getattr(params, name))(scaled))
    if keys.byte_counter is not None:
        params.byte_counter_bytes = None if keys.byte_counter == "off" else keys.byte_counter
    if keys.cnp_interval is not None:
        params.cnp_interval_us = None if keys.cnp_interval == "off" else keys.cnp_interval / 1000
    return params


def _named_cc(name: str) -> _core.CcConfig | None:
    if name == "default":
        return None
    if name == "line_rate":
        return _core.CcConfig(kind="fixed")
    return _core.CcConfig(kind="dcqcn", preset=name)


def _marker(params: MarkerParams) -> _core.MarkerParams:
    return _core.MarkerParams(
        k=params.k,
        tau_num=params.tau_num,
        tau_den=params.tau_den,
        t_win_us=params.t_win,
        n_sample=params.n_sample,
        n_warmup=params.n_warmup,
        alpha_max=params.alpha_max,
        q_gate_packets=params.q_gate,
        step_bits=params.layout.step_bits,
        anchored=params.mode is ProgressMode.ANCHORED,
        packets_per_step=params.packets_per_step,
        enabled=params.enabled,
        generation=params.generation,
    )


def _job(prepared: Prepared, job: PlacedJob, marker: MarkerParams | None) -> _core.JobSpec:
    table = job.table
    return _core.JobSpec(
        job_id=job.job_id,
        hosts=[prepared.graph.number[host] for host in job.hosts],
        ops=[
            _core.Op(
                kind=op.kind,
                bytes_=op.size,
                algorithm=op.algorithm,
                rings=op.rings,
                dims=op.dims,
                channels=op.channels,
                passes=op.passes,
                chunks=op.chunks,
                window=op.window,
                root=op.root,
                src=op.src,
                dst=op.dst,
                compute_ns=op.compute_ns,
                after=op.after,
                name=op.name,
            )
            for op in job.ops
        ],
        start_ns=job.start_ns,
        sender=table.sender,
        pool=table.pool,
        messages_per_step=table.messages_per_step or 1,
        port=table.port,
        dependency=table.dependency,
        notify=table.notify,
        endpoint_delay_ns=table.endpoint_delay,
        rank_delay_ns=job.rank_delay_ns,
        step_delay_ns=job.step_delay_ns,
        compute_scale=job.compute_scale,
        marker=None if marker is None else _marker(marker),
        known=table.marked,
        priority=table.priority,
        cc=_named_cc(table.cc),
        name=job.name,
    )


def _stats(scenario: Scenario) -> _core.StatsConfig:
    output = scenario.output
    return _core.StatsConfig(
        flows=output.flows,
        steps=output.steps,
        sample_ns=output.sample or 0,
        links=output.links,
        alpha_ns=output.alpha or 0,
        queue_bin_bytes=output.queue_bin or 0,
    )
