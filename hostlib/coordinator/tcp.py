"""Skeleton and stubs over TCP: authenticated by the job's token, on the coordinator's one thread.

The skeleton greets with a nonce; the stub answers with its own nonce, its name and the proof that
it knows the token; the skeleton proves the same. Frames of the session are sealed
(:mod:`wire`). Nothing is encrypted: no secret but the token exists, and that is never sent. A peer
that is silent, slow, or sends what it should not is hung up on; a stub connects again.
"""

from __future__ import annotations

import errno
import logging
import secrets
import socket
import time
from collections import deque
from typing import Final

from ringstep.hostlib.coordinator import wire
from ringstep.hostlib.coordinator.channel import Channel, need_token, parse_address
from ringstep.hostlib.coordinator.links import Down, LinkError, Up
from ringstep.hostlib.coordinator.loop import Loop
from ringstep.hostlib.coordinator.messages import (
    Abandon,
    Command,
    Event,
    NodeGone,
    Offer,
    Records,
)
from ringstep.hostlib.coordinator.wire import Refused, WireError

__all__ = ["TcpLinks", "TcpUplink", "parse_address"]

_LOG: Final = logging.getLogger("ringstep.coordinator")
MAGIC: Final = b"RNGSTEP" + bytes([wire.VERSION])
NONCE: Final = 32
MAC: Final = 32
NAME_MAX: Final = 255
HANDSHAKE_S: Final = 5.0
PING_S: Final = 1.0
SILENCE_S: Final = 5.0
WAITING_MAX: Final = 32
"""Connections that have not proven who they are."""
RETRY_S: Final = (0.1, 5.0)
"""First and longest pause between attempts to connect."""


