"""One thread waits for everything: sockets by callback, other threads by a wake-up, ticks."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["HasFileno", "Loop"]

FD_MAX: Final = 1024
"""What select(2) can wait for: FD_SETSIZE."""
_DRAIN: Final = 4096


class HasFileno(Protocol):
    """Anything that can be waited for."""

    def fileno(self) -> int:
        """Return its descriptor."""
        ...


class Loop:
    """Waits; select(2) because its time-out is in microseconds, epoll's in milliseconds."""

    def __init__(self) -> None:
        self._selector = selectors.SelectSelector()
        self._awake, self._waker = socket.socketpair()
        self._awake.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._awake, selectors.EVENT_READ, self._drain)

    @property
    def waker(self) -> socket.socket:
        """For signal.set_wakeup_fd."""
        return self._waker

    def wake(self) -> None:
        """End the wait, from any thread."""
        with contextlib.suppress(OSError):
            self._waker.send(b"w")

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            self._awake.recv(_DRAIN)

    def watch(
        self, what: HasFileno, call: Callable[[], None], *, read: bool = True, write: bool = False
    ) -> None:
        """Call when it is readable or writable; replaces what was wanted for it before.

        Raises:
            OSError: its descriptor is beyond what select(2) can wait for.
        """
        events = (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)
        self.forget(what)
        if what.fileno() >= FD_MAX:
            raise OSError(errno.EMFILE, f"more than {FD_MAX} descriptors are open")
        if events:
            self._selector.register(what, events, call)

    def forget(self, what: HasFileno) -> None:
        """Watch it no more."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(what)

    def wait(self, timeout_s: float) -> None:
        """Wait and call what is due."""
        for key, _ in self._selector.select(max(timeout_s, 0.0)):
            # Not forgotten by a call before it, nor its descriptor somebody else's by now.
            if self._selector.get_map().get(key.fd) is key:
                call: Callable[[], None] = key.data
                call()

    def close(self) -> None:
        """Give everything back."""
        self._selector.close()
        self._awake.close()
        self._waker.close()
