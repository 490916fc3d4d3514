"""DCQCN: the reaction point (RP) of a sender and the notification point (NP) of a receiver.

Three facts decide how the code looks.

* A sender asks for its rate only when it sends, so no timer is an event here. Every timer is
  evaluated lazily: :meth:`ReactionPoint.advance` brings the state to ``now`` in a handful of
  arithmetic steps, whatever time has passed.
* Timers of one queue pair meet at the same instant all the time (300 us is a multiple of 4 us), and
  the order then decides the rate. Time is therefore kept in whole nanoseconds, where "the same
  instant" is exact.
* A software wire is some hundred times slower than the links that published parameters are for.
  :meth:`DcqcnParams.scaled` dilates every timer and shrinks every rate, and leaves byte counters
  alone: the scaled system passes through the same states as the original one, packet for packet.

Two reaction rules are offered (:class:`Reaction`). ``PERIODIC`` is the one of ConnectX adapters as
modelled by the HPCC simulator: a CNP sets flags, an alpha timer and a decrease timer act on them.
``PER_CNP`` is the one of the DCQCN paper (Zhu et al., SIGCOMM 2015, section 3): every CNP cuts at
once, with the alpha from before that CNP.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from enum import StrEnum

__all__ = [
    "PRESETS",
    "DcqcnParams",
    "NotificationMode",
    "NotificationPoint",
    "Reaction",
    "ReactionPoint",
    "preset",
]

RateTrace = Callable[[float, float], None]
"""Called as ``trace(time_us, rate_bps)`` for every change of rate, with the time it took effect."""

_NS_PER_US = 1000


class Reaction(StrEnum):
    """What a CNP does to the rate."""

    PERIODIC = "periodic"
    """A CNP sets a flag; the decrease timer cuts at most once per period."""
    PER_CNP = "per_cnp"
    """Each CNP cuts at once, then raises alpha and restarts the timers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DcqcnParams:
    """Parameters of one DCQCN sender and of the receiver that notifies it.

    Times are microseconds, rates bit/s. Raises ValueError for a value outside its range, naming the
    field.
    """

    t_alpha_us: float
    """Period of the alpha update (ConnectX ``dce_tcp_rtt``)."""
    t_dec_us: float
    """Period of the decrease timer (``rate_reduce_monitor_period``). Unused with ``PER_CNP``."""
    t_rp_us: float
    """Period of the increase timer (ConnectX ``rpg_time_reset``)."""
    g: float
    """Weight of one observation in alpha, 0 < g <= 1."""
    f: int
    """Stages of fast recovery before additive increase (``rpg_threshold``)."""
    rate_ai_bps: float
    """Additive increase of the target rate."""
    rate_hai_bps: float
    """Hyper increase of the target rate."""
    min_rate_bps: float
    """Floor of the rate."""
    byte_counter_bytes: int | None = None
    """An increase event per so many sent bytes (``rpg_byte_reset``); None: only by the timer."""
    clamp_target: bool = False
    """Every cut takes the current rate as the new target (``clamp_tgt_rate``)."""
    clamp_after_time_inc: bool = True
    """A cut that follows an increase by the timer takes the current rate as the new target."""
    gd: float = 2.0
    """A cut multiplies the rate by 1 - alpha / gd."""
    min_dec_fac: float = 0.0
    """One cut leaves at least this share of the rate (0.5: at most halved); 0: unbounded."""
    rate_on_first_cnp: float = 1.0
    """The first CNP multiplies the rate by this, 0 < value <= 1."""
    initial_alpha: float = 1.0
    """alpha at the first CNP."""
    reaction: Reaction = Reaction.PERIODIC
    """What a CNP does."""
    hai_scaling: bool = False
    """Hyper increase adds ``rate_hai_bps`` for each stage past ``f``, not just once."""
    cnp_interval_us: float | None = None
    """Receiver: at most one CNP per queue pair in this time; None: marks are echoed in ACKs."""

    def __post_init__(self) -> None:
        for name in ("t_alpha_us", "t_dec_us", "t_rp_us", "min_rate_bps", "gd"):
            _require(name, getattr(self, name), getattr(self, name) > 0, "must be above 0")
        for name in ("t_alpha_us", "t_dec_us", "t_rp_us"):
            value = getattr(self, name)
            _require(name, value, value >= 0.001, "is below the resolution of 1 ns (0.001 us)")
        for name in ("rate_ai_bps", "rate_hai_bps"):
            _require(name, getattr(self, name), getattr(self, name) >= 0, "must not be negative")
        _require("g", self.g, 0 < self.g <= 1, "must lie in (0, 1]")
        _require("f", self.f, self.f >= 0, "must not be negative")
        _require("gd", self.gd, self.gd >= 1, "must be at least 1, or a cut could go below zero")
        _require("min_dec_fac", self.min_dec_fac, 0 <= self.min_dec_fac <= 1, "must lie in [0, 1]")
        _require(
            "rate_on_first_cnp",
            self.rate_on_first_cnp,
            0 < self.rate_on_first_cnp <= 1,
            "must lie in (0, 1]; firmware's 0 means 'keep the rate', which is 1.0 here",
        )
        _require(
            "initial_alpha", self.initial_alpha, 0 <= self.initial_alpha <= 1, "must lie in [0, 1]"
        )
        if self.byte_counter_bytes is not None:
            _require(
                "byte_counter_bytes",
                self.byte_counter_bytes,
                self.byte_counter_bytes > 0,
                "must be above 0; None switches the byte counter off",
            )
        if self.cnp_interval_us is not None:
            _require(
                "cnp_interval_us",
                self.cnp_interval_us,
                self.cnp_interval_us >= 0,
                "must not be negative; None echoes marks in acknowledgements",
            )

    def scaled(self, time_factor: float, rate_factor: float) -> DcqcnParams:
        """Return the same loop for a link ``rate_factor`` as fast, its time stretched.

        Byte counters stay. With ``time_factor = 1 / rate_factor`` a link of ``rate_factor`` times
        the speed carries the same packets between the same events: a trace in stretched time equals
        the original one. Raises ValueError if a factor is not above 0.
        """
        _require("time_factor", time_factor, time_factor > 0, "must be above 0")
        _require("rate_factor", rate_factor, rate_factor > 0, "must be above 0")
        return replace(
            self,
            t_alpha_us=self.t_alpha_us * time_factor,
            t_dec_us=self.t_dec_us * time_factor,
            t_rp_us=self.t_rp_us * time_factor,
            cnp_interval_us=None
            if self.cnp_interval_us is None
            else self.cnp_interval_us * time_factor,
            rate_ai_bps=self.rate_ai_bps * rate_factor,
            rate_hai_bps=self.rate_hai_bps * rate_factor,
            min_rate_bps=self.min_rate_bps * rate_factor,
        )


