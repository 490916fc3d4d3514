"""Client arbitration of one device: who may write, per role (no gRPC in here).

P4Runtime 1.5 section "Client Arbitration and Controller Replication". Election ids are 128 bit.
The primary of a role is the live stream whose election id equals the highest id that the device
has ever received for that role. When it leaves, nobody is promoted: the others are told NOT_FOUND
and one of them has to ask again with an id at least as high.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field

from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError

DEFAULT_ROLE = ""
MAX_ELECTION_ID = (1 << 128) - 1


@dataclass(frozen=True, slots=True)
class Notification:
    """One MasterArbitrationUpdate to send.

    `election_id` is the highest ever seen for the role (None: there never was one); `code` is OK
    for the primary, ALREADY_EXISTS for a backup of one, NOT_FOUND where the role has no primary.
    """

    stream: Hashable
    role: str
    election_id: int | None
    code: Code


@dataclass(slots=True)
class _Role:
    highest: int | None = None
    streams: dict[Hashable, int | None] = field(default_factory=dict)

    def primary(self) -> Hashable | None:
        if self.highest is None:
            return None
        for stream, election_id in self.streams.items():
            if election_id == self.highest:
                return stream
        return None


class Arbiter:
    """Keeps (role, election id) of every live stream of one device; thread-safe."""

    def __init__(self, device_id: int, max_streams: int = 16) -> None:
        self._device_id = device_id
        self._max_streams = max_streams
        self._roles: dict[str, _Role] = {DEFAULT_ROLE: _Role()}
        self._role_of: dict[Hashable, str] = {}
        self._lock = threading.Lock()

    def update(
        self,
        stream: Hashable,
        device_id: int,
        role: str,
        election_id: int | None,
        *,
        has_role_config: bool = False,
    ) -> list[Notification]:
        """Apply one MasterArbitrationUpdate and return what to send, the primary's last.

        Raises P4RuntimeError where the specification ends the stream: NOT_FOUND (device),
        FAILED_PRECONDITION (device or role changed on a live stream), INVALID_ARGUMENT (id used
        by another live stream, or a role config), RESOURCE_EXHAUSTED (too many streams).
        """
        with self._lock:
            live_role = self._role_of.get(stream)
            self._check_session(live_role, device_id, role)
            if has_role_config:
                raise P4RuntimeError(
                    Code.INVALID_ARGUMENT,
                    f"role {role!r}: no role.config scheme is agreed with this switch; "
                    "leave role.config unset (every role has full pipeline access)",
                )
            state = self._roles.get(role, _Role())
            self._check_election_id(state, stream, role, election_id)
            if live_role is None and len(state.streams) >= self._max_streams:
                raise P4RuntimeError(
                    Code.RESOURCE_EXHAUSTED,
                    f"role {role!r} already has {len(state.streams)} streams, the most allowed",
                )
            was_primary = state.primary() == stream
            self._roles[role] = state
            self._role_of[stream] = role
            state.streams[stream] = election_id
            if election_id is not None and (state.highest is None or election_id >= state.highest):
                state.highest = election_id
                return self._notify_all(role)
            if was_primary:
                return self._notify_all(role)
            return [self._notification(role, stream)]

    def leave(self, stream: Hashable) -> list[Notification]:
        """Forget a stream that ended and return what to send; an unknown one changes nothing."""
        with self._lock:
            role = self._role_of.pop(stream, None)
            if role is None:
                return []
            state = self._roles[role]
            was_primary = state.primary() == stream
            del state.streams[stream]
            return self._notify_all(role) if was_primary else []

    def knows_role(self, role: str) -> bool:
        """Tell whether the role is the default one or was named by some stream."""
        with self._lock:
            return role in self._roles

    def is_primary(self, role: str, election_id: int | None) -> bool:
        """Tell whether a request that carries this role and election id comes from the primary."""
        with self._lock:
            state = self._roles.get(role)
            return (
                state is not None
                and election_id is not None
                and election_id == state.highest
                and state.primary() is not None
            )

    def is_primary_stream(self, stream: Hashable) -> bool:
        """Tell whether this stream is the primary of its role."""
        with self._lock:
            role = self._role_of.get(stream)
            return role is not None and self._roles[role].primary() == stream

    def primaries(self) -> list[Hashable]:
        """Return the primary stream of each role that has one."""
        with self._lock:
            found = (state.primary() for state in self._roles.values())
            return [stream for stream in found if stream is not None]

    def _check_session(self, live_role: str | None, device_id: int, role: str) -> None:
        if device_id != self._device_id:
            live = live_role is not None
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION if live else Code.NOT_FOUND,
                f"device id {device_id} is not served here, this switch is device "
                f"{self._device_id}",
            )
        if live_role is not None and live_role != role:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION,
                f"this stream has role {live_role!r} and cannot become {role!r}; "
                "close it and open a new one",
            )

    @staticmethod
    def _check_election_id(
        state: _Role, stream: Hashable, role: str, election_id: int | None
    ) -> None:
        if election_id is None:
            return
        if any(used == election_id and other != stream for other, used in state.streams.items()):
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT,
                f"election id {election_id} is already used by another live stream of role "
                f"{role!r}; choose another id",
            )

    def _notify_all(self, role: str) -> list[Notification]:
        state = self._roles[role]
        primary = state.primary()
        ordered = sorted(state.streams, key=lambda stream: stream == primary)
        return [self._notification(role, stream) for stream in ordered]

    def _notification(self, role: str, stream: Hashable) -> Notification:
        state = self._roles[role]
        primary = state.primary()
        if primary is None:
            code = Code.NOT_FOUND
        else:
            code = Code.OK if primary == stream else Code.ALREADY_EXISTS
        return Notification(stream, role, state.highest, code)
