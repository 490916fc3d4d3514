"""Runs the two-flow experiment on a rig and collects what it measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ringstep.hostlib.dcqcn import preset
from ringstep.lab.results import Experiment, Run
from ringstep.lab.rigs import JobSetting, LinkSetting, Rig
from ringstep.lab.scenario import Geometry, Mode, Starts, overlap_ms, starts
from ringstep.lab.twoflow import MTU_PAYLOAD, HostParams, packets_for
from ringstep.protocol.marker import PROFILES, k_fixed

REFERENCE_RATE_BPS: Final = 10e9
"""Link rate of the paper's prototype, for which DCQCN presets are stated."""
RED_MIN_PACKETS: Final = 50
RED_MAX_PACKETS: Final = 100
RED_P_MAX: Final = 0.2
"""RED as the paper states it for 10 Gb/s (4.1), in packets of 1 KB."""


@dataclass(frozen=True, slots=True)
class DemoParams:
    """Parameters of ``ringstep demo``; the defaults are explained in docs/demo.md.

    Raises:
        ValueError: a parameter is outside its range; the text names it.
    """

    delays_ms: tuple[float, ...] = (250.0, 500.0, 750.0, 1000.0)
    repeat: int = 3
    seed: int = 1
    geometry: Geometry = Geometry.PAPER
    period_ms: float = 1000.0
    """Start of B after the start of A when nothing is late."""
    flow_ms: float = 929.0
    """Length of one flow alone on the link; 929 ms in the paper's Fig. 9."""
    rate_bps: float = 50e6
    """Rate of every link and NIC: what a software switch carries with ease."""
    time_factor: float = 10.0
    """How many times slower than on the prototype every timer runs."""
    preset: str = "connectx"
    profile: str = "paper"
    k: float = 0.01
    queue_packets: int = 512

    def __post_init__(self) -> None:
        if not self.delays_ms:
            raise ValueError("delays: give at least one, such as 500")
        for delay in self.delays_ms:
            if not 0 <= delay <= self.period_ms:
                raise ValueError(f"delay {delay:g} ms: must be in 0..{self.period_ms:g} ms")
        if self.repeat < 1:
            raise ValueError(f"repeat {self.repeat}: must be at least 1")
        if not 1e6 <= self.rate_bps <= 1e9:
            raise ValueError(f"rate {self.rate_bps:g} bit/s: must be in 1e6..1e9")
        if not 1 <= self.flow_ms <= 60_000:
            raise ValueError(f"flow length {self.flow_ms:g} ms: must be in 1..60000")
        if not 1 <= self.time_factor <= REFERENCE_RATE_BPS / self.rate_bps:
            raise ValueError(
                f"time factor {self.time_factor:g}: must be in "
                f"1..{REFERENCE_RATE_BPS / self.rate_bps:g}, the ratio of the link rates"
            )
        if self.profile not in PROFILES:
            raise ValueError(f"profile {self.profile!r}: must be one of {', '.join(PROFILES)}")
        k_fixed(self.k)
        preset(self.preset, REFERENCE_RATE_BPS)

    @property
    def grain(self) -> float:
        """How many packets of the prototype one packet stands for.

        The links are ``time_factor * grain`` times slower than the prototype's: time runs slower
        by the one, and what is counted in bytes or packets shrinks by the other.
        """
        return REFERENCE_RATE_BPS / self.rate_bps / self.time_factor

    def host_params(self) -> HostParams:
        """Return what the hosts' NICs do."""
        dcqcn = preset(self.preset, REFERENCE_RATE_BPS).scaled(
            self.time_factor, self.rate_bps / REFERENCE_RATE_BPS
        )
        if dcqcn.byte_counter_bytes is not None:
            count = max(1, round(dcqcn.byte_counter_bytes / self.grain))
            dcqcn = replace(dcqcn, byte_counter_bytes=count)
        return HostParams(
            line_rate_bps=self.rate_bps,
            dcqcn=dcqcn,
            packets=packets_for(self.flow_ms, self.rate_bps),
            # A preset without a CNP interval echoes marks in acknowledgements: one per packet.
            ack_interval=1 if dcqcn.cnp_interval_us is None else 4,
        )

    def link(self) -> LinkSetting:
        """Return what the switch's ports do: RED 50/100 KB, 0.2 at 10 Gb/s, by the grain."""
        return LinkSetting(
            rate_bps=self.rate_bps,
            queue_packets=self.queue_packets,
            red_min=self._grains(RED_MIN_PACKETS),
            red_max=max(self._grains(RED_MAX_PACKETS), self._grains(RED_MIN_PACKETS) + 1),
            red_p_max=RED_P_MAX,
        )

    def job(self) -> JobSetting:
        """Return the marker's setting: the profile's, in this experiment's time and packets."""
        base = PROFILES[self.profile].params
        return JobSetting(
            profile=self.profile,
            k=self.k,
            t_win_us=round(base.t_win * self.time_factor),
            n_sample=self._grains(base.n_sample),
            n_warmup=self._grains(base.n_warmup),
            q_gate=None if base.q_gate is None else self._grains(base.q_gate),
        )

    def _grains(self, packets: float) -> int:
        return max(1, round(packets / self.grain))

    def to_json(self) -> dict[str, Any]:
        """Return every parameter in force, derived ones included."""
        host = self.host_params()
        shown = asdict(self)
        shown["delays_ms"] = list(self.delays_ms)
        shown["geometry"] = str(self.geometry)
        shown["grain"] = self.grain
        shown["packets_per_flow"] = host.packets
        shown["bytes_per_flow"] = host.packets * MTU_PAYLOAD
        shown["dcqcn"] = asdict(host.dcqcn)
        shown["ack_interval"] = host.ack_interval
        shown["link"] = asdict(self.link())
        shown["marker"] = asdict(self.job())
        return shown