def _require(name: str, value: object, ok: bool, rule: str) -> None:
    if not ok:
        raise ValueError(f"DCQCN parameter {name} = {value!r} {rule}")


_MBPS = 1e6


def _hpcc_run(link_rate_bps: float) -> DcqcnParams:
    """``run.py`` of the HPCC simulator, ``dcqcn``: AI 5 and HAI 50 Mb/s per 25 Gb/s of link."""
    return DcqcnParams(
        t_alpha_us=1,
        t_dec_us=4,
        t_rp_us=300,
        g=1 / 256,
        f=1,
        rate_ai_bps=5 * _MBPS * link_rate_bps / 25e9,
        rate_hai_bps=50 * _MBPS * link_rate_bps / 25e9,
        min_rate_bps=1000 * _MBPS,
    )


def _hpcc_config(link_rate_bps: float) -> DcqcnParams:
    """``mix/config.txt`` of the HPCC simulator, as astra-sim and SimAI ship it, for any link."""
    del link_rate_bps
    return DcqcnParams(
        t_alpha_us=1,
        t_dec_us=4,
        t_rp_us=900,
        g=1 / 256,
        f=1,
        rate_ai_bps=50 * _MBPS,
        rate_hai_bps=100 * _MBPS,
        min_rate_bps=100 * _MBPS,
    )


