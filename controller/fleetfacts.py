"""What metrics ask of the fleet, whether or not this controller leads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ringstep.controller.metrics import LinkFacts, SwitchFacts
from ringstep.controller.stage import Stage


class StageFacts:
    """The facts of the fleet on a stage; empty while this controller does not lead."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def jobs_by_tenant(self) -> Mapping[str, int]:
        """Return live jobs per tenant."""
        return self._stage.fleet.ledger.live_per_tenant if self._stage.leads else {}

    def leased_jobs(self) -> int:
        """Return how many live jobs have a lease."""
        return self._stage.fleet.roster.leased if self._stage.leads else 0

    def free_ids(self) -> int:
        """Return how many Job_IDs may be handed out now."""
        return self._stage.fleet.ledger.free_ids if self._stage.leads else 0

    def quarantined_ids(self) -> int:
        """Return how many Job_IDs rest."""
        return self._stage.fleet.ledger.quarantined_ids if self._stage.leads else 0

    def switches(self) -> Iterable[SwitchFacts]:
        """Return the kept switches."""
        if not self._stage.leads:
            return
        for view in self._stage.fleet.switchboard:
            status = view.status
            if view.address:
                yield SwitchFacts(
                    view.name,
                    status.phase.value.replace(" ", "_"),
                    status.desired_entries,
                    status.pending,
                    status.drift_missing,
                    status.drift_changed,
                    status.drift_foreign,
                    status.drifts,
                    status.foreign_kept,
                    status.foreign_removed,
                    status.refused_count,
                    status.updates_written,
                    status.sessions,
                    status.audited_unix_ms / 1000 if status.audited_unix_ms else None,
                )

    def links(self) -> Iterable[LinkFacts]:
        """Return what every direction of a link between switches carries by plan."""
        return self._stage.fleet.link_facts() if self._stage.leads else ()

    def leading(self) -> bool:
        """Say whether this controller leads."""
        return self._stage.leads

    def epoch(self) -> int:
        """Return the term in which this controller leads; 0 where it does not."""
        return self._stage.fleet.epoch if self._stage.leads else 0

    def store_queue(self) -> int:
        """Return how many changes wait to be stored."""
        return self._stage.fleet.store_queue if self._stage.leads else 0
