"""Ring AllReduce in a running lab: what to run, how to run it once, and the whole experiment."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import grpc

from ringstep.controller.client import (
    Q_GATE_OFF,
    ControllerClient,
    ControllerError,
    NotProgrammedError,
    job_spec,
)
from ringstep.controller.jobs import Marking as JobMarking
from ringstep.controller.jobs import MatchKind, PathsChoice
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.planner import PathHop
from ringstep.fabric.topology import parse_topology
from ringstep.hostlib.dcqcn import preset
from ringstep.hostlib.rnic import SoftRnic
from ringstep.lab.allreduce import (
    BackgroundFlow,
    CollectiveFailed,
    QpSetting,
    RingAllReduce,
    chunk_bytes,
    make_data,
    register_landing,
    steps_of,
)
from ringstep.lab.drive import NicLoop
from ringstep.lab.leafspine import REFERENCE_RATE_BPS, LeafSpine
from ringstep.lab.mininet_lab import RunningLab
from ringstep.lab.netns import open_wire
from ringstep.lab.pace import PROBE_PACKETS, CpuMeter, Pace, flow_time_us, load_average
from ringstep.lab.priority import preferred_thread
from ringstep.lab.ring_results import RingExperiment, RingRun, StepRow
from ringstep.lab.steering import LAYOUT, Paths, Steering
from ringstep.protocol.marker import ProgressMode, k_fixed

JOB_NAME: Final = "lab-ring"
COUNTERS: Final = ("data", "marks", "red_marks", "corrections", "advances")
MAX_SIZE: Final = 1 << 30
_PROBE_QPN: Final = 0x10
_BACKGROUND_QPN: Final = 0x20
_FIRST_QPN: Final = 0x1000
_QPN_STRIDE: Final = 0x400
_PATIENCE: Final = 20.0
"""A run may last this many times its bound before it counts as stuck."""
_LEAD_US: Final = 20_000.0
_CHECK_US: Final = 500_000.0
"""So often the lab's processes are looked after while a collective runs."""
_CONTROL_BYTES: Final = 80
"""An acknowledgement or a CNP has at most this many; so has what only a first packet carries."""
_T = TypeVar("_T")


class Marking(StrEnum):
    """What marks the ring's packets besides RED."""

    OFF = "off"
    """Nothing, and RED's marks are not spaced: plain DCQCN. The job is paused: only counted."""
    PAPER = "paper"
    """The paper's marker, beside RED whose marks are not spaced."""
    SPACED = "spaced"
    """Nothing, but RED's marks on the job's packets are spaced, as by default."""
    RINGSTEP = "ringstep"
    """The default: our marker, marks spaced."""

    @property
    def marks(self) -> bool:
        """Whether the job's marker is on."""
        return self in (Marking.PAPER, Marking.RINGSTEP)

    @property
    def spaces(self) -> bool:
        """Whether the fabric spaces marks, which is a setting of its ports, not of the job."""
        return self in (Marking.SPACED, Marking.RINGSTEP)