def _dcqcn_paper(link_rate_bps: float) -> DcqcnParams:
    """``run.py`` of the HPCC simulator, ``dcqcn_paper``: longer periods, the periodic reaction."""
    return replace(_hpcc_run(link_rate_bps), t_alpha_us=50, t_dec_us=50, t_rp_us=55)


def _conweave(link_rate_bps: float) -> DcqcnParams:
    """``run.py`` of the ConWeave simulator: AI 10 and HAI 25 Mb/s per 25 Gb/s of link."""
    return replace(
        _hpcc_run(link_rate_bps),
        rate_ai_bps=10 * _MBPS * link_rate_bps / 25e9,
        rate_hai_bps=_MBPS * link_rate_bps / 1e9,
        min_rate_bps=100 * _MBPS,
    )


def _dcqcn_author(link_rate_bps: float) -> DcqcnParams:
    """The simulator of the DCQCN authors (bobzhuyb/ns3-rdma): byte counter, F = 5, clamped target.

    It cuts on every CNP and the receiver sends one per 50 us.
    """
    del link_rate_bps
    return DcqcnParams(
        t_alpha_us=55,
        t_dec_us=50,
        t_rp_us=60,
        g=1 / 256,
        f=5,
        rate_ai_bps=40 * _MBPS,
        rate_hai_bps=200 * _MBPS,
        min_rate_bps=100 * _MBPS,
        byte_counter_bytes=300_000,
        clamp_target=True,
        reaction=Reaction.PER_CNP,
        cnp_interval_us=50,
    )


def _sigcomm15(link_rate_bps: float) -> DcqcnParams:
    """The set of the DCQCN paper for 40G: 55 us, 10 MB, F = 5, AI 40 Mb/s, a CNP per 50 us.

    The paper gives no hyper increase and no floor; both are those of its authors' simulator (200
    and 100 Mb/s).
    """
    return replace(_dcqcn_author(link_rate_bps), t_rp_us=55, byte_counter_bytes=10_000_000)


def _connectx(link_rate_bps: float) -> DcqcnParams:
    """Defaults of ConnectX firmware, as far as they are published.

    From NVIDIA's table of DCQCN parameters: dce_tcp_g 1019 of 1024 (read as the share of alpha that
    is kept, so g = 5/1024), dce_tcp_rtt 1 us, initial alpha 1023/1024, rate_to_set_on_first_cnp 0
    (keep the rate), rpg_min_dec_fac 50 %, rpg_min_rate 1 Mb/s, rpg_gd 11 (log2, alpha in 1/1024: a
    cut of alpha / 2), rate_reduce_monitor_period 4 us, rpg_time_reset 300 us, rpg_byte_reset 32767
    B, rpg_threshold 1, clamp_tgt_rate 0, clamp_tgt_rate_after_time_inc 1. Less certain: rpg_ai_rate
    5 and rpg_hai_rate 50 Mb/s are the usual defaults of the adapters' sysfs files, not in that
    table; min_time_between_cnps 4 us is the common driver default; how the firmware combines byte
    and time stages is not published, the rule of IEEE 802.1Qau (QCN) is used.
    """
    del link_rate_bps
    return DcqcnParams(
        t_alpha_us=1,
        t_dec_us=4,
        t_rp_us=300,
        g=5 / 1024,
        f=1,
        rate_ai_bps=5 * _MBPS,
        rate_hai_bps=50 * _MBPS,
        min_rate_bps=1 * _MBPS,
        byte_counter_bytes=32767,
        min_dec_fac=0.5,
        initial_alpha=1023 / 1024,
        cnp_interval_us=4,
    )


PRESETS: dict[str, Callable[[float], DcqcnParams]] = {
    "hpcc_run": _hpcc_run,
    "hpcc_config": _hpcc_config,
    "dcqcn_paper": _dcqcn_paper,
    "conweave": _conweave,
    "dcqcn_author": _dcqcn_author,
    "sigcomm15": _sigcomm15,
    "connectx": _connectx,
}
"""Named parameter sets, as functions of the link rate in bit/s; docstrings name the sources."""


