"""The closed loop: tries settings of a job in epochs and keeps what its completion times prove.

An **arm** is a way to run a job: planned paths on or off, a gain of the marker. One of them is
**safe** (DCQCN and ECMP alone). An epoch is a fixed amount of work of the job, such as ten
iterations; its cost is the time it took. Two mechanisms share the decision:

- The **account** bounds the harm. It is kept in epochs of the safe arm. Every epoch of another arm
  is booked with what it took beyond the safe arm's running mean. Of the budget it gives out
  :data:`SPENT`: it holds at most that of ``budget * startup``, is full at the start, and gets that
  of ``budget`` per epoch once ``startup`` epochs have passed; gains pay back losses, and never fill
  it above that. An arm runs only if what is left
  covers what one more epoch of it may cost at worst. This is the rule of conservative bandits (Wu,
  Shariff, Lattimore, Szepesvári, ICML 2016) with a bounded purse, so that time spent well long ago
  does not pay for harm today.
- The **test** says which arm is better: sequential bets on the log ratio of the times of two arms
  in a block of neighbouring epochs, in random order (Waudby-Smith and Ramdas, JRSS B 2024; Howard,
  Ramdas, McAuliffe, Sekhon, Ann. Stat. 2021). It may be looked at after every block. Bets against
  an arm in force start anew whenever they are lost (an e-detector: Shin, Ramdas, Rinaldo, 2023), so
  an arm that was good for long and is no longer good is found.

Nothing here reads a clock or does input or output: :meth:`ClosedLoop.next_arm` names the arm of the
coming epoch, :meth:`ClosedLoop.observe` takes what an epoch took, in any unit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import Any, Final, Self

FORMAT: Final = 1
"""Version of :meth:`ClosedLoop.to_dict`."""
CLIP: Final = 0.25
"""Log ratios of a block are cut here, for the test: one freak epoch counts as a quarter.

Where two arms are alike, a block's log ratio is as likely to be y as -y, so cutting it leaves its
mean at 0 whatever the tails are.
"""
OUTLIER: Final = 2.0
"""Times beyond this factor of the safe arm's median are booked as this, for every arm alike."""
MEMORY: Final = 32
"""Epochs of the safe arm that its running mean looks back on."""
WINDOW: Final = 256
"""Blocks that a test looks back on."""
SPENT: Final = 0.75
"""Share of the budget that the account gives out; the rest is for errors of measurement."""
_STAKES: Final = (0.1, 0.25, 0.5, 0.9)
"""Shares of the capital that are bet, all of them side by side."""
_RECENT: Final = 64
_LEVEL_FROM: Final = 3
_FEWEST: Final = 4
"""Blocks before an arm is given up for its looks."""
_RUN: Final = 4
"""Safe epochs in a row on one side, by more than a deviation, that mean a new level."""
_RUN_FROM: Final = 8
_BLOCK_SAFE: Final = 4
"""Safe epochs of a block that count: the last ones, where the account made it wait."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to run a job; ``settings`` mean nothing to the loop (plain data, to be stored)."""

    name: str
    settings: Any = None