@dataclass(frozen=True)
class RingParams:
    """Parameters of ``ringstep lab run ring-allreduce``.

    Raises:
        ValueError: a parameter is outside its range; the text names it.
    """

    size: int = 2 << 20
    """Bytes that every rank brings along."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    paths: tuple[Paths, ...] = (Paths.ECMP, Paths.PLANNED)
    markings: tuple[Marking, ...] = tuple(Marking)
    background: tuple[bool, ...] = (True,)
    background_share: float = 0.25
    """Rate of the background flow as a share of an uplink's."""
    preset: str = "connectx"
    k: float = 0.01
    jitter: float = 0.1
    """Ranks start within this share of an undisturbed step's time of one another."""

    def __post_init__(self) -> None:
        for name in ("seeds", "paths", "markings", "background"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name}: give at least one")
            if len(set(values)) != len(values):
                raise ValueError(f"{name}: {', '.join(map(str, values))} holds one twice")
        if not 64 <= self.size <= MAX_SIZE:
            raise ValueError(f"size {self.size}: must be in 64B..1GiB")
        if any(not 0 <= seed < 1 << 32 for seed in self.seeds):
            raise ValueError("seeds: must be in 0..4294967295")
        if not 0 < self.background_share <= 1:
            raise ValueError(f"background share {self.background_share:g}: must be in (0, 1]")
        if not 0 <= self.jitter <= 10:
            raise ValueError(f"jitter {self.jitter:g}: must be in 0..10 steps")
        k_fixed(self.k)
        preset(self.preset, REFERENCE_RATE_BPS)


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of the plan."""

    seed: int
    paths: Paths
    marking: Marking
    background: bool


def plan_runs(params: RingParams, *, spaced: bool) -> list[Planned]:
    """Return the runs for a fabric that spaces marks, or does not: seed by seed, all variants.

    So a slow spell of the machine meets all variants alike.
    """
    return [
        Planned(seed, paths, marking, background)
        for seed in params.seeds
        for background in params.background
        for paths in params.paths
        for marking in params.markings
        if marking.spaces is spaced
    ]


def fabrics_needed(fabric: LeafSpine, params: RingParams) -> list[LeafSpine]:
    """Return the fabrics that the markings of an experiment need, one after the other."""
    return [
        replace(fabric, spaced=spaced)
        for spaced in dict.fromkeys(marking.spaces for marking in params.markings)
    ]


class RingBound:
    """What an AllReduce needs at least, in one fabric: bits over links, nothing else."""

    def __init__(self, fabric: LeafSpine, size: int) -> None:
        self.ranks = fabric.hosts
        self.chunk = chunk_bytes(size, self.ranks)
        self.packets = max(1, -(-self.chunk // fabric.payload))
        last = self.chunk - (self.packets - 1) * fabric.payload
        self._full = (self.packets - 1) * fabric.frame_bytes
        self.message_bytes = self._full + last + fabric.frame_bytes - fabric.payload
        edges_per_uplink = -(-fabric.hosts_per_leaf // fabric.spines)
        share = fabric.uplink_bps / edges_per_uplink
        self.hops_bps = (fabric.rate_bps, share, share, fabric.rate_bps)
        mean_frame = self.message_bytes / self.packets
        times = [mean_frame * 8e6 / rate for rate in self.hops_bps]
        self.step_us = sum(times) + (self.packets - 1) * max(times)

    @property
    def steps(self) -> int:
        """Steps of the collective."""
        return steps_of(self.ranks)

    @property
    def total_us(self) -> float:
        """Completion time with planned paths, links to itself, and no pause between steps."""
        return self.steps * self.step_us


def expected_s(params: RingParams, fabric: LeafSpine, runs: Sequence[Planned]) -> float:
    """Return roughly how long the runs last, in seconds."""
    bound_s = RingBound(fabric, params.size).total_us * 1e-6
    overhead_s = 1.2
    return sum(bound_s * (1.3 if r.paths is not Paths.ECMP else 2.2) + overhead_s for r in runs)


class _Signs(NamedTuple):
    """How the machine did during one collective."""

    busy: float
    waited: float
    lag_p99_us: float
    lag_max_us: float


class RingRig:
    """NICs in the namespaces of a running lab, and its controller."""

    def __init__(self, lab: RunningLab, params: RingParams, check: Callable[[], None]) -> None:
        """Open the wires.

        Args:
            lab: where.
            params: of the experiment.
            check: raises where a part of the lab has ended.

        Raises:
            OSError: a namespace or an interface is gone.
        """
        self.lab = lab
        self.check = check
        self.fabric = lab.fabric
        self.params = params
        self.ring = lab.fabric.striped_ring()
        self.bound = RingBound(lab.fabric, params.size)
        self.steering = Steering(parse_topology(lab.topology_toml, "lab"), self.ring)
        self._run = 0
        self._registered = False
        self._pinned: dict[tuple[str, str], tuple[PathHop, ...]] = {}
        dcqcn = lab.fabric.dcqcn(params.preset)
        self._setting = QpSetting(
            dcqcn=dcqcn,
            payload=lab.fabric.payload,
            # A preset without a CNP interval echoes marks in acknowledgements: one per packet.
            ack_interval=1 if dcqcn.cnp_interval_us is None else 8,
            rto_us=self._rto_us(),
        )
        self._nics = {name: self._nic(name) for name in lab.hosts}
        self._landings = [
            register_landing(self._nics[name], self.bound.ranks, self.bound.chunk)
            for name in self.ring
        ]
        with contextlib.ExitStack() as undo:
            wires = {}
            for name, place in lab.hosts.items():
                wires[name] = open_wire(place.pid, place.site.interface)
                undo.callback(wires[name].close)
            self.loop = NicLoop({name: (self._nics[name], wires[name]) for name in lab.hosts})
            undo.pop_all()
        self._meter = CpuMeter(part.pid for part in lab.parts)

    def _rto_us(self) -> float:
        # Above the deepest queues on the way: two of the uplinks', full.
        fabric = self.fabric
        deepest = 2 * fabric.queue_packets * fabric.frame_bytes * 8e6 / fabric.uplink_bps
        return max(1.5 * deepest, 200_000.0)

    def _nic(self, name: str) -> SoftRnic:
        site = self.lab.hosts[name].site
        fabric = self.fabric
        background = name.startswith("b")
        return SoftRnic(
            site.mac,
            site.ip,
            fabric.gateway_mac(name),
            fabric.uplink_bps * self.params.background_share if background else fabric.rate_bps,
            pacing_slack_us=self.slack_us,
        )

    @property
    def slack_us(self) -> float:
        """Sending time that a NIC may catch up: two packets of its line."""
        return 2 * self.fabric.frame_bytes * 8e6 / self.fabric.rate_bps

    def __enter__(self) -> RingRig:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.loop.close()
        if self._registered:
            # After ctrl-C or a failure; the controller may be what failed.
            with contextlib.suppress(CollectiveFailed):
                self._ask(lambda client: client.release(JOB_NAME))

    # -- the controller's part

    def _ask(self, talk: Callable[[ControllerClient], Awaitable[_T]]) -> _T:
        async def conversation() -> _T:
            async with ControllerClient(self.lab.controller) as client:
                return await talk(client)

        for last in (False, False, True):
            try:
                return asyncio.run(conversation())
            except (ControllerError, NotProgrammedError) as error:
                # A machine under load may let a connection wait too long.
                unreached = isinstance(error, ControllerError) and (
                    error.code is grpc.StatusCode.UNAVAILABLE
                )
                if last or not unreached:
                    raise CollectiveFailed(f"the controller: {error}") from None
        raise AssertionError("the last attempt returns or raises")

    def _register(self, marking: Marking, paths: Paths) -> None:
        """Register the job and keep the paths that the controller pinned for it.

        Raises:
            CollectiveFailed: the controller fails, or pinned other edges than it was to.
        """
        profile = "paper" if marking is Marking.PAPER else "ringstep"
        s = self.fabric.marker(profile)
        spec = job_spec(
            JOB_NAME,
            rings=[list(self.ring)],
            match=MatchKind.PAIR,
            profile=profile,
            k=self.params.k,
            t_win_us=s.t_win_us,
            n_sample=s.n_sample,
            n_warmup=s.n_warmup,
            q_gate=Q_GATE_OFF if s.q_gate is None else s.q_gate,
            job_bits=LAYOUT.job_bits,
            step_bits=LAYOUT.step_bits,
            mode=ProgressMode.PER_STEP,
            marking=JobMarking.ON if marking.marks else JobMarking.OFF,
            paths=PathsChoice.PLANNED if paths.pinned else PathsChoice.ECMP,
        )

        async def talk(client: ControllerClient) -> jobs_pb2.Job:
            if any(job.spec.name == JOB_NAME for job in await client.jobs()):
                await client.release(JOB_NAME)
            await client.register(spec)
            return await client.wait_programmed(JOB_NAME)

        self._registered = True
        job = self._ask(talk)
        self._pinned = {
            (path.src, path.dst): tuple(PathHop(hop.switch, hop.port) for hop in path.hops)
            for path in job.paths
        }
        edges = {self.steering.edge(rank) for rank in range(self.bound.ranks)}
        if set(self._pinned) != (edges if paths.pinned else set()):
            found = ", ".join(f"{src}->{dst}" for src, dst in self._pinned) or "none"
            raise CollectiveFailed(
                f"the controller pinned paths for {found}; "
                f"{'every edge of the ring needs one' if paths.pinned else 'none was asked for'}"
            )

    def _release(self) -> dict[str, dict[str, int]]:
        """Release the job and return what each switch counted for it."""

        async def talk(client: ControllerClient) -> dict[str, dict[str, int]]:
            state = await client.state(JOB_NAME)
            broken = [f"{s.switch}: {s.error}" for s in state.switches if s.error]
            if broken:
                raise CollectiveFailed(f"cannot read counters of {'; '.join(broken)}")
            await client.release(JOB_NAME)
            self._registered = False
            return {
                switch.switch: {name: getattr(switch.counters, name) for name in COUNTERS}
                for switch in state.switches
            }

        return self._ask(talk)

    # -- one run

    def single_flow(self) -> float:
        """Send one message over idle links; return its rate as a share of what they carry.

        Raises:
            CollectiveFailed: it did not arrive.
        """
        src, dst = self.steering.edge(0)
        sender, receiver = self._nics[src], self._nics[dst]
        tx = sender.create_qp(
            _PROBE_QPN, receiver.ip, _PROBE_QPN, mtu_payload=self.fabric.payload, rto_us=1e6
        )
        receiver.create_qp(
            _PROBE_QPN, sender.ip, _PROBE_QPN, mtu_payload=self.fabric.payload, rto_us=1e6
        )
        arrived: list[float] = []

        def take(_now: float) -> None:
            arrived.extend(a.time_us for a in receiver.poll_arrivals() if a.qpn == _PROBE_QPN)

        port = self.loop.ports[dst]
        port.on_event = take
        try:
            # Into the ring's memory, which the next collective overwrites.
            size = min(PROBE_PACKETS * self.fabric.payload, self.bound.steps * self.bound.chunk)
            begin = self.loop.now_us
            tx.post_write(size, rkey=1, now_us=begin)
            self.loop.touch(src)
            packets = -(-size // self.fabric.payload)
            need = flow_time_us(packets, self.fabric.frame_bytes, self._idle_hops())
            with preferred_thread(self.lab.scheduling):
                came = self.loop.run(lambda: bool(arrived), begin + 20 * need + 3e6)
            if not came:
                raise CollectiveFailed(
                    f"a single flow {src} -> {dst} did not arrive; {tx.stats.tx_packets} packets "
                    "were sent"
                )
            # The acknowledgement ends the request.
            self.loop.run(lambda: tx.idle, self.loop.now_us + 1e6)
        finally:
            port.on_event = None
            for nic in (sender, receiver):
                nic.destroy_qp(_PROBE_QPN)
                nic.poll_completions()
                nic.poll_arrivals()
        return min(need / (arrived[0] - begin), 1.0)

    def _idle_hops(self) -> tuple[float, ...]:
        fabric = self.fabric
        return (fabric.rate_bps, fabric.uplink_bps, fabric.uplink_bps, fabric.rate_bps)

    def run_once(self, planned: Planned) -> RingRun:
        """Run one collective, check its sums and return what was measured.

        Raises:
            CollectiveFailed: it ended with an error, a wrong sum, or not in time.
        """
        chance = random.Random(planned.seed)
        first_step, tag, background_tag = (chance.randrange(1 << 16) for _ in range(3))
        jitter_us = self.params.jitter * self.bound.step_us
        starts = [chance.uniform(0, jitter_us) for _ in self.ring]
        flow_before = self.single_flow()
        self._register(planned.marking, planned.paths)
        sent_before = self._sent_bytes()
        collective = RingAllReduce(
            [self._nics[name] for name in self.ring],
            self._landings,
            make_data(self.bound.ranks, self.bound.chunk, planned.seed),
            self._setting,
            first_qpn=_FIRST_QPN + self._run % 64 * _QPN_STRIDE,
            sport=lambda rank, step: self.steering.sport(
                planned.paths, rank, first_step + step, tag
            ),
        )
        self._run += 1
        with contextlib.ExitStack() as stack:
            stack.callback(self._quiet)
            stack.callback(collective.close)
            background = self._background(planned, stack, background_tag)
            signs = self._drive(collective, starts, background)
            collective.check_sums()
            sent = self._sent_bytes()
            by_switch = self._release()
            rows = self._rows(collective)
            background_bytes = background.tx.stats.tx_bytes if background else 0
            sent = {port: count - sent_before[port] for port, count in sent.items()}
            if background is not None:
                for hop in self.steering.route("b1", "b2", background.sport):
                    sent.pop((hop.switch, hop.port), None)
        traffic = collective.traffic()
        # The background's last packets must be off the links before the next single flow.
        self.loop.run(lambda: False, self.loop.now_us + 30_000)
        return RingRun(
            seed=planned.seed,
            paths=str(planned.paths),
            marking=str(planned.marking),
            background=planned.background,
            cct_ms=_ms(collective.completion_us),
            counted={
                name: sum(counters[name] for counters in by_switch.values()) for name in COUNTERS
            },
            ways_confirmed=self._ways_confirmed(collective, by_switch, sent),
            traffic=traffic,
            background_bytes=background_bytes,
            steps=rows,
            pace=Pace(
                single_flow=min(flow_before, self.single_flow()),
                lag_p99_ms=_ms(signs.lag_p99_us),
                lag_max_ms=_ms(signs.lag_max_us),
                lag_limit_ms=_ms(self.slack_us),
                cpu_wait=signs.waited,
                cpu_busy=signs.busy,
                load=load_average(),
            ),
        )

    def _drive(
        self,
        collective: RingAllReduce,
        starts_us: Sequence[float],
        background: BackgroundFlow | None,
    ) -> _Signs:
        """Run a collective to its end."""
        loop = self.loop
        loop.forget_timers()
        loop.lag.samples.clear()
        begin = loop.now_us + _LEAD_US
        if background is not None:
            loop.call_at(loop.now_us, "b1", background.start)
            begin += self._warmup_us()
        for rank, name in enumerate(self.ring):
            loop.ports[name].on_event = partial(collective.collect, rank)
            loop.call_at(begin + starts_us[rank], name, partial(collective.start, rank))
        self._meter.restart()
        patience_us = _PATIENCE * self.bound.total_us + 10e6
        with preferred_thread(self.lab.scheduling):
            done = False
            while not done and loop.now_us < begin + patience_us:
                done = loop.run(lambda: collective.done, loop.now_us + _CHECK_US)
                self.check()
        if not done:
            raise CollectiveFailed(
                f"not done after {patience_us * 1e-6:.0f} s: {collective.progress()}"
            )
        busy, waited = self._meter.shares()
        lag_p99, lag_max = (loop.lag.quantile(share) for share in (0.99, 1.0))
        # What is still under way belongs to this run's counts.
        loop.run(lambda: False, loop.now_us + 50_000)
        return _Signs(busy, waited, lag_p99, lag_max)

    def _rows(self, collective: RingAllReduce) -> list[StepRow]:
        begun = collective.started_us
        return [
            StepRow(
                rank=record.rank,
                step=record.step,
                way=self._way(record.rank, record.sport),
                posted_ms=_ms(record.posted_us - begun),
                first_ms=_ms((record.request.first_tx_us or record.posted_us) - begun),
                arrived_ms=_ms((record.arrived_us or begun) - begun),
            )
            for _, record in sorted(collective.records.items(), key=lambda item: item[0][::-1])
        ]

    def _warmup_us(self) -> float:
        """The background flow is under way before the ring starts."""
        return 16 * self.fabric.frame_bytes * 8e6 / self.fabric.uplink_bps

    def _background(
        self, planned: Planned, stack: contextlib.ExitStack, tag: int
    ) -> BackgroundFlow | None:
        if not planned.background:
            return None
        flow = BackgroundFlow(
            self._nics["b1"],
            self._nics["b2"],
            self._setting,
            qpn=_BACKGROUND_QPN + tag % 1024,
            message_bytes=16 * self.fabric.payload,
        )
        stack.callback(flow.close)
        for name in ("b1", "b2"):
            self.loop.ports[name].on_event = flow.collect
        return flow

    def _quiet(self) -> None:
        for port in self.loop.ports.values():
            port.on_event = None

    def _sent_bytes(self) -> dict[tuple[str, int], int]:
        """Return what the kernel counted at every port between switches, in bytes sent."""
        sites = self.fabric.switch_sites
        ports = [
            end
            for cable in self.fabric.cables
            if cable.b in sites
            for end in ((cable.a, cable.a_port), (cable.b, cable.b_port))
        ]
        return {
            (name, port): int(
                Path(
                    "/sys/class/net", sites[name].interface(port), "statistics/tx_bytes"
                ).read_text()
            )
            for name, port in ports
        }

    def _ways_confirmed(
        self,
        collective: RingAllReduce,
        by_switch: Mapping[str, Mapping[str, int]],
        sent: Mapping[tuple[str, int], int],
    ) -> bool | None:
        """Say whether switches and ports counted what the steps' ways say; None after a loss.

        Args:
            collective: the one that ran.
            by_switch: the job's counters.
            sent: bytes that ports between switches sent meanwhile, those without other traffic.
        """
        traffic = collective.traffic()
        if traffic.retransmissions or traffic.dropped:
            return None
        hops = Counter(
            hop
            for record in collective.records.values()
            for hop in self._hops(record.rank, record.sport)
        )
        switches: Counter[str] = Counter()
        for hop, messages in hops.items():
            switches[hop.switch] += messages
        counted = all(
            by_switch.get(switch, {}).get("data", 0) == messages * self.bound.packets
            for switch, messages in switches.items()
        )
        control = traffic.cnps + traffic.packets // self._setting.ack_interval
        margin = _CONTROL_BYTES * (control + 3 * len(collective.records))
        return counted and all(
            0 <= count - hops[PathHop(*port)] * self.bound.message_bytes <= margin
            for port, count in sent.items()
        )

    def _hops(self, rank: int, sport: int) -> tuple[PathHop, ...]:
        """Return the switches that an edge's packets pass: pinned, or else by ECMP's hash."""
        src, dst = self.steering.edge(rank)
        return self._pinned.get((src, dst)) or self.steering.route(src, dst, sport)

    def _way(self, rank: int, sport: int) -> str:
        return ">".join(hop.switch for hop in self._hops(rank, sport))


def _ms(us: float) -> float:
    return round(us * 1e-3, 3)


def measure(
    rig: RingRig,
    experiment: RingExperiment,
    on_run: Callable[[Planned, RingRun], None] | None = None,
) -> None:
    """Run what is planned for a rig's fabric, and add it to an experiment.

    Ctrl-C ends it early: the experiment then has ``interrupted`` set.

    Args:
        rig: where to run it.
        experiment: gets the runs.
        on_run: told of every run.
    """
    try:
        for planned in plan_runs(rig.params, spaced=rig.fabric.spaced):
            rig.check()
            run = rig.run_once(planned)
            experiment.runs.append(run)
            if on_run is not None:
                on_run(planned, run)
    except KeyboardInterrupt:
        experiment.interrupted = True


def new_experiment(rig: RingRig) -> RingExperiment:
    """Return an experiment without runs."""
    return RingExperiment(parameters=describe(rig), bound_ms=_ms(rig.bound.total_us))


def describe(rig: RingRig) -> dict[str, Any]:
    """Return every parameter in force, derived ones included."""
    params = rig.params
    shown = asdict(params)
    for name in ("seeds", "background"):
        shown[name] = list(getattr(params, name))
    for name in ("paths", "markings"):
        shown[name] = [str(value) for value in getattr(params, name)]
    shown["fabric"] = rig.fabric.to_json()
    del shown["fabric"]["spaced"], shown["fabric"]["mark_gap_us"]
    shown["mark_gap_us"] = {
        str(marking): replace(rig.fabric, spaced=marking.spaces).mark_gap_us
        for marking in params.markings
    }
    shown["ring"] = list(rig.ring)
    shown["placement"] = "striped: every edge of the ring leaves its leaf"
    shown["sender"] = "qp_per_step"
    shown["chunk_bytes"] = rig.bound.chunk
    shown["packets_per_step"] = rig.bound.packets
    shown["steps"] = rig.bound.steps
    shown["dcqcn"] = asdict(rig.fabric.dcqcn(params.preset))
    shown["marker"] = {name: asdict(rig.fabric.marker(name)) for name in ("paper", "ringstep")}
    shown["scheduling"] = str(rig.lab.scheduling)
    shown["background_flow"] = {
        "from": "b1", "to": "b2", "rate_bps": rig.fabric.uplink_bps * params.background_share
    }  # fmt: skip
    return shown
