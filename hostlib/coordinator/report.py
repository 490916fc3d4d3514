"""What the skeleton knows, for people and scripts."""

from __future__ import annotations

from typing import Any

from ringstep.hostlib.coordinator.cache import KeyState, Place
from ringstep.hostlib.coordinator.group import Group
from ringstep.hostlib.shm_layout import Scope

__all__ = ["group_status"]


def group_status(group: Group, warm_up: int) -> dict[str, Any]:
    """Return a communicator's state.

    Args:
        group: the communicator.
        warm_up: collectives before a key's first decision.
    """
    pending = group.pending
    return {
        "communicator": group.name,
        "ranks": group.n_ranks,
        "nodes": sorted({node for node, _ in group.members}),
        "switches_at": "fences" if group.scope is Scope.FENCED else "collectives",
        "epoch": group.epoch,
        "on_offer": pending.epoch if pending else None,
        "offer": _offer_state(group),
        "obstacle": group.obstacle,
        "apply_ms": group.last_ms,
        "absent_ranks": sorted(group.joiner.absent),
        "late_records": group.joiner.late,
        "keys": [_key_status(group, p, s, warm_up) for p, s in group.cache.items() if s.seen],
    }


def _key_status(group: Group, place: Place, state: KeyState, warm_up: int) -> dict[str, Any]:
    in_force = (group.in_force or {}).get(place)
    return {
        "collective": place[0].name.lower(),
        "min_bytes": 0 if place[1] == 0 else 1 << place[1],
        "seen": state.seen,
        "state": group.state_of(state, warm_up).name.lower(),
        "in_force": None
        if in_force is None
        else {
            "algorithm": in_force.algo.name.lower(),
            "protocol": in_force.proto.name.lower(),
            "channels": in_force.n_channels or None,
            "chunk_bytes": in_force.chunk_bytes or None,
        },
        "note": state.note or None,
    }


def _offer_state(group: Group) -> str | None:
    """Return what an offer waits for, None without one."""
    pending = group.pending
    if pending is None:
        return None
    if not pending.acknowledged >= set(group.members):
        return "not every rank has taken it over yet"
    if group.scope is Scope.FENCED:
        return "waits for the job's next fence"
    return "not every rank has got to its first collective yet"
