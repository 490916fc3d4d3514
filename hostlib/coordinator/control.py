"""The control socket ``JOB.ctl``: one JSON object by line, one answer each.

It lies beside the shared-memory file, with mode 0600, and takes requests of its own user and of
root. Requests are ``{"do": "status"}``, ``{"do": "calls"}`` (:mod:`calls`),
``{"do": "policy", "name": …}``, ``{"do": "bypass", "on": true}`` and ``{"do": "stop"}``; an answer
has ``ok`` and, where that is false, ``error``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ringstep.hostlib.coordinator.loop import Loop

__all__ = ["ControlError", "ControlServer", "ask", "socket_path"]

LINE_MAX: Final = 4096
CLIENTS_MAX: Final = 16
ANSWER_MAX: Final = 64 << 20
_UNIX_PATH_MAX: Final = 107
_BACKLOG: Final = 128

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class ControlError(RuntimeError):
    """The coordinator cannot be reached or refuses; the message says why."""


def socket_path(shm: Path) -> Path:
    """Return the control socket that belongs to a shared-memory file."""
    return shm.with_suffix(".ctl")


class ControlServer:
    """Answers on the control socket.

    Args:
        path: of the socket. What is there is replaced: the caller owns the job's file, so nobody
            can be behind it.
        loop: that waits.
        handle: gets a request and returns the answer; ControlError refuses.

    Raises:
        ControlError: the path cannot be bound.
    """

    def __init__(self, path: Path, loop: Loop, handle: Handler) -> None:
        self.path = path
        self._loop = loop
        self._handle = handle
        self._clients: dict[socket.socket, bytearray] = {}
        self._replies: dict[socket.socket, bytearray] = {}
        if len(os.fsencode(path)) > _UNIX_PATH_MAX:
            raise ControlError(
                f"{path}: longer than the {_UNIX_PATH_MAX} bytes that a socket's path may have; "
                "choose a shorter RINGSTEP_SHM_DIR"
            )
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            before = os.umask(0o177)
            try:
                self._listener.bind(str(path))
            finally:
                os.umask(before)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            self._listener.close()
            raise ControlError(f"{path}: {error.strerror}") from error
        self._listener.setblocking(False)
        loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        client.setblocking(False)
        if not _may_ask(client):
            client.close()
            return
        if len(self._clients) >= CLIENTS_MAX:
            self._drop(next(iter(self._clients)))  # the oldest one; a slow client is its own loss
        try:
            self._loop.watch(client, lambda: self._turn(client))
        except OSError:
            client.close()
            return
        self._clients[client] = bytearray()
        self._replies[client] = bytearray()

    def _drop(self, client: socket.socket) -> None:
        self._loop.forget(client)
        self._clients.pop(client, None)
        self._replies.pop(client, None)
        client.close()

    def _turn(self, client: socket.socket) -> None:
        try:
            if self._replies[client]:
                self._flush(client)
                return
            got = client.recv(LINE_MAX)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)
            return
        if not got:
            self._drop(client)
            return
        buffer = self._clients[client]
        buffer += got
        while b"\n" in buffer:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            self._replies[client] += json.dumps(self._answer(line)).encode() + b"\n"
        if len(buffer) > LINE_MAX:
            self._drop(client)
            return
        with contextlib.suppress(BlockingIOError):
            try:
                self._flush(client)
            except OSError:
                self._drop(client)

    def _flush(self, client: socket.socket) -> None:
        reply = self._replies[client]
        with contextlib.suppress(BlockingIOError):
            while reply:
                del reply[: client.send(reply)]
        self._loop.watch(client, lambda: self._turn(client), read=not reply, write=bool(reply))

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if not isinstance(request, dict) or not isinstance(request.get("do"), str):
                raise ControlError('a request is an object with "do"')
            return {"ok": True, **self._handle(request)}
        except ControlError as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, RecursionError):
            return {"ok": False, "error": "not a JSON object"}

    def close(self) -> None:
        """Stop answering and remove the socket."""
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                self._flush(client)
            self._drop(client)
        self._loop.forget(self._listener)
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def _may_ask(client: socket.socket) -> bool:
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", raw)
    return uid in (0, os.geteuid())


def ask(path: Path, request: dict[str, Any], *, timeout_s: float = 5.0) -> dict[str, Any]:
    """Ask the coordinator and return its answer.

    Raises:
        ControlError: there is none, it does not answer, or it refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            client.connect(str(path))
        except FileNotFoundError as error:
            raise ControlError(
                f"{path}: no coordinator; `ringstep tuner coordinator` or `ringstep run` starts it"
            ) from error
        except ConnectionRefusedError as error:
            raise ControlError(
                f"{path}: left behind by a coordinator that is gone; start it again"
            ) from error
        except OSError as error:
            raise ControlError(f"{path}: {error.strerror or error}") from error
        try:
            client.sendall(json.dumps(request).encode() + b"\n")
            found = bytearray()
            while not found.endswith(b"\n"):
                got = client.recv(1 << 16)
                if not got or len(found) > ANSWER_MAX:
                    raise ControlError(f"{path}: the coordinator hung up")
                found += got
        except TimeoutError as error:
            raise ControlError(f"{path}: no answer within {timeout_s:g} s") from error
        except OSError as error:
            raise ControlError(f"{path}: {error.strerror or error}") from error
    try:
        answer = json.loads(found)
    except ValueError as error:
        raise ControlError(f"{path}: what answers is no coordinator") from error
    if not isinstance(answer, dict) or answer.get("ok") is not True:
        why = answer.get("error", "refused") if isinstance(answer, dict) else "no object"
        raise ControlError(str(why))
    return answer
