"""Who answers calls now: the fleet of a controller that leads, or nobody here."""

from __future__ import annotations

from ringstep.controller.fleet import Fleet
from ringstep.controller.leader import Term
from ringstep.controller.problems import NotLeaderError


class Stage:
    """Holds the fleet while this controller leads."""

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._term: Term | None = None
        self._leader = ""

    def enter(self, fleet: Fleet, term: Term | None = None) -> None:
        """Answer calls from this fleet, as long as ``term`` is certain (None: until told)."""
        self._fleet, self._term = fleet, term

    def leave(self, leader: str = "") -> None:
        """Answer no calls; ``leader`` is who does, where that is known."""
        self._fleet, self._term, self._leader = None, None, leader

    @property
    def leads(self) -> bool:
        """Whether this controller leads."""
        return self._fleet is not None and (self._term is None or self._term.is_certain)

    @property
    def fleet(self) -> Fleet:
        """The fleet.

        Raises:
            NotLeaderError: this controller does not lead. One that was stopped for a while, and
                wakes up, does not before it has looked: another may have taken over.
        """
        if self._fleet is None or not self.leads:
            raise NotLeaderError(self._leader)
        return self._fleet

    async def deposed(self) -> NotLeaderError | None:
        """Look whether this controller still leads; return what to answer where it does not.

        What it knows may be old from the moment on at which the database gave its lock away until
        it has noticed. Changes fail then by themselves; a refusal that rests on what it knows, such
        as that there is no such job, needs this look.
        """
        fleet, term = self._fleet, self._term
        if fleet is not None and (term is None or await term.holds()) and self._fleet is fleet:
            return None
        return NotLeaderError(self._leader)