class TcpLinks:
    """The skeleton's side.

    Args:
        address: to listen at, ``HOST:PORT``; port 0 takes a free one.
        token: of the job.
        own: name of the skeleton's node, which no stub may have.
        loop: that waits.

    Raises:
        LinkError: no token, no such address, or it is taken.
    """

    poll_s: float | None = PING_S / 2

    def __init__(self, address: str, token: int, own: str, loop: Loop) -> None:
        need_token(token)
        self._token = token
        self._own = own
        self._loop = loop
        self._waiting: dict[Channel, bytes] = {}
        self._nodes: dict[str, Channel] = {}
        self._found: deque[tuple[str, Event]] = deque()
        host, port = parse_address(address)
        try:
            family, kind, proto, _, where = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._listener = socket.socket(family, kind, proto)
        except OSError as error:
            raise LinkError(f"{address}: {error.strerror}") from error
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(where)
            self._listener.listen(WAITING_MAX)
        except OSError as error:
            self._listener.close()
            raise LinkError(f"{address}: {error.strerror}") from error
        self._listener.setblocking(False)
        bound = self._listener.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        loop.watch(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if len(self._waiting) >= WAITING_MAX:
            sock.close()
            return
        nonce = secrets.token_bytes(NONCE)
        try:
            channel = Channel(sock, self._loop, lambda: self._greet(channel))
        except OSError as error:
            _LOG.warning("a connection was refused: %s", error.strerror)
            sock.close()
            return
        self._waiting[channel] = nonce
        try:
            channel.send(MAGIC + nonce)
        except OSError:
            self._drop_stranger(channel)

    def _drop_stranger(self, channel: Channel) -> None:
        self._waiting.pop(channel, None)
        channel.close()

    def _greet(self, channel: Channel) -> None:
        try:
            channel.receive()
            answer = channel.reader.next()
            if answer is None:
                return
            name, nonce = self._proven(answer, self._waiting[channel])
        except (OSError, WireError) as error:
            _LOG.info("a connection was refused: %s", error)
            self._drop_stranger(channel)
            return
        greeting = self._waiting.pop(channel)
        try:
            channel.send(hello_answer(self._token, nonce, greeting))
            channel.start_session(
                wire.session_key(self._token, greeting, nonce), b"to skeleton", b"to stub"
            )
            taken = name == self._own or name in self._nodes
            if taken:
                why = f"a node named {name} is there already: give each one its own --node"
                channel.send(wire.encode(Refused(why)))
                _LOG.warning("a stub was refused: %s", why)
                channel.close()
                return
        except OSError:
            channel.close()
            return
        self._nodes[name] = channel
        self._loop.watch(channel.sock, lambda: self._hear(name, channel))
        channel.turn = lambda: self._hear(name, channel)
        _LOG.info("node %s is linked", name)
        self._hear(name, channel)

    def _proven(self, answer: bytes, greeting: bytes) -> tuple[str, bytes]:
        rest = answer[len(MAGIC) :]
        if not answer.startswith(MAGIC) or len(rest) < NONCE + MAC + 1:
            raise WireError("no stub of this version")
        nonce, mac, raw = rest[:NONCE], rest[NONCE : NONCE + MAC], rest[NONCE + MAC :]
        expected = wire.hello_mac(self._token, b"stub", greeting, nonce, raw)
        if not secrets.compare_digest(mac, expected):
            raise WireError("it does not know the job's token")
        try:
            return raw.decode(), nonce
        except UnicodeDecodeError as error:
            raise WireError("its name is no text") from error

    def _hear(self, name: str, channel: Channel) -> None:
        assert channel.inward is not None
        try:
            channel.flush()
            channel.receive()
            while (content := channel.reader.next()) is not None:
                message = wire.decode(channel.inward.open(content))
                if isinstance(message, Refused):  # its way to say goodbye
                    self._lose(name, message.reason, expected=True)
                    return
                if isinstance(message, Offer | Abandon):
                    raise WireError("a stub told what only a skeleton tells")
                if message is not None:
                    self._found.append((name, message))
        except OSError as error:
            self._lose(name, error.strerror or str(error))
        except WireError as error:
            self._lose(name, str(error))

    def _lose(self, name: str, reason: str, *, expected: bool = False) -> None:
        channel = self._nodes.pop(name, None)
        if channel is None:
            return
        channel.close()
        if expected:
            _LOG.info("node %s: %s; what is in force stays", name, reason)
        else:
            _LOG.warning("link to node %s lost: %s; what is in force stays", name, reason)
        self._found.append((name, NodeGone(reason)))

    def poll(self) -> list[tuple[str, Event]]:
        """Return what nodes told, and their coming and going."""
        now = time.monotonic()
        for channel in [c for c in self._waiting if now - c.since > HANDSHAKE_S]:
            self._drop_stranger(channel)
        for name, channel in list(self._nodes.items()):
            if now - channel.heard > SILENCE_S:
                self._lose(name, f"nothing heard for {SILENCE_S:g} s")
            elif now - channel.spoke > PING_S:
                self._send(name, channel, wire.encode(None))
        found = list(self._found)
        self._found.clear()
        return found

    def send(self, node: str, command: Command) -> None:
        """Pass a command to a node; lost with the link."""
        channel = self._nodes.get(node)
        if channel is not None:
            self._send(node, channel, wire.encode(command))

    def _send(self, name: str, channel: Channel, message: bytes) -> None:
        try:
            channel.send(message)
        except OSError as error:
            self._lose(name, error.strerror or str(error))

    def close(self) -> None:
        """Hang up on everybody."""
        self._loop.forget(self._listener)
        self._listener.close()
        for channel in [*self._waiting, *self._nodes.values()]:
            channel.close()
        self._waiting.clear()
        self._nodes.clear()


def hello_answer(token: int, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the skeleton's proof."""
    return wire.hello_mac(token, b"skeleton", client_nonce, server_nonce)


class TcpUplink:
    """A stub's side; connects again and again.

    Args:
        address: of the skeleton, ``HOST:PORT``.
        token: of the job.
        node: this node's name.
        loop: that waits.

    Raises:
        LinkError: no token, or no address.
    """

    def __init__(self, address: str, token: int, node: str, loop: Loop) -> None:
        need_token(token)
        self._where = parse_address(address)
        self.address = address
        self._token = token
        self._name = node.encode()
        if not 1 <= len(self._name) <= NAME_MAX:
            raise LinkError(f"node {node!r}: 1 to {NAME_MAX} bytes")
        self._loop = loop
        self._found: deque[Command | Up | Down] = deque()
        self._channel: Channel | None = None
        self._nonce = b""
        self._greeting = b""
        self._connected = False
        self._pause_s = RETRY_S[0]
        self._next_try = 0.0
        self._told = ""

    @property
    def poll_s(self) -> float | None:
        """How soon something is to be done again."""
        if self._channel is not None:
            return PING_S / 2
        return max(self._next_try - time.monotonic(), 0.0)

    def poll(self) -> list[Command | Up | Down]:
        """Return what the skeleton wants, and the link's coming and going."""
        now = time.monotonic()
        channel = self._channel
        if channel is None:
            if now >= self._next_try:
                self._connect()
        elif channel.inward is None and now - channel.since > HANDSHAKE_S:
            self._lose("no answer")
        elif channel.inward is not None and now - channel.heard > SILENCE_S:
            self._lose(f"nothing heard for {SILENCE_S:g} s")
        elif channel.inward is not None and now - channel.spoke > PING_S:
            self._send(wire.encode(None))
        found = list(self._found)
        self._found.clear()
        return found

    def _connect(self) -> None:
        self._next_try = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, RETRY_S[1])
        try:
            family, kind, proto, _, where = socket.getaddrinfo(
                *self._where, type=socket.SOCK_STREAM
            )[0]
            sock = socket.socket(family, kind, proto)
        except OSError as error:
            self._say(error.strerror or str(error))
            return
        sock.setblocking(False)
        code = sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            self._say(errno.errorcode.get(code, str(code)))
            return
        self._connected = False
        try:
            self._channel = Channel(sock, self._loop, self._turn)
        except OSError as error:
            sock.close()
            self._say(error.strerror or str(error))
            return
        self._loop.watch(sock, self._turn, write=True)

    def _say(self, why: str) -> None:
        """Say once why there is no link."""
        if why != self._told:
            self._told = why
            _LOG.warning("no link to the skeleton %s: %s; trying on", self.address, why)

    def _turn(self) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            if not self._connected:
                code = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, errno.errorcode.get(code, str(code)))
                self._connected = True
                self._loop.watch(channel.sock, self._turn)
            channel.flush()
            channel.receive()
            while self._channel is channel and (content := channel.reader.next()) is not None:
                self._take(channel, content)
        except (OSError, WireError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            if channel.inward is None and self._nonce:
                reason = f"{reason} (is RINGSTEP_SHM_TOKEN the same on both?)"
            self._lose(str(reason))

    def _take(self, channel: Channel, content: bytes) -> None:
        if channel.inward is not None:
            message = wire.decode(channel.inward.open(content))
            if isinstance(message, Refused):
                raise ConnectionRefusedError(errno.ECONNREFUSED, message.reason)
            self._pause_s = RETRY_S[0]
            if isinstance(message, Offer | Abandon):
                self._found.append(message)
            elif message is not None:
                raise WireError("a skeleton told what only a stub tells")
            return
        if not self._nonce:
            if not content.startswith(MAGIC) or len(content) != len(MAGIC) + NONCE:
                raise WireError("no skeleton of this version listens there")
            self._greeting = content[len(MAGIC) :]
            self._nonce = secrets.token_bytes(NONCE)
            mac = wire.hello_mac(self._token, b"stub", self._greeting, self._nonce, self._name)
            channel.send(MAGIC + self._nonce + mac + self._name)
            return
        expected = hello_answer(self._token, self._nonce, self._greeting)
        if not secrets.compare_digest(content, expected):
            raise WireError("the skeleton does not know the job's token")
        key = wire.session_key(self._token, self._greeting, self._nonce)
        channel.start_session(key, b"to stub", b"to skeleton")
        self._told = ""
        self._found.append(Up())

    def _lose(self, reason: str) -> None:
        channel, self._channel = self._channel, None
        if channel is None:
            return
        linked = channel.inward is not None
        channel.close()
        self._nonce = self._greeting = b""
        self._next_try = time.monotonic() + self._pause_s
        if linked:
            self._found.append(Down(reason))
        else:
            self._say(reason)

    def send(self, event: Event) -> None:
        """Tell the skeleton; lost without a link."""
        messages: list[Event] = list(wire.split(event)) if isinstance(event, Records) else [event]
        for message in messages:
            self._send(wire.encode(message))

    def _send(self, message: bytes) -> None:
        channel = self._channel
        if channel is None or channel.outward is None:
            return
        try:
            channel.send(message)
        except OSError as error:
            self._lose(error.strerror or str(error))

    def close(self) -> None:
        """Say goodbye and hang up."""
        self._send(wire.encode(Refused("the stub has ended")))
        if self._channel is not None:
            self._channel.close()
            self._channel = None