@dataclass(frozen=True, slots=True)
class LoopParams:
    """What the loop may cost and how it judges.

    Attributes:
        budget: the most by which the job may take longer than with the safe arm, a share.
        startup: epochs up to which that is not promised; the account starts with their budget.
        worst: what one epoch of an arm that nobody has tried may cost at most, a share of a safe
            epoch.
        worth: a gain below this is none, and the simpler arm is kept.
        confidence: of every verdict, a share.
        check: with an arm in force, one epoch in this many is the safe arm's.
        patience: blocks after which an undecided arm counts as no better.
        rest: epochs for which an arm that lost is left alone.
        seed: of the order within blocks.
        lean: epochs of an arm in force that is not proven, for each safe one beside them. 1 judges
            soonest; more leave the job to the arm while it is judged.
    """

    budget: float = 0.01
    startup: int = 100
    worst: float = 0.5
    worth: float = 0.02
    confidence: float = 0.95
    check: int = 12
    patience: int = 200
    rest: int = 500
    seed: int = 0
    lean: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("budget", 0.0, 1.0),
            ("worst", 0.0, OUTLIER - 1),
            ("worth", 0.0, CLIP),
            ("confidence", 0.5, 1.0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"{name} = {value!r}: must be a number")
            if not low < value < high:
                raise ValueError(f"{name} = {value}: must lie between {low:g} and {high:g}")
        for name, least in (
            ("startup", 1),
            ("check", 4),
            ("patience", 1),
            ("rest", 1),
            ("seed", 0),
            ("lean", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} = {value!r}: must be a whole number from {least}")
        if self.worst > self.capacity:
            least = math.ceil(round(self.worst / self.budget / SPENT, 6))
            raise ValueError(
                f"worst = {self.worst}: the account holds {SPENT:g} * budget * startup = "
                f"{self.capacity:g} epochs and would never pay for a trial; take startup = {least} "
                f"or more, or a worst of at most {self.capacity:g}"
            )

    @property
    def capacity(self) -> float:
        """The most that the account holds, in epochs of the safe arm."""
        return round(SPENT * self.budget * self.startup, 12)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of an arm.

    Attributes:
        epochs: how many it had.
        time: what they took together.
        blocks: blocks in which it stood beside the safe arm, as far back as the test looks.
        change: its time against the safe arm's, -0.2 for a fifth less: median over those blocks;
            None without any.
        low, high: bounds of that at the loop's confidence, at any time valid; they stop at a
            factor of exp(CLIP).
        pessimistic: what its next epoch may cost beyond a safe one, as the account reckons.
    """

    epochs: int
    time: float
    blocks: int
    change: float | None
    low: float
    high: float
    pessimistic: float


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where a loop stands.

    Attributes:
        epochs: observed so far.
        time: what they took.
        safe_time: running mean of a safe epoch; None before there is one.
        booked: what the epochs of other arms took beyond that, less what they gained, in safe
            epochs.
        account: what may still be lost, in safe epochs; below 0: overdrawn.
        in_force: name of the arm that is kept.
        proven: whether the test has shown it to be better than the safe arm.
        rival: name of the arm that is being tried, or None.
        estimates: by name.
        reason: in words.
    """

    epochs: int
    time: float
    safe_time: float | None
    booked: float
    account: float
    in_force: str
    proven: bool
    rival: str | None
    estimates: Mapping[str, Estimate]
    reason: str


@dataclass(slots=True)
class _Tally:
    """What an arm has shown; plain data."""

    epochs: int = 0
    time: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Against the safe arm's running mean, the latest ones."""
    blocks: list[float] = field(default_factory=list)
    """Log ratios to the safe arm."""
    duel: list[float] = field(default_factory=list)
    """Log ratios to the arm in force, since it is."""
    rests_until: int = 0
    lost: int = 0
    """How often it did; each time it rests twice as long."""


class ClosedLoop:
    """Chooses the arm of each epoch of one job.

    ``arms`` are in order of preference, the simplest first: where two are alike, the first is kept.
    ``start`` is in force from the first epoch; another arm than ``safe`` is meant for where there
    is evidence for it, and is tested all the same, and bounded by the same account.

    Raises:
        ValueError: fewer than two arms, a name twice, ``safe`` or ``start`` not among them, or
            parameters that make no sense together.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        safe: str,
        start: str | None = None,
        budget: float = 0.01,
        **more: Any,
    ) -> None:
        self.params = LoopParams(budget=budget, **more)
        self.arms = tuple(arms)
        names = [arm.name for arm in self.arms]
        if len(names) < 2:
            raise ValueError(f"arms = {names}: a loop chooses between two or more")
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"arms: {twice[0]!r} stands twice")
        self.safe = safe
        self.start = safe if start is None else start
        for what, name in (("safe", self.safe), ("start", self.start)):
            if name not in names:
                raise ValueError(f"{what} = {name!r}: is none of the arms: {', '.join(names)}")
        self._arm = {arm.name: arm for arm in self.arms}
        self._tally = {name: _Tally() for name in names}
        self._epochs = 0
        self._account = self.params.capacity
        self._booked = 0.0
        self._safe_times: list[float] = []
        self._usual_safe: tuple[float, float] | None = None
        self._unbooked: list[tuple[str, float]] = []
        self._in_force = self.start
        self._proven = self.start == safe
        self._rival: str | None = None
        self._blocks = 0
        self._plan: list[str] = []
        self._seen: dict[str, list[float]] = {}
        self._news = "no verdict yet"

    # --- what a coordinator calls ---

    def next_arm(self) -> Arm:
        """Return the arm of the coming epoch; the same one until :meth:`observe` is called."""
        for _ in range(len(self.arms)):
            if not self._plan:
                self._new_block()
            wanted = self._plan[0]
            if wanted == self.safe or self._covered(wanted):
                return self._arm[wanted]
            if self._pessimistic(wanted) > self.params.capacity:
                self._give_up(wanted, "may cost more in an epoch than the account ever holds")
                continue
            if not self._proven:
                # It runs when the account covers it; until then the safe arm is in force.
                self._put_in_force(self.safe)
                self._rival, self._tally[wanted].duel = wanted, list(self._tally[wanted].blocks)
                self._news = f"the account does not cover {wanted} all the time"
            # A block that waits is cut short, so that safe epochs stand beside few others.
            self._plan = [wanted]
            break
        return self._arm[self.safe]

    def observe(self, arm: Arm | str, cct: float) -> None:
        """Take what an epoch with ``arm`` took, in any unit, the same for all epochs.

        An epoch of another arm than :meth:`next_arm` named counts too.

        Raises:
            ValueError: no such arm, or a time that is not a finite number above 0. Nothing is
                changed then.
        """
        name = arm.name if isinstance(arm, Arm) else arm
        if name not in self._arm:
            raise ValueError(f"arm {name!r}: is none of the arms: {', '.join(self._arm)}")
        if isinstance(cct, bool) or not isinstance(cct, (int, float)):
            raise ValueError(f"cct = {cct!r}: must be a number")
        if not (math.isfinite(cct) and cct > 0):
            raise ValueError(f"cct = {cct!r}: must be a finite time above 0")
        cct = float(cct)
        if not self._plan:
            self.next_arm()
        self._epochs += 1
        if self._epochs > self.params.startup:
            self._pay(SPENT * self.params.budget)
        tally = self._tally[name]
        tally.epochs += 1
        tally.time += cct
        if name == self.safe:
            self._see_safe(cct)
        else:
            self._unbooked.append((name, cct))
        if self._unbooked and self._has_level:
            for who, time in self._unbooked:
                self._book(who, time)
            self._unbooked.clear()
        if name in (self.safe, self._plan[0]):
            self._seen.setdefault(name, []).append(math.log(cct))
        if name == self._plan[0]:
            self._plan.pop(0)
            if not self._plan:
                self._close_block()

    def charge(self, loss: float) -> None:
        """Book what an epoch that judges nothing took beyond a safe one, in safe epochs."""
        self._pay(-loss)

    def accept(self) -> None:
        """Take the arm in force for proven, on evidence from elsewhere."""
        if not self._proven:
            self._proven, self._plan, self._seen = True, [], {}
            self._news = f"{self._in_force} was shown to be better: taken over"

    @property
    def in_force(self) -> str:
        """Name of the arm that is kept."""
        return self._in_force

    @property
    def proven(self) -> bool:
        """Whether the arm in force is the safe one, or was shown to be better than that."""
        return self._proven

    @property
    def rival(self) -> str | None:
        """Name of the arm that is being tried against the one in force, or None."""
        return self._rival

    @property
    def waits(self) -> bool:
        """Whether the safe arm runs because the account does not cover the one whose turn it is."""
        return bool(self._plan) and self._plan[0] != self.safe and not self._covered(self._plan[0])

    @property
    def account(self) -> float:
        """What may still be lost, in safe epochs; below 0: overdrawn."""
        return self._account - self.params.worst * len(self._unbooked)

    @property
    def state(self) -> LoopState:
        """Where the loop stands, estimates included; takes milliseconds."""
        return LoopState(
            epochs=self._epochs,
            time=math.fsum(tally.time for tally in self._tally.values()),
            safe_time=self._usual()[0] if self._has_level else None,
            booked=self._booked,
            account=self.account,
            in_force=self._in_force,
            proven=self._proven,
            rival=self._rival,
            estimates={name: self._estimate(name) for name in self._arm},
            reason=self._reason(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data: numbers, texts, lists and dicts."""
        return {
            "format": FORMAT,
            "arms": [asdict(arm) for arm in self.arms],
            "safe": self.safe,
            "start": self.start,
            "params": asdict(self.params),
            "tally": {name: asdict(tally) for name, tally in self._tally.items()},
            **{name: _copy(getattr(self, f"_{name}")) for name in _FIELDS},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the loop that :meth:`to_dict` described; it goes on as if it had never stopped.

        Raises:
            ValueError: not such data.
        """
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"not the state of a closed loop of format {FORMAT}")
        try:
            loop = cls(
                [Arm(**arm) for arm in data["arms"]], data["safe"], data["start"], **data["params"]
            )
            for name, tally in data["tally"].items():
                if name not in loop._arm:
                    raise ValueError(f"tally: {name!r} is none of the arms")
                loop._tally[name] = _Tally(**_copy(tally))
            for name in _FIELDS:
                setattr(loop, f"_{name}", _copy(data[name]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the state of a closed loop: {error!r}") from None
        loop._unbooked = [(name, time) for name, time in loop._unbooked]
        named = {loop._in_force, *loop._plan, *loop._seen, *(name for name, _ in loop._unbooked)}
        if unknown := named - {*loop._arm}:
            raise ValueError(
                f"not the state of a closed loop: {min(unknown)!r} is none of the arms"
            )
        return loop

    # --- the account ---

    @property
    def _has_level(self) -> bool:
        return len(self._safe_times) >= _LEVEL_FROM

    def _usual(self) -> tuple[float, float]:
        """The level of the safe epochs, a mean without freaks, and their median.

        Kept until there is another safe epoch.
        """
        if self._usual_safe is None:
            middle = median(self._safe_times)
            self._usual_safe = fmean([within(t, middle) for t in self._safe_times]), middle
        return self._usual_safe

    def _see_safe(self, time: float) -> None:
        self._usual_safe = None
        times = self._safe_times
        times.append(time)
        before, run = [math.log(t) for t in times[:-_RUN]], times[-_RUN:]
        if len(before) >= _RUN_FROM:
            middle = median(before)
            spread = max(1.48 * median(abs(log - middle) for log in before), 0.01)
            off = [(math.log(t) - middle) / spread for t in run]
            if min(off) > 1 or max(off) < -1:
                # Something happened to the fabric: what was known of resting arms is old.
                times[:] = run
                for tally in self._tally.values():
                    tally.rests_until = tally.lost = 0
        del times[:-MEMORY]

    def _book(self, name: str, time: float) -> None:
        level, middle = self._usual()
        loss = within(time, middle) / level - 1
        losses = self._tally[name].losses
        losses.append(loss)
        del losses[:-_RECENT]
        self._booked += loss
        self._pay(-loss)

    def _pay(self, amount: float) -> None:
        self._account = min(self._account + amount, self.params.capacity)

    def _pessimistic(self, name: str) -> float:
        return pessimistic(self._tally[name].losses, self.params.worst)

    def _optimistic(self, name: str) -> float:
        """What its next epoch may cost at best, below 0 for a gain."""
        losses = self._tally[name].losses
        return _mean(losses) - self.params.worst / math.sqrt(1 + len(losses))

    def _covered(self, name: str) -> bool:
        return self.account >= max(self._pessimistic(name), 0.0)

    # --- blocks ---

    def _new_block(self) -> None:
        """Plan the coming epochs: each arm of the block next to the safe one, in random order."""
        held, safe = self._in_force, self.safe
        if not self._has_level:
            plan = [held] * (held != safe) + [safe] * _LEVEL_FROM
            first = 1
        else:
            first = 0
            rival = self._rival = self._next_rival() if self._proven else None
            if held == safe:
                plan = [safe] if rival is None else [safe, rival]
            elif not self._proven or 2 * self.account < self.params.capacity:
                plan = [safe] + [held] * (1 if self._proven else self.params.lean)
            elif rival is not None:
                plan = [safe, rival, rival, held, held, held]
            else:
                plan = [safe] + [held] * (self.params.check - 1)
        rest = plan[first:]
        random.Random(f"{self.params.seed}:{self._blocks}").shuffle(rest)
        self._plan = plan[:first] + rest
        self._blocks += 1
        self._seen = {}

    def _next_rival(self) -> str | None:
        """The arm to try next: of those that can be paid for, the one that may be the fastest.

        Where several may be, that of the start, then the first one.
        """
        free = [
            name
            for name, tally in self._tally.items()
            if name not in (self.safe, self._in_force) and tally.rests_until <= self._epochs
        ]
        paid = [name for name in free if self._covered(name)]
        return min(
            paid or free,
            key=lambda name: (self._optimistic(name), name != self.start),
            default=None,
        )

    def _close_block(self) -> None:
        logs = {name: fmean(seen) for name, seen in self._seen.items() if name != self.safe}
        safe_logs = self._seen.get(self.safe, [])[-_BLOCK_SAFE:]
        if not safe_logs or not logs:
            return
        safe_log = fmean(safe_logs)
        for name, log in logs.items():
            _remember(self._tally[name].blocks, log - safe_log)
        rival, held = self._rival, self._in_force
        other = safe_log if held == self.safe else logs.get(held)
        if rival is not None and rival in logs and other is not None:
            _remember(self._tally[rival].duel, logs[rival] - other)
            self._judge_rival(rival)
        if self._in_force == held != self.safe and held in logs:
            self._judge_held(held)

    # --- the test ---

    def _judge_rival(self, rival: str) -> None:
        """Let a rival win against the arm in force, lose, or go on."""
        held, p = self._in_force, self.params
        names = list(self._arm)
        simpler = names.index(rival) < names.index(held)
        wins, loses = (p.worth, 0.0) if simpler else (0.0, -p.worth)
        duel, losses = self._tally[rival].duel, self._tally[held].losses
        tired = len(duel) >= p.patience
        if _below(duel, wins, p.confidence) or (tired and simpler):
            what = "is no slower and simpler" if simpler else "is faster"
            self._news = f"{rival} {what} than {held}: in force since epoch {self._epochs}"
            if held != self.safe:
                self._rest(held)
            self._put_in_force(rival)
        elif tired or _above(duel, loses, p.confidence):
            self._give_up(rival, f"gains nothing over {held}")
        elif len(duel) >= _FEWEST and self._optimistic(rival) >= _mean(losses):
            self._give_up(rival, f"looks no faster than {held}")

    def _judge_held(self, held: str) -> None:
        """Prove the arm in force, or drop it for the safe one."""
        p, blocks = self.params, self._tally[held].blocks
        if _above(blocks, -p.worth, p.confidence):
            self._give_up(held, f"gains nothing over {self.safe}")
        elif not self._proven and _below(blocks, 0.0, p.confidence):
            self._proven = True
            self._news = f"{held} is faster than {self.safe}: proven in epoch {self._epochs}"
        elif not self._proven and len(blocks) >= p.patience:
            self._give_up(held, f"gains nothing over {self.safe} that shows")

    def _give_up(self, name: str, why: str) -> None:
        """Let an arm rest; what was measured of it is forgotten by then."""
        self._news = f"{name} {why}: left alone since epoch {self._epochs}"
        self._rest(name)
        if self._in_force == name:
            self._put_in_force(self.safe)
        self._rival = None
        self._plan, self._seen = [], {}

    def _put_in_force(self, name: str) -> None:
        self._in_force, self._proven, self._rival = name, True, None
        for tally in self._tally.values():
            tally.duel = []

    def _rest(self, name: str) -> None:
        tally = self._tally[name]
        tally.rests_until = self._epochs + (self.params.rest << min(tally.lost, 20))
        tally.lost += 1
        tally.blocks, tally.duel, tally.losses = [], [], []

    # --- in words ---

    def _estimate(self, name: str) -> Estimate:
        tally, confidence = self._tally[name], self.params.confidence
        low, high = _interval(tally.blocks, confidence)
        if name == self.safe:
            low = high = 0.0
        return Estimate(
            tally.epochs,
            tally.time,
            len(tally.blocks),
            math.expm1(median(tally.blocks)) if tally.blocks else None,
            math.expm1(low),
            math.expm1(high),
            0.0 if name == self.safe else self._pessimistic(name),
        )

    def _reason(self) -> str:
        held, rival = self._in_force, self._rival
        text = f"{held} in force"
        if held != self.safe:
            text += ", proven against " if self._proven else ", not yet proven against "
            text += self.safe
        if rival is not None:
            text += f"; trying {rival}"
        if self.waits:
            waiting = self._plan[0]
            text += (
                f"; {self.safe} runs until the account ({self.account:.2f} epochs) covers "
                f"{waiting} ({max(self._pessimistic(waiting), 0.0):.2f})"
            )
        return f"{text}; {self._news}"


_FIELDS: Final = (
    "epochs",
    "account",
    "booked",
    "safe_times",
    "unbooked",
    "in_force",
    "proven",
    "rival",
    "blocks",
    "plan",
    "seen",
    "news",
)
"""What :meth:`ClosedLoop.to_dict` stores as it is."""


def pessimistic(losses: Sequence[float], worst: float) -> float:
    """Return what the next epoch of an arm may cost: ``worst``, then nearer and nearer to the mean.

    Args:
        losses: of its epochs so far, in safe epochs.
        worst: of an arm that nobody has tried.
    """
    mean = _mean(losses)
    return mean + max(worst - mean, 0.0) / math.sqrt(1 + len(losses))


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, (list, tuple)) else value


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def within(time: float, middle: float) -> float:
    """Return a time, cut at a factor of :data:`OUTLIER` from what is usual."""
    return min(max(time, middle / OUTLIER), middle * OUTLIER)


def _remember(blocks: list[float], log_ratio: float) -> None:
    blocks.append(log_ratio)
    del blocks[:-WINDOW]


def _gains(blocks: Sequence[float], mean: float) -> list[float]:
    """What a bet on a log ratio below ``mean`` wins per block and stake, above -1."""
    scale = CLIP + abs(mean)
    return [(mean - min(max(y, -CLIP), CLIP)) / scale for y in blocks]


def _capital(gains: Sequence[float]) -> float:
    """The bettor's capital, from 1: a martingale where the mean is what it is held to be."""
    return fmean(math.exp(sum(math.log1p(stake * g) for g in gains)) for stake in _STAKES)


def _below(blocks: Sequence[float], mean: float, confidence: float) -> bool:
    """Whether the log ratio is shown to lie below ``mean`` (Ville's inequality)."""
    return _capital(_gains(blocks, mean)) * (1 - confidence) >= 1


def _above(blocks: Sequence[float], mean: float, confidence: float) -> bool:
    """Whether the log ratio has come to lie above ``mean``, since whenever."""
    total = 0.0
    gains = _gains(blocks, mean)
    for stake in _STAKES:
        capital = 1.0
        for g in gains:
            capital = max(capital, 1.0) * (1 - stake * g)
        total += capital
    return total / len(_STAKES) * (1 - confidence) >= 1


def _interval(blocks: Sequence[float], confidence: float) -> tuple[float, float]:
    """The means that no bettor has disproved: a confidence sequence, cut at CLIP."""
    each = (1 + confidence) / 2

    def bound(values: Sequence[float]) -> float:
        low, high = -CLIP, CLIP
        if not _below(values, CLIP, each):
            return CLIP
        for _ in range(24):
            middle = (low + high) / 2
            low, high = (low, middle) if _below(values, middle, each) else (middle, high)
        return high

    return -bound([-y for y in blocks]), bound(blocks)