def preset(name: str, link_rate_bps: float) -> DcqcnParams:
    """Return the named parameter set for a link of ``link_rate_bps``.

    The published sets are for links of 10 Gb/s and above. For a slower wire take the set at the
    published rate and scale it: ``preset("connectx", 10e9).scaled(250, 1 / 250)`` suits 40 Mb/s.
    Raises ValueError for an unknown name (naming the known ones) or a rate that is not above 0.
    """
    if link_rate_bps <= 0:
        raise ValueError(f"link rate {link_rate_bps!r} bit/s must be above 0")
    try:
        make = PRESETS[name]
    except KeyError:
        known = ", ".join(sorted(PRESETS))
        raise ValueError(f"unknown DCQCN preset {name!r}; known: {known}") from None
    return make(link_rate_bps)


def _ns(time_us: float) -> int:
    return round(time_us * _NS_PER_US)


class ReactionPoint:
    """Rate control of one queue pair.

    The rules of ``PERIODIC``, with ``stage`` counting increases since the last cut:

    1. First CNP: alpha = initial_alpha, target = rate = rate_on_first_cnp x rate; the alpha timer
       starts, and the decrease timer starts 1 ns later, so that alpha is always updated before a
       cut that falls on the same tick.
    2. Every t_alpha: alpha = (1 - g) alpha, plus g if a CNP came since the last tick (the first CNP
       does not count).
    3. Every t_dec, if a CNP came since the last cut: the target is clamped to the rate where the
       clamp rules say so, rate = rate (1 - alpha / gd), bounded by min_dec_fac and min_rate;
       stages, byte counter and increase timer restart.
    4. Every t_rp: fast recovery, additive or hyper increase by stage; rate = (rate + target) / 2.
    5. With a byte counter, each full count is an increase event too. Then, as in IEEE 802.1Qau:
       fast recovery while both stages are below f, hyper increase once both are above f, additive
       increase otherwise.

    A timer that is due at the very instant of a CNP or a packet acts first. Where increase and
    decrease are due at the same instant, the timer with the longer period acts first (it was armed
    first). Calls must come in the order of time; an earlier time than the last one raises
    ValueError.
    """

    __slots__ = (
        "_alpha",
        "_alpha_cnp",
        "_byte_stage",
        "_bytes",
        "_dec_cnp",
        "_frozen",
        "_inc_before_dec",
        "_line_rate",
        "_now",
        "_rate",
        "_started",
        "_t_alpha",
        "_t_alpha_next",
        "_t_dec",
        "_t_dec_next",
        "_t_inc_next",
        "_t_rp",
        "_target",
        "_time_stage",
        "_trace",
        "cnps",
        "cuts",
        "params",
    )

    def __init__(
        self, params: DcqcnParams, line_rate_bps: float, *, trace: RateTrace | None = None
    ) -> None:
        """Start at line rate; raises ValueError if the floor of ``params`` is above it."""
        if params.min_rate_bps > line_rate_bps:
            raise ValueError(
                f"min_rate_bps = {params.min_rate_bps:g} exceeds the line rate of "
                f"{line_rate_bps:g} bit/s; "
                "for a slow wire scale the set of a fast one: preset(name, 10e9).scaled(n, 1 / n)"
            )
        self.params = params
        self.cnps = 0
        self.cuts = 0
        self._line_rate = float(line_rate_bps)
        self._rate = self._target = self._line_rate
        self._alpha = params.initial_alpha
        self._t_alpha = max(1, _ns(params.t_alpha_us))
        self._t_dec = max(1, _ns(params.t_dec_us))
        self._t_rp = max(1, _ns(params.t_rp_us))
        self._inc_before_dec = self._t_rp > self._t_dec
        self._frozen = params.rate_ai_bps == params.rate_hai_bps == 0
        self._started = False
        self._alpha_cnp = False
        self._dec_cnp = False
        self._now = 0
        self._t_alpha_next = 0
        self._t_dec_next = 0
        self._t_inc_next: int | None = None
        self._time_stage = 0
        self._byte_stage = 0
        self._bytes = 0
        self._trace = trace

    @property
    def rate_bps(self) -> float:
        """Rate as of the last call, bit/s."""
        return self._rate

    @property
    def target_bps(self) -> float:
        """Target rate as of the last call, bit/s."""
        return self._target

    @property
    def alpha(self) -> float:
        """Congestion estimate as of the last call, in [0, 1]."""
        return self._alpha

    @property
    def line_rate_bps(self) -> float:
        """Upper bound of rate and target, bit/s."""
        return self._line_rate

    @property
    def stages(self) -> tuple[int, int]:
        """Increases since the last cut: (by the timer, by the byte counter)."""
        return self._time_stage, self._byte_stage

    def advance(self, now_us: float) -> float:
        """Let every timer due by ``now_us`` act; return the rate in bit/s."""
        now = round(now_us * _NS_PER_US)
        if now <= self._now:
            if now == self._now:
                return self._rate
            raise ValueError(
                f"time went back: {now_us} us is before the {self._now / _NS_PER_US} us "
                "of the last call"
            )
        self._now = now
        if self._started:
            if self.params.reaction is Reaction.PERIODIC:
                self._advance_periodic(now)
            else:
                self._alpha_until(now)
                self._increase_until(now)
        return self._rate

    def on_cnp(self, now_us: float) -> None:
        """Take a CNP (or an echoed mark) that arrives at ``now_us``."""
        self.advance(now_us)
        self.cnps += 1
        if self.params.reaction is Reaction.PER_CNP:
            self._cut_per_cnp()
            return
        self._alpha_cnp = True
        self._dec_cnp = True
        if not self._started:
            self._started = True
            self._alpha = self.params.initial_alpha
            self._alpha_cnp = False
            self._t_alpha_next = self._now + self._t_alpha
            self._t_dec_next = self._now + self._t_dec + 1
            self._first_cnp_rate()

    def on_sent(self, wire_bytes: int, now_us: float) -> float:
        """Count ``wire_bytes`` put on the wire at ``now_us``; return the rate after them, bit/s."""
        rate = self.advance(now_us)
        limit = self.params.byte_counter_bytes
        # Before the first cut there is nothing to recover from; each cut restarts the counter.
        if limit is None or self._t_inc_next is None:
            return rate
        self._bytes += wire_bytes
        while self._bytes >= limit:
            self._bytes -= limit
            self._increase(self._now)
            self._byte_stage += 1
        return self._rate

    def next_change_us(self) -> float | None:
        """Return when a timer next changes the rate, or None while only a CNP or a packet can."""
        due: list[int] = []
        if self._dec_cnp:
            due.append(self._t_dec_next)
        if self._t_inc_next is not None and not (
            self._rate == self._target and (self._frozen or self._rate == self._line_rate)
        ):
            due.append(self._t_inc_next)
        return min(due) / _NS_PER_US if due else None

    def _advance_periodic(self, now: int) -> None:
        # A flag is set only by a CNP, and calls come in order: at most one cut can be pending
        # between two calls.
        if self._dec_cnp and self._t_dec_next <= now:
            at = self._t_dec_next
            self._alpha_until(at)
            self._increase_until(at if self._inc_before_dec else at - 1)
            self._dec_cnp = False
            self._cut(at)
        if self._t_dec_next <= now:
            self._t_dec_next += ((now - self._t_dec_next) // self._t_dec + 1) * self._t_dec
        self._alpha_until(now)
        self._increase_until(now)

    def _alpha_until(self, now: int) -> None:
        ticks = (now - self._t_alpha_next) // self._t_alpha + 1
        if ticks <= 0:
            return
        self._t_alpha_next += ticks * self._t_alpha
        g = self.params.g
        if self._alpha_cnp:
            self._alpha_cnp = False
            self._alpha = (1 - g) * self._alpha + g
            ticks -= 1
        if ticks:
            self._alpha *= (1 - g) ** ticks

    def _increase_until(self, now: int) -> None:
        at = self._t_inc_next
        if at is None:
            return
        while at <= now:
            if self._rate == self._target and (self._frozen or self._rate == self._line_rate):
                # Nothing left to gain: only the stage still counts.
                ticks = (now - at) // self._t_rp + 1
                self._time_stage += ticks
                at += ticks * self._t_rp
                break
            self._increase(at)
            self._time_stage += 1
            at += self._t_rp
        self._t_inc_next = at

    def _increase(self, at: int) -> None:
        params = self.params
        f = params.f
        if params.byte_counter_bytes is None:
            low = high = self._time_stage
            fast = high < f
        else:
            low = min(self._time_stage, self._byte_stage)
            high = max(self._time_stage, self._byte_stage)
            fast = high < f
        if not fast:
            if low > f:
                step = params.rate_hai_bps * (low - f if params.hai_scaling else 1)
            else:
                step = params.rate_ai_bps
            self._target = min(self._line_rate, self._target + step)
        self._set_rate((self._rate + self._target) / 2, at)

    def _first_cnp_rate(self) -> None:
        factor = self.params.rate_on_first_cnp
        self._target = max(self.params.min_rate_bps, factor * self._rate)
        self._set_rate(self._target, self._now)

    def _cut(self, at: int) -> None:
        params = self.params
        if (
            params.clamp_target
            or self._byte_stage > 0
            or (params.clamp_after_time_inc and self._time_stage > 0)
        ):
            self._target = self._rate
        factor = max(1 - self._alpha / params.gd, params.min_dec_fac)
        self._time_stage = 0
        self._byte_stage = 0
        self._bytes = 0
        self._t_inc_next = at + self._t_rp
        self.cuts += 1
        self._set_rate(max(params.min_rate_bps, self._rate * factor), at)

    def _cut_per_cnp(self) -> None:
        if not self._started:
            self._started = True
            self._alpha = self.params.initial_alpha
            self._first_cnp_rate()
        self._cut(self._now)
        g = self.params.g
        self._alpha = (1 - g) * self._alpha + g
        self._t_alpha_next = self._now + self._t_alpha

    def _set_rate(self, rate: float, at: int) -> None:
        if rate != self._rate:
            self._rate = rate
            if self._trace is not None:
                self._trace(at / _NS_PER_US, rate)


class NotificationMode(StrEnum):
    """How a receiver tells the sender that a packet arrived marked CE."""

    CNP = "cnp"
    """A congestion notification packet, at most one per queue pair and interval."""
    ECHO = "echo"
    """The BECN bit of the next acknowledgement (the simulators' way, with an ACK per packet)."""
    OFF = "off"
    """Not at all."""


class NotificationPoint:
    """Decides when CE-marked arrivals are reported.

    In ``CNP`` mode the first mark is reported at once, and marks within ``cnp_interval_us`` of the
    last report are not (RoCEv2 annex A17.9; ConnectX ``min_time_between_cnps``). In ``ECHO`` mode
    every mark is reported.
    """

    __slots__ = ("_interval", "_last", "mode", "suppressed")

    def __init__(
        self, mode: NotificationMode = NotificationMode.CNP, cnp_interval_us: float = 50.0
    ) -> None:
        """Raises ValueError if the interval is negative."""
        if cnp_interval_us < 0:
            raise ValueError(f"cnp_interval_us = {cnp_interval_us!r} must not be negative")
        self.mode = mode
        self.suppressed = 0
        self._interval = _ns(cnp_interval_us)
        self._last: dict[Hashable, int] = {}

    @classmethod
    def from_params(cls, params: DcqcnParams | None) -> NotificationPoint:
        """Return what belongs to a sender's parameters; None notifies nobody."""
        if params is None:
            return cls(NotificationMode.OFF, 0)
        if params.cnp_interval_us is None:
            return cls(NotificationMode.ECHO, 0)
        return cls(NotificationMode.CNP, params.cnp_interval_us)

    def on_ce(self, key: Hashable, now_us: float) -> bool:
        """Say whether the mark that came for ``key`` (a queue pair) at ``now_us`` is reported."""
        if self.mode is not NotificationMode.CNP:
            return self.mode is NotificationMode.ECHO
        now = _ns(now_us)
        last = self._last.get(key)
        if last is not None and now - last < self._interval:
            self.suppressed += 1
            return False
        self._last[key] = now
        return True
