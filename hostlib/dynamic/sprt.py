"""From the detector's probabilities to a state: sustained contention, a spike, or neither.

What the states mean here:

- ``SUSTAINED``: contention that lasts has been shown; a new configuration is worth a trial. It
  stays until the opposite has been shown.
- ``SPIKE``: calls are slower now, and it has not been shown that this lasts. Leave things alone.
- ``STEADY``: calls take what they take on a clean network.

The paper uses the names in two ways (equation 2: the low side is a spike and the middle is steady;
algorithm 2: the middle is WAIT), and its rule on the low side calls a clean network a spike.
:func:`paper_name` returns its names.

Three rules:

- ``sequence``: Wald's test, again and again, on the sum of log likelihood ratios, one per call.
  For a detector that was trained to say whether *this call* is contended. What one call can add is
  cut such that fewer than ``least_calls`` cannot decide, however slow they are.
- ``wald``: Wald's bounds on the posterior's log odds less the prior's. For a detector that was
  trained to say whether contention is *sustained*: its posterior has the history in it, and
  increments of its log odds are the ratios of the calls, so that their sum telescopes.
- ``paper``: thresholds 0.95 and 0.05 on the posterior itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

LOGIT_LIMIT: Final = 20.0
"""Log odds are cut here."""
RuleName = Literal["sequence", "wald", "paper"]
RULES: Final[tuple[RuleName, ...]] = ("sequence", "wald", "paper")
PAPER_UPPER: Final = 0.95
PAPER_LOWER: Final = 0.05
PERTURBED: Final = 0.14
"""log2 of the contention ratio from which a call counts as slower: a tenth."""
LARGE: Final = 1.32
"""log2 of the contention ratio that no clean network drifts to: two and a half times as long."""


class State(Enum):
    """What is known of the network; see the module's text."""

    STEADY = "steady"
    SPIKE = "spike"
    SUSTAINED = "sustained"


@dataclass(frozen=True, slots=True)
class TestParams:
    """Wald's test.

    Attributes:
        alpha: chance per test that a clean network is called contended. Tests follow one another,
            so over n calls a false alarm has a chance of up to n * alpha.
        beta: chance that contention is called none, per test; the next test follows at once.
        least_calls: contended calls that it takes at least.
        alpha_large: the same (``wald``) where as many calls as ``least_calls`` in a row took
            :data:`LARGE` longer, as far as no clean network drifts; None: ``alpha``.
        page: a test that leans towards "none" starts anew with every call (Page, 1954), so that
            quiet calls before an onset do not delay it; calls between false alarms are then
            (1 - beta) / alpha in the mean, at least (Lorden, 1971). False: it starts anew when it
            reaches Wald's lower bound.
    """

    __test__ = False  # not a test of pytest's

    alpha: float = 1e-6
    beta: float = 0.01
    least_calls: int = 4
    alpha_large: float | None = None
    page: bool = True

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "alpha_large"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 0.5:
                raise ValueError(f"{name} = {value}: between 0 and 0.5")
        if self.least_calls < 1:
            raise ValueError(f"least_calls = {self.least_calls}: 1 or more")

    @property
    def upper(self) -> float:
        """Wald's A: log((1 - beta) / alpha)."""
        return self._upper(self.alpha)

    @property
    def upper_large(self) -> float:
        """The same of calls that took :data:`LARGE` longer."""
        return self._upper(self.alpha_large or self.alpha)

    def _upper(self, alpha: float) -> float:
        return math.log((1 - self.beta) / alpha)

    @property
    def lower(self) -> float:
        """Wald's B: log(beta / (1 - alpha))."""
        return math.log(self.beta / (1 - self.alpha))

    @property
    def cut(self) -> float:
        """The most one call can add or take."""
        return self.upper / (self.least_calls - 0.5)


DEFAULTS: Final[Mapping[RuleName, TestParams]] = {
    "sequence": TestParams(),
    # Of the posterior's odds, which a network does not bring to a million to one.
    "wald": TestParams(alpha=1e-2, alpha_large=5e-2),
    "paper": TestParams(),
}
"""What a rule uses unless told otherwise."""


class Sprt:
    """One key's test.

    Args:
        rule: see the module's text.
        params: of Wald's test, by default :data:`DEFAULTS`; the paper's rule has none.
        prior: share of positives that the detector was trained on.
        temper: factor on the logits.
    """

    __slots__ = ("_large", "_p", "_prior", "_rule", "_state", "_sum", "_temper")

    def __init__(
        self,
        rule: RuleName = "sequence",
        params: TestParams | None = None,
        prior: float = 0.5,
        temper: float = 1.0,
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"rule = {rule!r}: {', '.join(RULES)}")
        if not 0 < prior < 1:
            raise ValueError(f"prior = {prior}: between 0 and 1")
        self._rule = rule
        self._p = params or DEFAULTS[rule]
        self._prior = math.log(prior / (1 - prior))
        self._temper = temper
        self._sum = 0.0
        self._large = 0
        self._state = State.STEADY

    @property
    def state(self) -> State:
        """As the last update left it."""
        return self._state

    @property
    def evidence(self) -> float:
        """Log likelihood ratio so far: of the test under way, or of all history (``wald``)."""
        return self._sum

    def restart(self) -> None:
        """Forget the evidence, not the state."""
        self._sum, self._large = 0.0, 0

    def update(self, logit: float, log_rho: float) -> State:
        """Take one call.

        Args:
            logit: of the detector's probability; NaN counts as no evidence.
            log_rho: log2 of the call's contention ratio.
        """
        if math.isnan(logit):
            return self._state
        logit = min(max(logit, -LOGIT_LIMIT), LOGIT_LIMIT)
        held = self._state is State.SUSTAINED
        self._large = self._large + 1 if log_rho >= LARGE else 0
        if self._rule == "paper":
            probability = 1 / (1 + math.exp(-logit))
            sustained = probability > PAPER_UPPER or (held and probability >= PAPER_LOWER)
        else:
            llr = self._temper * (logit - self._prior)
            # Leaving is as hard as entering: going back is a reconfiguration too.
            upper = self._p.upper
            lower = -upper if held else self._p.lower
            if self._rule == "wald":
                if not held and self._large >= self._p.least_calls:
                    upper = self._p.upper_large
                self._sum, bound = llr, min(upper, 0.6 * LOGIT_LIMIT)
                sustained = llr >= bound or (held and llr > max(lower, -bound))
            else:
                self._sum += min(max(llr, -self._p.cut), self._p.cut)
                sustained = held
                if self._sum >= upper:
                    sustained, self._sum = True, 0.0
                elif self._sum <= lower:
                    sustained, self._sum = False, 0.0
                elif self._p.page:
                    # Of the two answers, the one that is not in force is tested for.
                    self._sum = min(self._sum, 0.0) if held else max(self._sum, 0.0)
        slow = log_rho >= PERTURBED
        self._state = State.SUSTAINED if sustained else State.SPIKE if slow else State.STEADY
        return self._state


def paper_name(probability: float, algorithm_2: bool = True) -> str:
    """Return what the paper calls a posterior: by algorithm 2 or by equation 2."""
    if probability > PAPER_UPPER:
        return "SUSTAINED"
    if probability < PAPER_LOWER:
        return "SPIKE" if algorithm_2 else "TRANSIENT-SPIKE"
    return "WAIT" if algorithm_2 else "STEADY-STATE"