@dataclass(frozen=True, slots=True)
class Planned:
    """One run of the plan."""

    repetition: int
    delay_ms: float
    mode: Mode


def plan(params: DemoParams) -> list[Planned]:
    """Return the runs in order.

    Modes take turns within each repetition, so that a slow spell of the machine meets all of them.
    The ideal run does not depend on the delay; one per repetition stands for all delays.
    """
    runs = []
    for repetition in range(params.repeat):
        runs.append(Planned(repetition, params.delays_ms[0], Mode.IDEAL))
        for delay in params.delays_ms:
            runs += [Planned(repetition, delay, mode) for mode in (Mode.DCQCN, Mode.MARKER)]
    return runs


def expected_s(params: DemoParams, planned: Sequence[Planned]) -> float:
    """Return roughly how long the runs last on the wire, in seconds."""
    overhead_s = 0.15
    return sum(_makespan_ms(params, run) * 1e-3 + overhead_s for run in planned)


def _makespan_ms(params: DemoParams, run: Planned) -> float:
    if run.mode is Mode.IDEAL:
        return 2 * params.flow_ms
    at = starts(params.geometry, run.delay_ms, params.period_ms)
    return max(2 * params.flow_ms, max(at.a_ms, at.b_ms) + params.flow_ms)


def measure(
    params: DemoParams, rig: Rig, on_run: Callable[[Planned, Run], None] | None = None
) -> Experiment:
    """Run the whole plan on a rig.

    Ctrl-C ends it early: what was measured until then comes back with ``interrupted`` set.
    """
    experiment = Experiment(
        parameters={**params.to_json(), **rig.describe()},
        geometry=params.geometry,
        period_ms=params.period_ms,
        delays_ms=params.delays_ms,
    )
    try:
        for number, planned in enumerate(plan(params)):
            seed = params.seed * 1000 + number
            run = run_once(params, rig, planned, seed)
            delays = params.delays_ms if planned.mode is Mode.IDEAL else (planned.delay_ms,)
            for delay in delays:
                experiment.cell(delay, planned.mode).runs.append(run)
            if on_run is not None:
                on_run(planned, run)
    except KeyboardInterrupt:
        experiment.interrupted = True
    return experiment


def run_once(params: DemoParams, rig: Rig, planned: Planned, seed: int) -> Run:
    """Run one pair of flows."""
    at = starts(params.geometry, planned.delay_ms, params.period_ms)
    done = rig.run(planned.mode, at, seed)
    a, b = done.a, done.b
    actual = Starts(a.start_ms, b.start_ms)
    return Run(
        seed=seed,
        a=a,
        b=b,
        overlap_ms=round(overlap_ms(actual, a.completion_ms, b.completion_ms), 3),
        marked=done.marked,
        given_up=done.given_up,
    )
