"""The opening of a trial: proposals run in rows and meet NCCL's measured calls by ranks.

Every proposal runs some calls in a row, and is compared with the calls of the best so far, until it
is clearly faster, clearly slower, or has had its calls. Rows save switches, of which every rank has
to know. The load may change just then; whoever keeps what won has to ask again later.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from statistics import fmean, median
from typing import Final

from ringstep.hostlib.dynamic.actions import Config
from ringstep.protocol.loop import OUTLIER, pessimistic, within

LEAST: Final = 4
"""Calls of a row at least."""
FIRST_ROW: Final = 12
"""Calls of the first proposal at most; of the others :data:`NEXT_ROW`."""
NEXT_ROW: Final = 8
MOST_BEFORE: Final = 8
"""Calls of NCCL's choice that rows are compared with: the last ones."""
RESERVE: Final = 0.25
"""Calls of NCCL's choice."""
SLOWER: Final = 0.1
"""A row that ends early for want of money has lost if its calls took so much longer, a share."""
ODDS: Final = 0.01
"""So few of the orders of calls that are all alike look as clear (Mann and Whitney, 1947)."""
EXACT: Final = 128
"""Pairs of calls up to which orders are counted."""


class Opening:
    """Finds the best of NCCL's choice and some proposals, within an account.

    Args:
        before: latencies of NCCL's choice under the load of now, µs; :data:`LEAST` or more.
        proposals: the best first.
        worth: a smaller gain is none, a share.
        worst: what one call of an untried configuration may cost beyond NCCL's, a share.
        account: what may be lost, in calls of NCCL's choice; gains never fill it above that.

    Attributes:
        account: what is left of it.
        champion: the best that was shown to be better than NCCL's choice; None: that itself.
        undecided: looked better than NCCL's choice without being shown to be, or may be better, as
            far as the few calls of that say.
        calls: latencies by configuration; None: NCCL's choice.
        lost: proposals that were shown to be no better, or looked no better.
    """

    def __init__(
        self,
        before: Sequence[float],
        proposals: Sequence[Config],
        worth: float,
        worst: float,
        account: float,
    ) -> None:
        self._level = _mean(before, median(before))
        self._left = list(proposals)
        self._worth, self._worst = worth, worst
        self._losses: list[float] = []
        self.account = self._full = account
        self.champion: Config | None = None
        self.undecided: Config | None = None
        self.calls: dict[Config | None, list[float]] = {None: list(before)}
        self.lost: list[Config] = []
        self._skip()

    @property
    def config(self) -> Config | None:
        """What the next call shall run; None: the opening is over."""
        return self._left[0] if self._left else None

    def before(self, latency_us: float) -> None:
        """Take a call of NCCL's choice that ran before the first row did, as ranks had to agree."""
        usual = self.calls[None]
        if len(self.calls) == 1:
            usual.append(latency_us)
            del usual[:-MOST_BEFORE]
            self._level = _mean(usual, median(usual))

    def observe(self, latency_us: float) -> None:
        """Take a call of :attr:`config`."""
        config = self._left[0]
        row = self.calls.setdefault(config, [])
        row.append(latency_us)
        shock = latency_us > OUTLIER * max(self.calls[None])
        taken = latency_us if shock else within(latency_us, self._level)
        loss = taken / self._level - 1
        self._losses.append(loss)
        self.account = min(self.account - loss, self._full)
        if shock:  # twice as long as the slowest of NCCL's calls: one is enough, and is all it cost
            self.lost.append(config)
            self._drop_pair(config)
            self._next()
        elif len(row) >= LEAST:
            self._judge(config, row)
        if self._left and self._left[0] == config:
            self._skip()

    def _judge(self, config: Config, row: list[float]) -> None:
        best = self.calls[self.champion]
        enough = len(row) >= (FIRST_ROW if len(self.calls) == 2 else NEXT_ROW)
        wins = clearly(row, best, 1 - self._worth)
        loses = clearly(best, row, 1.0)
        better = looks_better(row, best, self._worth)
        if enough and better and self.champion is not None:
            # Of two that are better than NCCL's choice, the one that looks better.
            wins = clearly(row, self.calls[None], 1 - self._worth)
        if not (wins or loses or enough):
            return
        if wins:
            self.champion = config
        elif self.champion is None and not loses and (better or len(best) < MOST_BEFORE):
            if self.undecided is None or looks_better(row, self.calls[self.undecided], 0.0):
                self.undecided = config
        else:
            self.lost.append(config)
        if wins:  # other channels are for where the first number was no clear answer
            self._drop_pair(config)
        self._next()

    def _drop_pair(self, config: Config) -> None:
        pair = (config.algo, config.proto)
        self._left[1:] = [c for c in self._left[1:] if (c.algo, c.proto) != pair]

    def _next(self) -> None:
        del self._left[0]
        self._losses = []
        self._skip()

    def _skip(self) -> None:
        """End where the account does not cover another call."""
        while self._left and self.account - self._reserve() < max(
            pessimistic(self._losses, self._worst), 0.0
        ):
            config = self._left[0]
            if len(self.calls.get(config, ())) >= LEAST or fmean(self._losses or [0.0]) > SLOWER:
                self.lost.append(config)
            del self._left[0]
            self._losses = []

    def _reserve(self) -> float:
        """What the next call must leave to others.

        A champion runs only while the account is not empty; and a proposal that loses so far must
        leave the next one its first call, where there was enough for two.
        """
        champion = 0.0 if self.champion is None else RESERVE
        shared = len(self._left) > 1 and self._full >= 2 * self._worst
        return max(champion, self._worst if shared and sum(self._losses) > 0 else 0.0)


def looks_better(ones: Sequence[float], others: Sequence[float], worth: float) -> bool:
    """Say whether the ones are faster by a share in the mean, freaks cut."""
    middle = median(others)
    return _mean(ones, middle) < (1 - worth) * _mean(others, middle)


def _mean(times: Sequence[float], middle: float) -> float:
    return fmean(within(time, middle) for time in times)


def clearly(ones: Sequence[float], others: Sequence[float], factor: float) -> bool:
    """Say whether the ones are clearly faster than the others times a factor."""
    slower = sorted(factor * other for other in others)
    inverted = sum(bisect_right(slower, one) for one in ones)
    return odds(len(others), len(ones), inverted) <= ODDS


@cache
def _orders(m: int, n: int, u: int) -> int:
    """Return in how many orders of m and n things just u of the m * n pairs are inverted."""
    if u < 0:
        return 0
    if m == 0 or n == 0:
        return int(u == 0)
    return _orders(m - 1, n, u - n) + _orders(m, n - 1, u)


@cache
def odds(m: int, n: int, u: int) -> float:
    """Return the chance of at most u inverted pairs of m and n calls, where all orders are alike.

    Of more than :data:`EXACT` pairs it is that of a normal distribution.

    Example:
        >>> round(odds(4, 5, 0) * 126)
        1
    """
    if m * n > EXACT:
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return 0.5 * math.erfc((m * n / 2 - u - 0.5) / spread / math.sqrt(2))
    return sum(_orders(m, n, v) for v in range(min(u, m * n) + 1)) / math.comb(m + n, n)
