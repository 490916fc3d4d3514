"""One configuration per key, whatever happens: what a sweep found to be best."""

from __future__ import annotations

from collections.abc import Mapping

from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.dynamic.sample import Sample


class Fixed:
    """A table; keys that are not in it are left to NCCL."""

    def __init__(self, table: Mapping[Key, Config]) -> None:
        self._table = dict(table)

    def process(self, key: Key) -> Config | None:
        """Look it up."""
        return self._table.get(key)

    def observe(self, sample: Sample) -> None:
        """Nothing to learn."""
