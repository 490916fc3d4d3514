"""The packet replication engine: multicast groups and clone sessions."""

from __future__ import annotations

from dataclasses import dataclass

MAX_GROUP = 0xFFFF
"""Largest multicast group id: standard_metadata.mcast_grp has 16 bits."""

MAX_SESSION = 0x7FFF
"""Largest clone session id: BMv2 keeps 15 bits of it."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy: where it leaves, and what `egress_rid` says of it."""

    port: int
    instance: int = 0


@dataclass(frozen=True, slots=True)
class CloneSession:
    """Where clones go. `max_length` is what is left of a clone on the wire, 0 all of it."""

    replicas: tuple[Replica, ...]
    max_length: int = 0


class ReplicationEngine:
    """Groups and sessions by id. One that does not exist makes no copies, as on BMv2.

    Copies are made in the order of instance, then port, whatever order they were written in.
    """

    def __init__(self) -> None:
        self.groups: dict[int, tuple[Replica, ...]] = {}
        self.sessions: dict[int, CloneSession] = {}

    def set_group(self, group: int, replicas: tuple[Replica, ...] | None) -> None:
        """Set the copies of a multicast group; None removes it."""
        if replicas is None:
            self.groups.pop(group, None)
        else:
            self.groups[group] = _ordered(replicas)

    def set_session(self, session: int, config: CloneSession | None) -> None:
        """Set where the clones of a session go; None removes it."""
        if config is None:
            self.sessions.pop(session, None)
        else:
            self.sessions[session] = CloneSession(_ordered(config.replicas), config.max_length)

    def clear(self) -> None:
        """Forget all groups and sessions."""
        self.groups.clear()
        self.sessions.clear()


def _ordered(replicas: tuple[Replica, ...]) -> tuple[Replica, ...]:
    return tuple(sorted(replicas, key=lambda one: (one.instance, one.port)))
