"""The Unix sockets of engines, as something that the NICs' loop can wait for."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Handler", "SocketInUse", "Sockets", "listen"]

Handler = Callable[[bool, bool], None]
"""Called with (readable, writable)."""


class SocketInUse(OSError):
    """Another process listens on the socket's path."""


class Sockets:
    """The engines' sockets, as a wire of the loop: one descriptor that tells of all others."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}

    def fileno(self) -> int:
        """The descriptor that tells of all others."""
        return self._epoll.fileno()

    def watch(self, fd: int, handler: Handler) -> None:
        """Call ``handler`` when ``fd`` can be read."""
        self._handlers[fd] = handler
        self._masks[fd] = select.EPOLLIN
        self._epoll.register(fd, select.EPOLLIN)

    def rewatch(self, fd: int, *, reading: bool, writing: bool = False) -> None:
        """Change what the handler waits for."""
        mask = (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0)
        before = self._masks.get(fd)
        if before == mask or before is None:
            return
        self._masks[fd] = mask
        # A socket that nothing is wanted of is left out: epoll would report its end for ever.
        if not mask:
            self._epoll.unregister(fd)
        elif not before:
            self._epoll.register(fd, mask)
        else:
            self._epoll.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``, which is about to be closed."""
        if self._masks.pop(fd, 0):
            self._epoll.unregister(fd)
        self._handlers.pop(fd, None)

    def receive(self, limit: int = 64) -> list[bytes]:
        """Run the handlers of at most ``limit`` sockets; no frames come from them."""
        gone = select.EPOLLHUP | select.EPOLLERR
        for fd, events in self._epoll.poll(0, limit):
            handler, mask = self._handlers.get(fd), self._masks.get(fd, 0)
            if handler is not None:
                readable = bool(mask & select.EPOLLIN and events & (select.EPOLLIN | gone))
                handler(
                    readable, bool(mask & select.EPOLLOUT and events & (select.EPOLLOUT | gone))
                )
        return []

    def send(self, frame: bytes) -> None:
        """No frames leave through engines' sockets."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the descriptor."""
        self._epoll.close()

    def on_frame(self, frame: bytes, now_us: float) -> None:
        """No frames come from engines' sockets."""
        raise NotImplementedError

    def poll(self, now_us: float) -> list[bytes]:
        """Nothing to send."""
        return []

    def next_wakeup(self, now_us: float) -> float | None:
        """Nothing to wait for but the sockets."""
        return None


def listen(path: Path) -> socket.socket:
    """Listen at ``path`` for this user only; a dead process's socket is replaced.

    Raises:
        SocketInUse: another process listens there. OSError: the path cannot be bound.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise FileExistsError(errno.EEXIST, f"{path} is there and is not a socket")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                else:
                    raise SocketInUse(errno.EADDRINUSE, f"a process listens on {path} already")
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        # All ranks of a host open all their channels at once.
        sock.listen(4096)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if isinstance(error, (SocketInUse, FileExistsError)):
            raise
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from None
    return sock
