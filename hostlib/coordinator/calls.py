"""What the newest collectives of each kind took: from it a job's own run calibrates a cluster.

Kinds differ in communicator, collective and size in bytes. As a file, and as the answer of the
control socket::

    {"format": "ringstep-calls-1", "kinds": [{"communicator": …, "collective": "all_reduce",
     "bytes": …, "ranks": …, "nodes": …, "seen": …, "calls": [
      {"start_ns": …, "us": …, "decided": false, "ran": ["ring", "simple", 4], "missing": []}]}]}

``us`` is of the slowest rank, 0 where none measured it; ``missing`` are ranks that did not tell;
``seen`` counts those calls too that are no longer kept. ``start_ns`` is of the node that told
first: with several nodes it is not one clock.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ringstep.hostlib.coordinator.join import Joined
from ringstep.hostlib.shm_layout import Collective

__all__ = ["CALLS_FORMAT", "CallLog"]

CALLS_FORMAT: Final = "ringstep-calls-1"
KEPT: Final = 256
"""Calls of a kind."""
KINDS: Final = 128
"""Kinds; the one that was quiet for longest goes."""

_Call = tuple[int, int, bool, tuple[str | None, str | None, int], tuple[int, ...]]


@dataclass(slots=True)
class _Kind:
    n_ranks: int
    n_nodes: int
    seen: int = 0
    calls: deque[_Call] = field(default_factory=lambda: deque(maxlen=KEPT))


class CallLog:
    """Keeps the newest calls of each kind, in bounded memory."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[str, Collective, int], _Kind] = OrderedDict()

    def add(self, comm: str, n_ranks: int, n_nodes: int, one: Joined) -> None:
        """Take in a collective over the ranks that told of it."""
        place = (comm, one.func, one.bytes)
        kind = self._kinds.get(place)
        if kind is None:
            kind = self._kinds[place] = _Kind(n_ranks, n_nodes)
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(place)
        ran = (
            None if one.algo is None else one.algo.name.lower(),
            None if one.proto is None else one.proto.name.lower(),
            one.n_channels,
        )
        longest = max(one.duration_ns.values(), default=0)
        kind.seen += 1
        kind.calls.append((one.start_ns, longest, one.decided, ran, tuple(sorted(one.missing))))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data; see the module's text."""
        return {"format": CALLS_FORMAT, "kinds": list(self._plain())}

    def _plain(self) -> Iterator[dict[str, Any]]:
        for (comm, collective, n_bytes), kind in self._kinds.items():
            yield {
                "communicator": comm,
                "collective": collective.name.lower(),
                "bytes": n_bytes,
                "ranks": kind.n_ranks,
                "nodes": kind.n_nodes,
                "seen": kind.seen,
                "calls": [
                    {
                        "start_ns": start, "us": longest / 1e3, "decided": decided,
                        "ran": list(ran), "missing": list(missing),
                    }
                    for start, longest, decided, ran, missing in kind.calls
                ],
            }  # fmt: skip

    def save(self, path: Path) -> None:
        """Write it; the file appears whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        part = path.with_name(path.name + ".part")
        try:
            part.write_text(json.dumps(self.to_dict()) + "\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
