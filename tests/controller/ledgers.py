"""Ledgers and changes for tests."""

from __future__ import annotations

from typing import Any

from ringstep.controller.ledger import Change, Ledger, Quotas, Snapshot, StoredJob


class Clock:
    """A monotonic and a wall clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_ms = 1_700_000_000_000

    def monotonic(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return self.wall_ms

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_ms += round(seconds * 1000)


def ledger(
    snapshot: Snapshot | None = None,
    *,
    clock: Clock | None = None,
    quarantine_s: float = 0.0,
    quotas: Quotas | None = None,
) -> Ledger:
    clock = clock or Clock()
    return Ledger(
        snapshot or Snapshot(),
        quarantine_s=quarantine_s,
        quotas=quotas or Quotas(),
        monotonic=clock.monotonic,
        unix_ms=clock.unix_ms,
    )


def register(book: Ledger, name: str, **changes: Any) -> tuple[StoredJob, Change]:
    arguments: dict[str, Any] = {
        "name": name,
        "tenant": "",
        "owner": "ann",
        "request_id": "",
        "spec": b"\x00spec",
        "params": b"\xffparams",
        "paths": "[]",
        "lease_s": 0,
        "blocks": {"tor1": [1, 11]},
    }
    job, change = book.register(**(arguments | changes))
    assert change is not None
    return job, change
