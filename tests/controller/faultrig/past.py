"""A store whose every Job_ID and block was used before, so that each hand-out is a reuse.

Job_IDs that were never used come first, and a run does not get through all 16,383 of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from sqlalchemy import insert

from ringstep.controller.database import BLOCKS, JOB_IDS
from ringstep.controller.store import Store
from ringstep.protocol.limits import MAX_BLOCKS, MAX_JOBS

_LONG_AGO_MS = 1_000_000_000_000


def write_past(url: str, switches: Iterable[str], seed: int) -> dict[int, int]:
    """Fill an empty store with a past; return the last generation of every Job_ID.

    Generations are few, so that Job_IDs and blocks often ask for the same one.
    """
    rng = random.Random(f"{seed}:past")
    job_ids = {job_id: rng.choice([1, 2, 254, 255]) for job_id in range(1, MAX_JOBS + 1)}
    order = rng.sample(sorted(job_ids), len(job_ids))
    store = Store(url)
    try:
        with store.database.transaction() as connection:
            connection.execute(
                insert(JOB_IDS),
                [
                    {
                        "job_id": job_id,
                        "generation": job_ids[job_id],
                        "released_unix_ms": _LONG_AGO_MS,
                        "turn": turn,
                    }
                    for turn, job_id in enumerate(order, start=1)
                ],
            )
            connection.execute(
                insert(BLOCKS),
                [
                    {
                        "switch": switch,
                        "block": block,
                        "generation": rng.choice([1, 2, 3, 255]),
                        "turn": block + 1,
                    }
                    for switch in switches
                    for block in range(min(MAX_BLOCKS, 2000))
                ],
            )
    finally:
        store.close()
    return job_ids
