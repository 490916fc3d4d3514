"""NCCL's own choice, always."""

from __future__ import annotations

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.sample import Sample


class LeaveNccl:
    """Never decides anything."""

    def process(self, key: Key) -> Config | None:
        """NCCL decides."""

    def observe(self, sample: Sample) -> None:
        """Nothing to learn."""
