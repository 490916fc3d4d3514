"""One connection of a pair of ranks: an engine's socket on one side, queue pairs on the other.

A connection has a queue pair for control and one (``port_per_step``) or K (``qp_pool``) for data.
The control queue pair carries what belongs to no step: untagged messages, and WRITEs of zero
bytes whose address says what they mean (``messages.Signal``). So nothing but the steps themselves
moves the PSNs of the data queue pairs, and a switch sees the same packets of every sender.

The receiver keeps one ring, which the sender fills: the WRITE that starts at byte p of the stream
of all messages goes to address p mod ring, whichever queue pair carries it, and the receiver hands
on in the order of addresses. Behind the ring lies room for one WRITE, so none is broken at its end.
The sender never has more than a ring on its way or waiting: it stops reading from its engine
until the receiver says (``CREDIT``) how much its own engine has taken.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from ringstep.hostlib.bridge.messages import (
    CONNECT,
    CONNECTED,
    KIND_CONNECT,
    KIND_OPEN,
    MAGIC,
    MAX_MESSAGE,
    MESSAGE,
    OPEN,
    OPENED,
    UNTAGGED,
    Endpoint,
    Signal,
)
from ringstep.hostlib.rnic import Arrival, Completion, QpStateError, QueuePair, Status

if TYPE_CHECKING:
    from ringstep.hostlib.bridge.service import Bridge

__all__ = ["Connection"]

_READ_BUDGET: Final = 1 << 20
"""Bytes taken from one engine before the others, and the wire, have their turn."""
_GATHER: Final = 32
"""Buffers written to an engine with one system call."""
_MASK32: Final = 0xFFFFFFFF

_FAILURES: Final = {
    Status.RETRY_EXCEEDED: "does not answer",
    Status.REMOTE_ACCESS_ERROR: "refuses the memory: was its bridge started anew?",
}


class Connection:
    """See the module. Everything happens in the thread of the bridge's loop."""

    def __init__(self, bridge: Bridge, sock: socket.socket) -> None:
        self._bridge = bridge
        self._sock: socket.socket | None = sock
        self._name = "a connection"
        self._qps: list[QueuePair] = []
        self._own: Endpoint | None = None
        self._peer: Endpoint | None = None
        self._peer_up = False
        self._failed = False
        self._said_end = False
        # From the engine: what is being read, and what to do once it is whole.
        self._buffer = bytearray()
        self._got = 0
        self._action: Callable[[bytearray], None] = self._on_open
        self._paused = False
        # The message that is being sent, and the stream: bytes posted, bytes that came out.
        self._step = UNTAGGED
        self._length = self._rest_tx = 0
        self._sent = self._acked = 0
        # From the peer: WRITEs ahead of their turn by address, lengths of long messages.
        self._ring = memoryview(b"")
        self._early: dict[int, Arrival] = {}
        self._lengths: dict[int, int] = {}
        self._rest_rx = 0
        self._received = self._consumed = self._credited = 0
        self._end: int | None = None
        # To the engine: bytes, and how many of them are of the ring.
        self._out: deque[tuple[memoryview, int]] = deque()
        self._deaf = False
        self._expect(OPEN.size, self._on_open)
        bridge.watch(sock, self._on_events)

    # -- from the engine ------------------------------------------------------------------------

    def _expect(self, size: int, action: Callable[[bytearray], None]) -> None:
        self._buffer = bytearray(size)
        self._got = 0
        self._action = action

    @property
    def _reading(self) -> bool:
        return not (self._paused or self._failed or self._end is not None)

    def _on_events(self, readable: bool, writable: bool) -> None:
        if writable:
            self._flush()
        if readable:
            self._read()

    def _read(self) -> None:
        budget = _READ_BUDGET
        while self._sock is not None and budget > 0 and self._reading:
            try:
                count = self._sock.recv_into(memoryview(self._buffer)[self._got :])
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if not count:
                # What it sent is still delivered, then the peer is told.
                self._close()
                return
            self._got += count
            budget -= count
            if self._got == len(self._buffer):
                self._action(self._buffer)

    def _on_open(self, data: bytearray) -> None:
        magic, kind, comm_id, rank, peer, channel, _ = OPEN.unpack(data)
        if magic != MAGIC or kind != KIND_OPEN:
            self._refuse(OPENED, errno.EPROTO, "its engine did not begin with rb_open")
            return
        self._name = f"communicator {comm_id:016x} rank {rank} to {peer} channel {channel}"
        try:
            self._own = self._bridge.reserve(self)
        except OSError as error:
            self._refuse(OPENED, error.errno or errno.EIO, str(error))
            return
        self._reply(OPENED.pack(MAGIC, 0, self._own.pack()))
        self._expect(CONNECT.size, self._on_connect)

    def _on_connect(self, data: bytearray) -> None:
        assert self._own is not None
        magic, kind, blob = CONNECT.unpack(data)
        if magic != MAGIC or kind != KIND_CONNECT:
            self._refuse(CONNECTED, errno.EPROTO, "its engine sent no rb_connect after rb_open")
            return
        try:
            peer = Endpoint.unpack(blob)
            self._own.check_peer(peer)
            self._qps, buffer = self._bridge.connect(self._own, peer)
        except ValueError as error:
            self._refuse(CONNECTED, errno.EINVAL, str(error))
            return
        self._peer = peer
        self._ring = memoryview(buffer)
        self._reply(CONNECTED.pack(MAGIC, 0))
        self._signal(Signal.HELLO)
        self._expect(MESSAGE.size, self._on_message)

    def _refuse(self, reply: struct.Struct, status: int, why: str) -> None:
        self._bridge.log(f"{self._name} refused: {why}")
        self._bridge.counts["refused"] += 1
        self._reply(reply.pack(*(MAGIC, status, b"")[: 3 if reply is OPENED else 2]))
        self._close()

    def _reply(self, data: bytes) -> None:
        self._out.append((memoryview(data), 0))
        self._flush()

    def _on_message(self, data: bytearray) -> None:
        length, step = MESSAGE.unpack(data)
        if not 1 <= length <= MAX_MESSAGE:
            self._break(f"its engine sent a message of {length} bytes, not 1 to {MAX_MESSAGE}")
            return
        self._step = step
        self._length = self._rest_tx = length
        self._next_piece()

    def _next_piece(self) -> None:
        """Read the next WRITE's bytes, or wait until the receiver has room for them."""
        assert self._peer is not None
        size = min(self._rest_tx, 1 << self._peer.piece_log2)
        room = (1 << self._peer.ring_log2) - (self._sent - self._acked)
        self._paused = not self._peer_up or size > room
        if not self._paused:
            self._expect(size, self._on_piece)
        self._rewatch()

    def _on_piece(self, data: bytearray) -> None:
        peer, bridge = self._peer, self._bridge
        assert peer is not None
        offset = self._sent & (1 << peer.ring_log2) - 1
        rkey = peer.rkey
        if self._length > 1 << peer.piece_log2:
            rkey += 1
            if self._rest_tx == self._length:
                self._signal(Signal.LONG, self._length, offset)
        qp, sport = self._qps[0], None
        if self._step != UNTAGGED:
            place = bridge.tagger.place(bridge.job_tag, self._step)
            qp, sport = self._qps[1 + place.qp_index], place.sport
        try:
            qp.post_write(
                bytes(data), sport=sport, raddr=offset, rkey=rkey, imm=self._step, signaled=False,
                now_us=bridge.now_us,
            )  # fmt: skip
        except QpStateError:
            # The completion that says so is on its way.
            self._paused = True
            return
        self._sent += len(data)
        self._rest_tx -= len(data)
        if self._rest_tx:
            self._next_piece()
            return
        bridge.counts["untagged_sent" if self._step == UNTAGGED else "messages_sent"] += 1
        self._expect(MESSAGE.size, self._on_message)

    # -- from the peer --------------------------------------------------------------------------

    def on_arrival(self, arrival: Arrival) -> None:
        """Take a WRITE that arrived on one of the queue pairs."""
        own = self._own
        if own is None or self._failed:
            return
        if arrival.imm is None:
            self._break("its peer sent a WRITE without immediate: is it a bridge?")
            return
        self._peer_is_up()
        if not arrival.nbytes:
            self._on_signal(arrival.raddr >> 32, arrival.raddr & _MASK32, arrival.imm)
        elif arrival.nbytes > 1 << own.piece_log2 or arrival.raddr >> own.ring_log2:
            self._break(f"its peer wrote {arrival.nbytes} bytes at {arrival.raddr:#x}")
        else:
            self._early[arrival.raddr] = arrival
            self._hand_on()

    def _on_signal(self, kind: int, low: int, imm: int) -> None:
        if kind == Signal.CREDIT:
            gained = (imm - self._acked) & _MASK32
            if gained > self._sent - self._acked:
                self._break("its peer's engine took more than was sent")
                return
            self._acked += gained
            if self._paused and gained:
                self._next_piece()
        elif kind == Signal.LONG:
            self._lengths[low] = imm
            self._hand_on()
        elif kind == Signal.END and self._end is None:
            self._end = self._received & _MASK32 if low else imm
            self._hand_on()

    def _peer_is_up(self) -> None:
        if not self._peer_up:
            self._peer_up = True
            if self._paused:
                self._next_piece()

    def _hand_on(self) -> None:
        """Queue for the engine what has arrived in order."""
        own = self._own
        assert own is not None
        mask = (1 << own.ring_log2) - 1
        while (arrival := self._early.get(self._received & mask)) is not None:
            offset, size, step = arrival.raddr, arrival.nbytes, arrival.imm
            assert step is not None
            if not self._rest_rx:
                length = size if arrival.rkey == own.rkey else self._lengths.pop(offset, 0)
                if not length:
                    break  # Announced on the control queue pair, which is behind.
                self._rest_rx = length
                self._out.append((memoryview(MESSAGE.pack(length, step)), 0))
            if size > self._rest_rx:
                self._break(f"its peer sent {size} bytes where {self._rest_rx} were missing")
                return
            del self._early[offset]
            self._out.append((self._ring[offset : offset + size], size))
            self._received += size
            self._rest_rx -= size
            if not self._rest_rx:
                kind = "untagged_received" if step == UNTAGGED else "messages_received"
                self._bridge.counts[kind] += 1
        self._flush()

    def on_completion(self, completion: Completion) -> None:
        """Take the end of a request: the peer is there, or the connection is broken."""
        if completion.status is Status.OK:
            self._peer_is_up()
        elif completion.status is not Status.FLUSHED and not self._failed:
            peer = "its peer" if self._peer is None else f"its peer {self._peer.ip}"
            why = _FAILURES.get(completion.status, "refuses its packets")
            self._break(f"{peer} {why} ({completion.status.value})")

    # -- to the engine --------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write to the engine what it takes now; close its socket if nothing more will come."""
        out = self._out
        while out and self._sock is not None:
            if self._deaf:
                out.clear()
                break
            try:
                count = self._sock.sendmsg([view for view, _ in islice(out, _GATHER)])
            except BlockingIOError:
                break
            except OSError:
                # It may have closed after its last message, which is still to be read.
                self._deaf = True
                continue
            while count:
                view, of_ring = out[0]
                taken = min(count, len(view))
                count -= taken
                if of_ring:
                    self._consumed += taken
                if taken < len(view):
                    out[0] = (view[taken:], of_ring - taken if of_ring else 0)
                else:
                    out.popleft()
        if self._sock is None:
            return
        at_end = self._end is not None and not (self._received - self._end) & _MASK32
        if not out and (at_end or self._failed):
            self._close()
            return
        self._give_credit()
        self._rewatch()

    def _give_credit(self) -> None:
        own = self._own
        # A sender that waits misses more than half a ring, so it is always told.
        if own is None or self._consumed - self._credited < 1 << own.ring_log2 - 2:
            return
        self._credited = self._consumed
        self._signal(Signal.CREDIT, self._consumed)

    def _signal(self, kind: Signal, imm: int = 0, low: int = 0) -> None:
        assert self._peer is not None
        # The completion that says so is on its way where the queue pair has failed.
        with suppress(QpStateError):
            self._qps[0].post_write(
                0, raddr=kind << 32 | low, rkey=self._peer.rkey, imm=imm & _MASK32,
                signaled=kind is Signal.HELLO, now_us=self._bridge.now_us,
            )  # fmt: skip

    def keep_alive(self) -> None:
        """Make sure that a silent peer is still there."""
        if self._qps and not self._said_end and self.drained:
            self._signal(Signal.ALIVE)

    # -- ends -----------------------------------------------------------------------------------

    @property
    def drained(self) -> bool:
        """Whether the peer has acknowledged everything."""
        return all(qp.idle for qp in self._qps)

    def _break(self, why: str) -> None:
        """Give up; the engine still gets what has arrived in order."""
        if self._failed:
            return
        self._failed = True
        self._bridge.log(f"{self._name} broke: {why}")
        self._bridge.counts["broken"] += 1
        self._flush()

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._bridge.unwatch(sock)
            sock.close()
            self._out.clear()
        if not self._said_end:
            self._said_end = True
            if self._peer is not None:
                self._signal(Signal.END, self._sent, low=int(self._failed))
            self._bridge.retire(self)

    def end(self) -> None:
        """Close the engine's socket and tell the peer: the bridge stops."""
        self._close()

    def release(self) -> None:
        """Give the memory back now; the bridge has forgotten this connection."""
        self._ring = memoryview(b"")
        self._buffer = bytearray()
        self._early.clear()
        self._out.clear()

    def _rewatch(self) -> None:
        if self._sock is not None:
            self._bridge.rewatch(self._sock, reading=self._reading, writing=bool(self._out))
