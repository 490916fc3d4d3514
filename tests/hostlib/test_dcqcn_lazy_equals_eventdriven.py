"""The lazy reaction point against an independent one that schedules every timer as an event.

The reference below keeps an event queue ordered by (time, order of scheduling), so the order of
timers that fall on the same instant is not written down anywhere: it follows, as in a
discrete-event simulator.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.hostlib.dcqcn import PRESETS, DcqcnParams, Reaction, ReactionPoint, preset

LINE = 10e9


class EventDriven:
    """DCQCN reaction point with one event per timer tick; time in nanoseconds."""

    def __init__(self, params: DcqcnParams, line_rate_bps: float) -> None:
        self.p = params
        self.line = line_rate_bps
        self.rate = self.target = line_rate_bps
        self.alpha = params.initial_alpha
        self.first_cnp = True
        self.alpha_cnp = self.dec_cnp = False
        self.time_stage = self.byte_stage = self.bytes = 0
        self.recovering = False
        self.now = 0
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.live: dict[Callable[[], None], int] = {}
        self.t_alpha, self.t_dec, self.t_rp = (
            round(1000 * time_us)
            for time_us in (params.t_alpha_us, params.t_dec_us, params.t_rp_us)
        )

    def schedule(self, delay_ns: int, tick: Callable[[], None]) -> None:
        self.live[tick] = number = next(self.order)
        heapq.heappush(self.events, (self.now + delay_ns, number, tick))

    def run_until(self, now_ns: int) -> None:
        events, live = self.events, self.live
        while events and events[0][0] <= now_ns:
            self.now, number, tick = heapq.heappop(events)
            if live[tick] == number:
                tick()
        self.now = now_ns

    def alpha_tick(self) -> None:
        self.schedule(self.t_alpha, self.alpha_tick)
        self.alpha = (1 - self.p.g) * self.alpha + (self.p.g if self.alpha_cnp else 0)
        self.alpha_cnp = False

    def dec_tick(self) -> None:
        self.schedule(self.t_dec, self.dec_tick)
        if self.dec_cnp:
            self.dec_cnp = False
            self.cut()

    def cut(self) -> None:
        p = self.p
        clamp = p.clamp_target
        if self.byte_stage:
            clamp = True
        if p.clamp_after_time_inc and self.time_stage:
            clamp = True
        if clamp:
            self.target = self.rate
        wanted = self.rate * (1 - self.alpha / p.gd)
        wanted = max(wanted, self.rate * p.min_dec_fac)
        self.rate = max(wanted, p.min_rate_bps)
        self.time_stage = self.byte_stage = self.bytes = 0
        self.recovering = True
        self.schedule(self.t_rp, self.inc_tick)

    def inc_tick(self) -> None:
        self.schedule(self.t_rp, self.inc_tick)
        self.increase()
        self.time_stage += 1

    def increase(self) -> None:
        p = self.p
        stages = [self.time_stage]
        if p.byte_counter_bytes is not None:
            stages.append(self.byte_stage)
        if max(stages) < p.f:
            pass
        elif min(stages) > p.f:
            self.target += p.rate_hai_bps * (min(stages) - p.f if p.hai_scaling else 1)
        else:
            self.target += p.rate_ai_bps
        self.target = min(self.target, self.line)
        self.rate = (self.rate + self.target) / 2

    def cnp(self) -> None:
        p = self.p
        first, self.first_cnp = self.first_cnp, False
        if first:
            self.alpha = p.initial_alpha
            self.rate = self.target = max(p.min_rate_bps, self.rate * p.rate_on_first_cnp)
        if p.reaction is Reaction.PER_CNP:
            self.cut()
            self.alpha = (1 - p.g) * self.alpha + p.g
            self.schedule(self.t_alpha, self.alpha_tick)
            return
        self.alpha_cnp = not first
        self.dec_cnp = True
        if first:
            self.schedule(self.t_alpha, self.alpha_tick)
            self.schedule(self.t_dec + 1, self.dec_tick)

    def sent(self, nbytes: int) -> None:
        if self.p.byte_counter_bytes is None or not self.recovering:
            return
        self.bytes += nbytes
        while self.bytes >= self.p.byte_counter_bytes:
            self.bytes -= self.p.byte_counter_bytes
            self.increase()
            self.byte_stage += 1


@st.composite
def params(draw: st.DrawFn) -> DcqcnParams:
    return DcqcnParams(
        t_alpha_us=draw(st.integers(1, 60)),
        t_dec_us=draw(st.integers(1, 60)),
        t_rp_us=draw(st.integers(1, 400)),
        g=draw(st.sampled_from([1 / 256, 1 / 16, 0.3, 1.0])),
        f=draw(st.integers(0, 5)),
        rate_ai_bps=draw(st.sampled_from([0.0, 5e6, 50e6])),
        rate_hai_bps=draw(st.sampled_from([0.0, 50e6, 1e9])),
        min_rate_bps=draw(st.sampled_from([1e6, 1e8, 1e9])),
        byte_counter_bytes=draw(st.sampled_from([None, 3000, 32767, 300_000])),
        clamp_target=draw(st.booleans()),
        clamp_after_time_inc=draw(st.booleans()),
        min_dec_fac=draw(st.sampled_from([0.0, 0.5, 0.9])),
        rate_on_first_cnp=draw(st.sampled_from([1.0, 0.5])),
        initial_alpha=draw(st.sampled_from([1.0, 1023 / 1024, 0.5])),
        reaction=draw(st.sampled_from(list(Reaction))),
        hai_scaling=draw(st.booleans()),
    )


named = st.sampled_from(sorted(PRESETS)).map(lambda name: preset(name, LINE))
# Gaps as multiples of 100 ns: many fall exactly on a tick. The long ones, up to 100 ms, let
# recovery finish: 200 increases by 50 Mb/s, 400 us apart, are 80 ms.
gaps = st.one_of(st.integers(0, 60), st.integers(0, 6000), st.integers(0, 1_000_000))
actions = st.lists(
    st.tuples(gaps, st.sampled_from(["cnp", "send", "look"]), st.integers(64, 9000)), max_size=60
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(named, params()), actions)
def test_any_script_gives_the_state_of_the_event_driven_reference(
    p: DcqcnParams, script: list[tuple[int, str, int]]
) -> None:
    lazy = ReactionPoint(p, LINE)
    reference = EventDriven(p, LINE)
    now_ns = 0
    for gap, action, size in script:
        now_ns += gap * 100
        reference.run_until(now_ns)
        if action == "cnp":
            lazy.on_cnp(now_ns / 1000)
            reference.cnp()
        elif action == "send":
            lazy.on_sent(size, now_ns / 1000)
            reference.sent(size)
        else:
            lazy.advance(now_ns / 1000)
        assert lazy.rate_bps == pytest.approx(reference.rate, rel=1e-9)
        assert lazy.target_bps == pytest.approx(reference.target, rel=1e-9)
        assert lazy.alpha == pytest.approx(reference.alpha, rel=1e-9, abs=1e-12)
        assert lazy.stages == (reference.time_stage, reference.byte_stage)


@settings(max_examples=100, deadline=None)
@given(st.one_of(named, params()), st.lists(gaps, max_size=20), st.lists(gaps, max_size=20))
def test_looking_at_the_state_does_not_change_it(
    p: DcqcnParams, cnp_gaps: list[int], look_gaps: list[int]
) -> None:
    cnps = list(itertools.accumulate(cnp_gaps))
    looks = list(itertools.accumulate(look_gaps))
    end = max([0, *cnps, *looks]) + 1
    watched, alone = ReactionPoint(p, LINE), ReactionPoint(p, LINE)
    for at, is_cnp in sorted([(t, True) for t in cnps] + [(t, False) for t in looks]):
        if is_cnp:
            watched.on_cnp(at / 10)
            alone.on_cnp(at / 10)
        else:
            watched.advance(at / 10)
    assert watched.advance(end / 10) == pytest.approx(alone.advance(end / 10), rel=1e-9)
    assert watched.alpha == pytest.approx(alone.alpha, rel=1e-9, abs=1e-12)
    assert watched.stages == alone.stages


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(named, params()),
    actions,
    st.sampled_from([2, 10, 250]),
)
def test_a_scaled_loop_is_the_same_loop_in_stretched_time(
    p: DcqcnParams, script: list[tuple[int, str, int]], factor: int
) -> None:
    # The decrease timer's 1 ns does not scale: stay off its ticks by half a grain of the script.
    fast = ReactionPoint(p, LINE)
    slow = ReactionPoint(p.scaled(factor, 1 / factor), LINE / factor)
    now_us = 0.05
    for gap, action, size in script:
        now_us += gap / 10
        if action == "cnp":
            fast.on_cnp(now_us)
            slow.on_cnp(now_us * factor)
        elif action == "send":
            fast.on_sent(size, now_us)
            slow.on_sent(size, now_us * factor)
        assert slow.advance(now_us * factor) * factor == pytest.approx(
            fast.advance(now_us), rel=1e-9
        )
        assert slow.alpha == pytest.approx(fast.alpha, rel=1e-9, abs=1e-12)


def test_an_hour_of_silence_is_one_step() -> None:
    p = preset("hpcc_run", LINE)
    rp = ReactionPoint(p, LINE)
    rp.on_cnp(0)
    rp.advance(3.6e9)
    assert rp.rate_bps == LINE
    assert rp.stages[0] == (3_600_000_000 - 4) // 300


def test_a_loop_without_increase_still_answers_after_an_hour() -> None:
    p = replace(preset("hpcc_run", LINE), rate_ai_bps=0.0, rate_hai_bps=0.0)
    rp = ReactionPoint(p, LINE)
    rp.on_cnp(0)
    rp.advance(500.0)
    rp.on_cnp(500.5)
    target = 10e9 * (1 - (255 / 256) ** 4 / 2) / 2 + 5e9
    assert rp.advance(1e9) == pytest.approx(target, rel=1e-6)
