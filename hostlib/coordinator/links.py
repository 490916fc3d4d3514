"""What the coordinator's process needs of a transport between nodes.

The skeleton has :class:`Links` to all stubs, a stub has one :class:`Uplink` to the skeleton. A link
that is lost is told once; what is in force stays as it is.
"""

from __future__ import annotations

from typing import Protocol

from ringstep.hostlib.coordinator.messages import Command, Event

__all__ = ["Down", "LinkError", "Links", "Up", "Uplink"]


class LinkError(RuntimeError):
    """A transport that cannot be set up; the message says what would be right."""


class Up:
    """The link to the skeleton is there: everything is to be told anew."""


class Down:
    """The link to the skeleton is lost."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Links(Protocol):
    """The skeleton's side."""

    address: str
    """Where stubs find it, for people."""

    def poll(self) -> list[tuple[str, Event]]:
        """Return what nodes told, and their coming and going."""
        ...

    def send(self, node: str, command: Command) -> None:
        """Pass a command to a node; lost with the link."""
        ...

    @property
    def poll_s(self) -> float | None:
        """How often :meth:`poll` must be called; None where the loop tells when."""
        ...

    def close(self) -> None:
        """Tell the stubs and hang up."""
        ...


class Uplink(Protocol):
    """A stub's side."""

    address: str

    def poll(self) -> list[Command | Up | Down]:
        """Return what the skeleton wants, and the link's coming and going."""
        ...

    def send(self, event: Event) -> None:
        """Tell the skeleton; lost without a link."""
        ...

    @property
    def poll_s(self) -> float | None:
        """How often :meth:`poll` must be called; None where the loop tells when."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...
