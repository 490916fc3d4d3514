"""A user-space RDMA NIC: RoCEv2 reliable connections with RDMA WRITE, go-back-N and DCQCN.

:class:`SoftRnic` does no input or output and owns no clock. Whoever drives it hands in received
frames (:meth:`SoftRnic.on_frame`), asks for the frames that are to go on the wire now
(:meth:`SoftRnic.poll`) and is told when to ask again (:meth:`SoftRnic.next_wakeup`). Times are
microseconds of any monotonic clock. ``ringstep.hostlib.wires`` drives it in real time over sockets
and in virtual time in memory.

What it does follows the InfiniBand Architecture Specification, volume 1, chapter 9.7 (reliable
service) and annex A17 (RoCEv2); section numbers are given where a rule is applied. What it does not
do: SEND, READ, atomics, shared receive queues, path migration. Such requests are answered with the
NAK that the specification asks for.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from mmap import mmap
from typing import Final

from ringstep.hostlib.dcqcn import DcqcnParams, NotificationMode, NotificationPoint, ReactionPoint
from ringstep.hostlib.peek import peek
from ringstep.protocol.limits import PSN_BITS
from ringstep.protocol.rocev2 import (
    AETH_BYTES,
    CE,
    DEFAULT_PKEY,
    ECT0,
    IMM_BYTES,
    RETH_BYTES,
    Aeth,
    Bth,
    FrameTemplate,
    IpAddress,
    MalformedFrame,
    NotRoce,
    Opcode,
    Reth,
    RoceFrame,
    build,
    cnp,
    encode_aeth,
    encode_reth,
    parse,
)
from ringstep.protocol.tag import TagLayout

__all__ = [
    "Arrival",
    "Completion",
    "MemoryRegion",
    "QpState",
    "QpStateError",
    "QpStats",
    "QueuePair",
    "RnicStats",
    "SoftRnic",
    "Status",
    "WorkRequest",
]

_PSN_MASK: Final = (1 << PSN_BITS) - 1
_PSN_HALF: Final = 1 << (PSN_BITS - 1)
_PSN_WORD_ACK_REQ: Final = 0x80000000
_QP_WORD_BECN: Final = 0x40000000
_MAX_QPN: Final = (1 << 24) - 1
_MAX_MESSAGE: Final = 1 << 31
"""Largest RC message, 9.7.7.1.1."""
_MAX_IN_FLIGHT: Final = 1 << (PSN_BITS - 2)
"""Fewer packets than half the PSN space, so that an acknowledgement is never ambiguous."""
_NEVER: Final = float("inf")
_UNTAGGED_SPORT: Final = 0x8000
"""Source ports of ACK, CNP and untagged data: 0x8000 .. 0xBFFF, below the range of step tags."""

# Opcode -> (starts a message, ends a message, has an immediate).
_WRITE_SHAPE: Final[dict[int, tuple[bool, bool, bool]]] = {
    Opcode.RC_WRITE_FIRST: (True, False, False),
    Opcode.RC_WRITE_MIDDLE: (False, False, False),
    Opcode.RC_WRITE_LAST: (False, True, False),
    Opcode.RC_WRITE_LAST_IMM: (False, True, True),
    Opcode.RC_WRITE_ONLY: (True, True, False),
    Opcode.RC_WRITE_ONLY_IMM: (True, True, True),
}
_WRITE_OPCODE: Final = {shape: Opcode(code) for code, shape in _WRITE_SHAPE.items()}
_RC_REQUESTS: Final = frozenset(range(0x0D)) | {0x13, 0x14, 0x16, 0x17}
"""RC SEND, WRITE, READ request and atomics (table 38 of the specification)."""

# AETH: kind of acknowledgement and NAK codes, 9.7.5.2 (tables 45 and 46).
_AETH_ACK: Final = 0
_AETH_RNR_NAK: Final = 1
_AETH_NAK: Final = 3
_NAK_SEQUENCE: Final = 0
_NAK_INVALID_REQUEST: Final = 1
_NAK_REMOTE_ACCESS: Final = 2


class Status(StrEnum):
    """How a work request ended."""

    OK = "ok"
    RETRY_EXCEEDED = "retry_exceeded"
    """Retransmitted ``retry_limit`` times without progress."""
    RNR_REFUSED = "rnr_refused"
    """The responder was not ready to receive, which a WRITE without receive queue cannot be."""
    REMOTE_INVALID_REQUEST = "remote_invalid_request"
    REMOTE_ACCESS_ERROR = "remote_access_error"
    REMOTE_ERROR = "remote_error"
    FLUSHED = "flushed"
    """Not carried out: an earlier request of the queue pair failed, or it was destroyed."""


class QpState(StrEnum):
    """State of a queue pair: ready to send, or failed."""

    RTS = "rts"
    ERROR = "error"


class QpStateError(RuntimeError):
    """The queue pair cannot take a request in its present state."""


@dataclass(slots=True, eq=False)
class WorkRequest:
    """One posted RDMA WRITE and what became of it. Times are us, None before they come."""

    wr_id: int
    qpn: int
    nbytes: int
    packets: int
    step: int | None
    sport: int
    raddr: int
    rkey: int
    imm: int | None
    signaled: bool
    posted_us: float
    first_tx_us: float | None = None
    """Start of the first transmission of the first packet."""
    last_tx_us: float | None = None
    """Start of the first transmission of the last packet."""
    acked_us: float | None = None
    """Arrival of the acknowledgement of the last packet, or the time of failure."""
    status: Status | None = None
    first_psn: int = 0
    _data: bytes | None = field(default=None, repr=False)
    _first: int = field(default=0, repr=False)
    _end: int = field(default=0, repr=False)
    _next: WorkRequest | None = field(default=None, repr=False)

    @property
    def done(self) -> bool:
        """Whether the request has ended, well or not."""
        return self.status is not None


@dataclass(slots=True, frozen=True)
class Completion:
    """A work request of the sender has ended."""

    qpn: int
    wr: WorkRequest
    status: Status
    posted_us: float
    first_tx_us: float | None
    acked_us: float


@dataclass(slots=True, frozen=True)
class Arrival:
    """A whole message has been received, in order."""

    qpn: int
    nbytes: int
    raddr: int
    rkey: int
    imm: int | None
    step: int | None
    """Step tag of the packet that ended it; None if its source port is untagged."""
    first_rx_us: float
    """Arrival of its first packet."""
    time_us: float
    """Arrival of its last packet."""


@dataclass(slots=True, eq=False)
class MemoryRegion:
    """Memory that a peer may write to: addresses ``va`` to ``va + length``, with ``rkey``."""

    va: int
    length: int
    rkey: int
    buffer: bytearray | mmap | None
    """What was written, from ``va`` on; None: checked and discarded."""


@dataclass(slots=True)
class QpStats:
    """Counters of one queue pair, since its creation."""

    tx_packets: int = 0
    """Data packets sent, retransmissions included."""
    tx_bytes: int = 0
    """Their frames' bytes."""
    retransmissions: int = 0
    rtos: int = 0
    acks_rx: int = 0
    naks_rx: int = 0
    stale_acks_rx: int = 0
    """Acknowledgements of what was acknowledged already, or of what was never sent."""
    cnps_rx: int = 0
    """CNPs and echoed marks."""
    messages_tx: int = 0
    rx_packets: int = 0
    """Data packets received, in order or not."""
    rx_bytes: int = 0
    """Payload bytes taken in order."""
    out_of_order: int = 0
    duplicates: int = 0
    ce_rx: int = 0
    """Data packets that arrived marked CE."""
    acks_tx: int = 0
    naks_tx: int = 0
    cnps_tx: int = 0
    messages_rx: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(slots=True)
class RnicStats:
    """Counters of the NIC."""

    rx_frames: int = 0
    tx_frames: int = 0
    drops: Counter[str] = field(default_factory=Counter)
    """Received frames that were dropped, by reason."""
    last_drop: str = ""
    """Text on the last drop."""


_ZEROS: dict[int, bytes] = {}


def _zeros(length: int) -> bytes:
    found = _ZEROS.get(length)
    if found is None:
        found = _ZEROS[length] = bytes(length)
    return found


class QueuePair:
    """One end of a reliable connection. Made by :meth:`SoftRnic.create_qp`."""

    __slots__ = (
        "_ack_interval",
        "_ack_template",
        "_active",
        "_arriving",
        "_cnp_frame",
        "_ctl",
        "_deadline",
        "_dscp",
        "_echo",
        "_epsn",
        "_head",
        "_in_ctl",
        "_job_tag",
        "_last_ack_req",
        "_last_size",
        "_last_start",
        "_layout",
        "_msn",
        "_nak_sent",
        "_next_avail",
        "_next_wr_id",
        "_not_before",
        "_np",
        "_post_psn",
        "_refusal",
        "_remote_mac",
        "_remote_packed",
        "_resv6a",
        "_retime",
        "_retries",
        "_retry_limit",
        "_rnic",
        "_rto",
        "_send",
        "_snd_max",
        "_snd_nxt",
        "_snd_una",
        "_tail",
        "_templates",
        "_var_window",
        "_window_blocked",
        "mtu_payload",
        "qpn",
        "rate_samples",
        "remote_ip",
        "remote_qpn",
        "rp",
        "state",
        "stats",
        "window_bytes",
    )

    def __init__(
        self,
        rnic: SoftRnic,
        local_qpn: int,
        remote_ip: IpAddress,
        remote_qpn: int,
        *,
        remote_mac: int,
        dcqcn: DcqcnParams | None,
        notify: NotificationPoint | None,
        mtu_payload: int,
        initial_psn: int,
        remote_psn: int | None,
        ack_interval: int,
        rto_us: float,
        retry_limit: int,
        window_bytes: int | None,
        var_window: bool,
        layout: TagLayout,
        job_tag: int,
        dscp: int,
        resv6a: int,
        retime: bool,
        rate_trace: Callable[[float, float], None] | None,
        record_rates: bool,
    ) -> None:
        self.qpn = local_qpn
        self.remote_ip = remote_ip
        self.remote_qpn = remote_qpn
        self.mtu_payload = mtu_payload
        self.window_bytes = window_bytes
        self.state = QpState.RTS
        self.stats = QpStats()
        self.rate_samples: list[tuple[float, float]] = []
        """(time in us, rate in bit/s) of every change of rate, with ``record_rates=True``."""
        self._rnic = rnic
        self._remote_mac = remote_mac
        self._remote_packed = remote_ip.packed
        self._ack_interval = ack_interval
        self._rto = rto_us
        self._retry_limit = retry_limit
        self._var_window = var_window
        self._layout = layout
        self._job_tag = job_tag
        self._dscp = dscp
        self._resv6a = resv6a
        self.rp: ReactionPoint | None = None
        """The rate control, or None where the queue pair always sends at line rate."""
        if dcqcn is not None:
            self.rp = ReactionPoint(
                dcqcn, rnic.line_rate_bps, trace=self._rate_hook(rate_trace, record_rates)
            )
        self._np = NotificationPoint.from_params(dcqcn) if notify is None else notify
        # Requester. PSNs are kept unwrapped and masked to 24 bits on the wire.
        self._post_psn = self._snd_una = self._snd_nxt = self._snd_max = initial_psn
        self._last_ack_req = initial_psn - 1
        self._head: WorkRequest | None = None
        self._tail: WorkRequest | None = None
        self._send: WorkRequest | None = None
        self._next_wr_id = 0
        self._active = False
        self._window_blocked = False
        self._next_avail = 0.0
        self._retime = retime and dcqcn is not None
        self._not_before = 0.0
        self._last_start = 0.0
        self._last_size = 0
        self._deadline = _NEVER
        self._retries = 0
        self._templates: dict[tuple[int, int, int], FrameTemplate] = {}
        # Responder.
        self._epsn = initial_psn if remote_psn is None else remote_psn
        self._msn = 0
        self._nak_sent = False
        self._arriving: _Arriving | None = None
        self._ctl = _CTL_NONE
        self._refusal = 0
        self._in_ctl = False
        self._echo = False
        self._ack_template: FrameTemplate | None = None
        self._cnp_frame = b""

    def _rate_hook(
        self, trace: Callable[[float, float], None] | None, record: bool
    ) -> Callable[[float, float], None] | None:
        if not record:
            return trace
        samples = self.rate_samples

        def sample(time_us: float, rate_bps: float) -> None:
            samples.append((time_us, rate_bps))
            if trace is not None:
                trace(time_us, rate_bps)

        return sample

    def __repr__(self) -> str:
        return f"<QueuePair {self.qpn:#x} -> {self.remote_ip} {self.remote_qpn:#x} {self.state}>"

    # -- requester ------------------------------------------------------------------------------

    @property
    def rate_bps(self) -> float:
        """Present sending rate in bit/s, as of the last packet or CNP."""
        return self._rnic.line_rate_bps if self.rp is None else self.rp.rate_bps

    @property
    def outstanding(self) -> int:
        """Packets sent and not yet acknowledged."""
        return self._snd_max - self._snd_una

    @property
    def idle(self) -> bool:
        """Whether every posted request has ended."""
        return self._head is None

    @property
    def next_psn(self) -> int:
        """PSN that the first packet of the next posted request will carry."""
        return self._post_psn & _PSN_MASK

    def post_write(
        self,
        data: int | bytes,
        *,
        step: int | None = None,
        sport: int | None = None,
        raddr: int = 0,
        rkey: int = 0,
        imm: int | None = None,
        signaled: bool = True,
        now_us: float | None = None,
    ) -> WorkRequest:
        """Queue one RDMA WRITE; it is sent by the following polls of the NIC.

        Args:
            data: the payload, or its length in bytes: then zeros are sent.
            step: step of the collective, carried by the UDP source port under the layout of the
                queue pair. None: the packets carry an untagged source port.
            sport: the source port itself, instead of ``step`` (see ``ringstep.hostlib.tagging``).
            raddr: address at the receiver.
            rkey: key of the receiver's memory region.
            imm: 32 bits of immediate data for the receiver.
            signaled: whether success makes a completion; failures always do.
            now_us: present time; by default the latest time that the NIC was told.

        Raises:
            QpStateError: the queue pair has failed. ValueError: the message is larger than 2^31
            bytes, or an argument does not fit its field.
        """
        if self.state is not QpState.RTS:
            raise QpStateError(
                f"queue pair {self.qpn:#x} failed earlier (see its completions); create a new one"
            )
        nbytes, payload = (data, None) if isinstance(data, int) else (len(data), bytes(data))
        if not 0 <= nbytes <= _MAX_MESSAGE:
            raise ValueError(f"a message of {nbytes} bytes: RC carries 0 to {_MAX_MESSAGE}")
        if imm is not None and not 0 <= imm < 1 << 32:
            raise ValueError(f"immediate {imm:#x} does not fit in 32 bits")
        if not 0 <= raddr < 1 << 64:
            raise ValueError(f"remote address {raddr:#x} does not fit in 64 bits")
        if not 0 <= rkey < 1 << 32:
            raise ValueError(f"remote key {rkey:#x} does not fit in 32 bits")
        if sport is None:
            if step is None:
                sport = _UNTAGGED_SPORT | self.qpn & 0x3FFF
            else:
                sport = self._layout.sport(step, self._job_tag)
        elif step is None and self._layout.is_tagged(sport):
            step = self._layout.step_of(sport)
        now = self._rnic.now_us if now_us is None else now_us
        packets = max(1, -(-nbytes // self.mtu_payload))
        wr = WorkRequest(
            wr_id=self._next_wr_id,
            qpn=self.qpn,
            nbytes=nbytes,
            packets=packets,
            step=step,
            sport=sport,
            raddr=raddr,
            rkey=rkey,
            imm=imm,
            signaled=signaled,
            posted_us=now,
            first_psn=self._post_psn & _PSN_MASK,
            _data=payload,
            _first=self._post_psn,
            _end=self._post_psn + packets,
        )
        self._next_wr_id += 1
        self._post_psn += packets
        if self._tail is None:
            self._head = wr
        else:
            self._tail._next = wr
        self._tail = wr
        if self._send is None:
            self._send = wr
            self._activate(now)
        return wr

    def _activate(self, now: float) -> None:
        # An idle or blocked queue pair earns no credit for the time it had nothing to send.
        self._not_before = now
        self._next_avail = max(self._next_avail, now)
        if not self._active:
            self._active = True
            self._rnic._ring.append(self)

    def _retime_next(self) -> None:
        assert self.rp is not None
        rate = self.rp.advance(self._rnic.now_us)
        self._next_avail = max(self._not_before, self._last_start + self._last_size * 8e6 / rate)

    def _window_open(self) -> bool:
        in_flight = self._snd_nxt - self._snd_una
        if in_flight >= _MAX_IN_FLIGHT:
            return False
        if self.window_bytes is None:
            return True
        return in_flight * self.mtu_payload < self._window()

    def _window(self) -> float:
        assert self.window_bytes is not None
        if self._var_window and self.rp is not None:
            # Never below one packet, or a slow queue pair would stop for good.
            share = self.rp.rate_bps / self.rp.line_rate_bps
            return max(self.window_bytes * share, 1.0)
        return self.window_bytes

    def _next_frame(self, now: float) -> bytes:
        wr = self._send
        assert wr is not None
        psn = self._snd_nxt
        index = psn - wr._first
        mtu = self.mtu_payload
        first = index == 0
        last = psn + 1 == wr._end
        length = wr.nbytes - index * mtu if last else mtu
        data = wr._data
        body = _zeros(length) if data is None else data[index * mtu : index * mtu + length]
        imm = wr.imm if last else None
        opcode = _WRITE_OPCODE[first, last, imm is not None]
        if last:
            pad = -length & 3
            if imm is not None:
                body = imm.to_bytes(IMM_BYTES, "big") + body
            if pad:
                body += bytes(pad)
        else:
            pad = 0
        if first:
            body = encode_reth(Reth(wr.raddr, wr.rkey, wr.nbytes)) + body
        self._snd_nxt = psn + 1
        # The window counts: a sender that stops without having asked for an acknowledgement waits
        # for ever.
        ack_req = last or psn - self._last_ack_req >= self._ack_interval or not self._window_open()
        template = self._template(wr.sport, len(body), pad)
        frame = template.render(psn & _PSN_MASK, opcode, body, ack_req)
        stats = self.stats
        stats.tx_packets += 1
        stats.tx_bytes += len(frame)
        if psn < self._snd_max:
            stats.retransmissions += 1
        else:
            self._snd_max = psn + 1
            if first:
                wr.first_tx_us = now
            if last:
                wr.last_tx_us = now
        if ack_req:
            self._last_ack_req = psn
            if self._deadline == _NEVER:
                self._arm(now + self._rto)
        if last:
            self._send = wr._next
        return frame

    def _template(self, sport: int, body_bytes: int, pad: int) -> FrameTemplate:
        key = (sport, body_bytes, pad)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= 64:
                self._templates.clear()
            # Any opcode without extension headers gives the template its lengths.
            frame = self._frame(
                sport,
                Bth(Opcode.RC_WRITE_MIDDLE, self.remote_qpn, 0, pad=pad, resv6a=self._resv6a),
                ecn=self._rnic.ecn,
                dscp=self._dscp,
            )
            frame.payload = bytes(body_bytes - pad)
            template = self._templates[key] = FrameTemplate(frame)
        return template

    def _frame(self, sport: int, bth: Bth, *, ecn: int = 0, dscp: int = 0) -> RoceFrame:
        rnic = self._rnic
        return RoceFrame(
            src_mac=rnic.mac,
            dst_mac=self._remote_mac,
            src_ip=rnic.ip,
            dst_ip=self.remote_ip,
            sport=sport,
            bth=bth,
            ecn=ecn,
            dscp=dscp,
        )

    def _on_aeth(self, psn: int, syndrome: int, now: float) -> None:
        una = self._snd_una
        acked = una + ((psn - una + _PSN_HALF) & _PSN_MASK) - _PSN_HALF
        stats = self.stats
        kind = syndrome >> 5 & 3
        if kind == _AETH_ACK:
            stats.acks_rx += 1
            if not una <= acked < self._snd_max:
                stats.stale_acks_rx += 1
                return
            self._acknowledge(acked + 1, now)
            return
        stats.naks_rx += 1
        if not una <= acked < self._snd_max:
            stats.stale_acks_rx += 1
            return
        # A NAK acknowledges everything before its PSN (9.7.5.1.1).
        if acked > una:
            self._acknowledge(acked, now)
        if kind == _AETH_RNR_NAK:
            self._fail(Status.RNR_REFUSED, now)
        elif syndrome & 0x1F == _NAK_SEQUENCE:
            self._go_back(now)
        elif syndrome & 0x1F == _NAK_INVALID_REQUEST:
            self._fail(Status.REMOTE_INVALID_REQUEST, now)
        elif syndrome & 0x1F == _NAK_REMOTE_ACCESS:
            self._fail(Status.REMOTE_ACCESS_ERROR, now)
        else:
            self._fail(Status.REMOTE_ERROR, now)

    def _acknowledge(self, una: int, now: float) -> None:
        self._snd_una = una
        self._retries = 0
        if self._snd_nxt < una:
            # Acknowledged by an earlier transmission while going back.
            self._snd_nxt = una
            while self._send is not None and self._send._end <= una:
                self._send = self._send._next
        self._arm(now + self._rto if self._last_ack_req >= una else _NEVER)
        wr = self._head
        while wr is not None and wr._end <= una:
            self._finish(wr, Status.OK, now)
            wr = wr._next
        self._head = wr
        if wr is None:
            self._tail = None
        if self._window_blocked and self._send is not None:
            self._window_blocked = False
            self._activate(now)

    def _go_back(self, now: float) -> None:
        """Send again from the oldest unacknowledged packet, or give up."""
        self._retries += 1
        if self._retries > self._retry_limit:
            self._fail(Status.RETRY_EXCEEDED, now)
            return
        self._snd_nxt = self._snd_una
        self._last_ack_req = self._snd_una - 1
        self._send = self._head
        self._arm(_NEVER)
        self._activate(now)

    def _arm(self, deadline: float) -> None:
        """Set the time of the timeout; the NIC looks only at queue pairs that have one."""
        self._deadline = deadline
        if deadline == _NEVER:
            self._rnic._timed.pop(self, None)
        else:
            self._rnic._timed[self] = None

    def _on_timeout(self, now: float) -> None:
        self.stats.rtos += 1
        self._go_back(now)

    def _finish(self, wr: WorkRequest, status: Status, now: float) -> None:
        wr.status = status
        wr.acked_us = now
        wr._data = None
        if status is Status.OK:
            self.stats.messages_tx += 1
            if not wr.signaled:
                return
        self._rnic._completions.append(
            Completion(self.qpn, wr, status, wr.posted_us, wr.first_tx_us, now)
        )

    def _fail(self, status: Status, now: float) -> None:
        self.state = QpState.ERROR
        self._arm(_NEVER)
        wr = self._head
        self._head = self._tail = self._send = None
        while wr is not None:
            self._finish(wr, status, now)
            status = Status.FLUSHED
            wr = wr._next

    # -- responder ------------------------------------------------------------------------------

    def _on_request(
        self,
        opcode: int,
        psn_word: int,
        pad: int,
        ce: bool,
        frame: bytes,
        at: int,
        end: int,
        now: float,
    ) -> None:
        stats = self.stats
        stats.rx_packets += 1
        if ce:
            stats.ce_rx += 1
            self._on_ce(now)
        distance = (psn_word - self._epsn) & _PSN_MASK
        if distance == 0:
            self._nak_sent = False
            error = self._take(opcode, pad, frame, at, end, now)
            if error:
                self._refusal = error
                self._control(_CTL_REFUSE)
                return
            self._epsn = (self._epsn + 1) & _PSN_MASK
            if psn_word & _PSN_WORD_ACK_REQ:
                self._control(_CTL_ACK)
            elif self._ctl == _CTL_NAK:
                # The gap closed before its NAK went out.
                self._ctl = _CTL_ACK
        elif distance < _PSN_HALF:
            stats.out_of_order += 1
            # One NAK per gap, until the expected PSN has come (9.7.5.2.8).
            if not self._nak_sent:
                self._nak_sent = True
                self._control(_CTL_NAK)
        else:
            # A duplicate WRITE is not carried out again, but acknowledged with the latest PSN
            # (9.7.5.1.4).
            stats.duplicates += 1
            if self._ctl != _CTL_NAK:
                self._control(_CTL_ACK)

    def _take(self, opcode: int, pad: int, frame: bytes, at: int, end: int, now: float) -> int:
        """Carry out the packet that was expected; return 0 or the NAK code that refuses it."""
        shape = _WRITE_SHAPE.get(opcode)
        if shape is None:
            return _NAK_INVALID_REQUEST
        first, last, with_imm = shape
        message = self._arriving
        if first != (message is None):
            return _NAK_INVALID_REQUEST
        if first:
            if end - at < RETH_BYTES:
                return _NAK_INVALID_REQUEST
            message = _Arriving(
                raddr=int.from_bytes(frame[at : at + 8], "big"),
                rkey=int.from_bytes(frame[at + 8 : at + 12], "big"),
                length=int.from_bytes(frame[at + 12 : at + 16], "big"),
                first_rx_us=now,
            )
            at += RETH_BYTES
            error = self._rnic._check_access(message)
            if error:
                return error
        assert message is not None
        imm = None
        if with_imm:
            if end - at < IMM_BYTES:
                return _NAK_INVALID_REQUEST
            imm = int.from_bytes(frame[at : at + IMM_BYTES], "big")
            at += IMM_BYTES
        size = end - at - pad
        total = message.received + size
        # Only the end of a message may be shorter than the MTU, and it must complete the announced
        # length (9.7.4.1.6).
        if (not last and (size != self.mtu_payload or pad)) or not 0 <= size <= self.mtu_payload:
            return _NAK_INVALID_REQUEST
        if last and not first and size == 0:
            return _NAK_INVALID_REQUEST
        if total > message.length or (last and total != message.length):
            return _NAK_INVALID_REQUEST
        region = message.region
        if region is not None and region.buffer is not None:
            offset = message.raddr - region.va + message.received
            region.buffer[offset : offset + size] = frame[at : at + size]
        message.received = total
        self.stats.rx_bytes += size
        if not last:
            self._arriving = message
            return 0
        self._arriving = None
        self._msn = (self._msn + 1) & _PSN_MASK
        self.stats.messages_rx += 1
        self._rnic._arrivals.append(
            Arrival(
                qpn=self.qpn,
                nbytes=total,
                raddr=message.raddr,
                rkey=message.rkey,
                imm=imm,
                step=self._step_of(frame),
                first_rx_us=message.first_rx_us,
                time_us=now,
            )
        )
        return 0

    def _step_of(self, frame: bytes) -> int | None:
        # The UDP source port stands 28 bytes before the end of BTH's fixed place: find it from the
        # EtherType.
        l3 = 18 if frame[12:14] == b"\x81\x00" else 14
        udp = l3 + (20 if frame[l3] >> 4 == 4 else 40)
        sport = frame[udp] << 8 | frame[udp + 1]
        return self._layout.step_of(sport) if self._layout.is_tagged(sport) else None

    def _on_ce(self, now: float) -> None:
        if not self._np.on_ce(self.qpn, now):
            return
        if self._np.mode is NotificationMode.ECHO:
            self._echo = True
        else:
            self._rnic._queue_cnp(self)

    def _control(self, what: int) -> None:
        """Have an acknowledgement sent; it tells the state when it leaves, so one is enough."""
        if self._ctl != _CTL_REFUSE:
            self._ctl = what
        if not self._in_ctl:
            self._in_ctl = True
            self._rnic._control.append((self, False))

    def _control_frame(self) -> bytes:
        what, self._ctl = self._ctl, _CTL_NONE
        self._in_ctl = False
        if what == _CTL_ACK:
            # Nothing received yet: there is no PSN to acknowledge but the one before the first.
            aeth, psn = Aeth.ack(self._msn), self._epsn - 1
            self.stats.acks_tx += 1
        elif what == _CTL_NAK:
            aeth, psn = Aeth.nak_sequence_error(self._msn), self._epsn
            self.stats.naks_tx += 1
        else:
            aeth, psn = Aeth(_AETH_NAK << 5 | self._refusal, self._msn), self._epsn
            self.stats.naks_tx += 1
        psn &= _PSN_MASK
        sport = _UNTAGGED_SPORT | self.qpn & 0x3FFF
        if self._echo:
            self._echo = False
            self.stats.cnps_tx += 1
            echo = self._frame(sport, Bth(Opcode.RC_ACK, self.remote_qpn, psn, becn=True))
            echo.aeth = aeth
            return build(echo)
        if self._ack_template is None:
            model = self._frame(sport, Bth(Opcode.RC_ACK, self.remote_qpn, 0))
            model.aeth = aeth
            self._ack_template = FrameTemplate(model)
        return self._ack_template.render(psn, Opcode.RC_ACK, encode_aeth(aeth))

    def _cnp(self) -> bytes:
        self.stats.cnps_tx += 1
        if not self._cnp_frame:
            rnic = self._rnic
            self._cnp_frame = build(
                cnp(
                    src_mac=rnic.mac,
                    dst_mac=self._remote_mac,
                    src_ip=rnic.ip,
                    dst_ip=self.remote_ip,
                    sport=_UNTAGGED_SPORT | self.qpn & 0x3FFF,
                    dest_qp=self.remote_qpn,
                    dscp=rnic.cnp_dscp,
                )
            )
        return self._cnp_frame


_CTL_NONE: Final = 0
_CTL_ACK: Final = 1
_CTL_NAK: Final = 2
_CTL_REFUSE: Final = 3


@dataclass(slots=True)
class _Arriving:
    raddr: int
    rkey: int
    length: int
    first_rx_us: float
    received: int = 0
    region: MemoryRegion | None = None


class SoftRnic:
    """A NIC with one port and one address.

    The queue pairs share the line: a frame occupies it for its size over ``line_rate_bps``,
    acknowledgements and CNPs go first, data of the queue pairs round robin, each no faster than its
    own rate (the next packet may start one packet time at that rate after the start of the last
    one).
    """

    def __init__(
        self,
        mac: int,
        ip: IpAddress | str,
        gateway_mac: int,
        line_rate_bps: float,
        *,
        ecn: int = ECT0,
        cnp_dscp: int = 0,
        wire_overhead_bytes: int = 0,
        pacing_slack_us: float = 1000.0,
        promiscuous: bool = False,
    ) -> None:
        """Make a NIC without queue pairs.

        Args:
            mac: own address, 48 bits.
            ip: own address.
            gateway_mac: destination MAC of all frames: the first hop.
            line_rate_bps: speed of the line, bit/s.
            ecn: ECN bits of data packets; 2 is ECT(0), 0 switches marking off.
            cnp_dscp: DSCP of CNPs.
            wire_overhead_bytes: added to every frame's length when its time on the line is computed
                (24 for Ethernet's preamble, FCS and gap).
            pacing_slack_us: how much sending time lost to a late poll may be caught up. A real-time
                loop wakes up late; without slack its senders would stay below their rates.
            promiscuous: accept frames for other MAC addresses.

        Raises:
            ValueError: a value outside its range, named.
        """
        for name, value in (("mac", mac), ("gateway_mac", gateway_mac)):
            if not 0 <= value < 1 << 48:
                raise ValueError(f"{name} {value:#x} does not fit in 48 bits")
        if line_rate_bps <= 0:
            raise ValueError(f"line_rate_bps = {line_rate_bps!r} must be above 0")
        if not 0 <= ecn <= 3:
            raise ValueError(f"ecn = {ecn} must be 0 (not ECT), 1 (ECT(1)), 2 (ECT(0)) or 3 (CE)")
        if not 0 <= cnp_dscp < 64:
            raise ValueError(f"cnp_dscp = {cnp_dscp} does not fit in 6 bits")
        if wire_overhead_bytes < 0 or pacing_slack_us < 0:
            raise ValueError("wire_overhead_bytes and pacing_slack_us must not be negative")
        self.mac = mac
        self.ip = ipaddress.ip_address(ip)
        self.gateway_mac = gateway_mac
        self.line_rate_bps = float(line_rate_bps)
        self.ecn = ecn
        self.cnp_dscp = cnp_dscp
        self.wire_overhead_bytes = wire_overhead_bytes
        self.pacing_slack_us = pacing_slack_us
        self.promiscuous = promiscuous
        self.stats = RnicStats()
        self.now_us = 0.0
        """The latest time this NIC was told."""
        self._mac_packed = mac.to_bytes(6, "big")
        self._ip_packed = self.ip.packed
        self._us_per_byte = 8e6 / self.line_rate_bps
        self._qps: dict[int, QueuePair] = {}
        self._ring: deque[QueuePair] = deque()
        # A dict for its order: with a set, runs would differ in which queue pair times out first.
        self._timed: dict[QueuePair, None] = {}
        self._control: deque[tuple[QueuePair, bool]] = deque()
        self._nic_free = 0.0
        self._completions: list[Completion] = []
        self._arrivals: list[Arrival] = []
        self._regions: dict[int, MemoryRegion] = {}

    def __repr__(self) -> str:
        return f"<SoftRnic {self.ip} {len(self._qps)} queue pairs>"

    @property
    def qps(self) -> dict[int, QueuePair]:
        """Queue pairs by number (a copy)."""
        return dict(self._qps)

    def create_qp(
        self,
        local_qpn: int,
        remote_ip: IpAddress | str,
        remote_qpn: int,
        dcqcn: DcqcnParams | None = None,
        *,
        remote_mac: int | None = None,
        notify: NotificationPoint | None = None,
        mtu_payload: int = 1024,
        initial_psn: int = 0,
        remote_psn: int | None = None,
        ack_interval: int = 16,
        rto_us: float = 100_000.0,
        retry_limit: int = 7,
        window_bytes: int | None = None,
        var_window: bool = False,
        layout: TagLayout | None = None,
        job_tag: int = 0,
        dscp: int = 0,
        resv6a: int = 0,
        retime: bool = False,
        rate_trace: Callable[[float, float], None] | None = None,
        record_rates: bool = False,
    ) -> QueuePair:
        """Make one end of a connection, ready to send and to receive.

        Args:
            local_qpn: own number, 24 bits, unique on this NIC.
            remote_ip: the peer.
            remote_qpn: the peer's number.
            dcqcn: rate control; None: always line rate, and no notification unless ``notify`` is
                given.
            remote_mac: destination MAC of its frames; by default the NIC's ``gateway_mac``.
            notify: how marked arrivals are reported; by default as ``dcqcn`` says.
            mtu_payload: payload of a full packet, bytes, a multiple of 4; the same at both ends.
            initial_psn: PSN of the first packet sent, 24 bits.
            remote_psn: PSN of the first packet received; by default the same as ``initial_psn``.
            ack_interval: an acknowledgement is asked for at least every so many packets, and at
                every end of message.
            rto_us: without an acknowledgement for so long, everything unacknowledged is sent again.
            retry_limit: so many times in a row; then the queue pair fails.
            window_bytes: payload in flight above which no packet is started; None: unlimited.
            var_window: scale the window with rate / line rate (HPCC's VAR_WIN).
            layout: how source ports carry steps.
            job_tag: job bits of the source port.
            dscp: DSCP of data packets (it may carry the job).
            resv6a: BTH.resv6a of data packets (it may carry the job).
            retime: a change of rate moves the start of a packet that is waiting for its turn
                already. Otherwise, as in the published simulators' DCQCN, it counts from the next
                packet on; a queue pair that was cut very low then sleeps through its recovery.
            rate_trace: called with (time in us, rate in bit/s) at every change of rate.
            record_rates: collect the same in ``QueuePair.rate_samples``.

        Raises:
            ValueError: an argument outside its range, or a number in use; the text says which.
        """
        remote = ipaddress.ip_address(remote_ip)
        layout = TagLayout() if layout is None else layout
        for name, value, low, high in (
            ("local_qpn", local_qpn, 2, _MAX_QPN),
            ("remote_qpn", remote_qpn, 2, _MAX_QPN),
            ("initial_psn", initial_psn, 0, _PSN_MASK),
            ("remote_psn", initial_psn if remote_psn is None else remote_psn, 0, _PSN_MASK),
            ("mtu_payload", mtu_payload, 4, 8192),
            ("ack_interval", ack_interval, 1, _PSN_HALF // 2),
            ("retry_limit", retry_limit, 0, 1 << 16),
            ("dscp", dscp, 0, 63),
            ("resv6a", resv6a, 0, 63),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} = {value} must lie in {low} .. {high}")
        if mtu_payload % 4:
            raise ValueError(f"mtu_payload = {mtu_payload} must be a multiple of 4")
        if remote_mac is not None and not 0 <= remote_mac < 1 << 48:
            raise ValueError(f"remote_mac {remote_mac:#x} does not fit in 48 bits")
        if local_qpn in self._qps:
            raise ValueError(f"queue pair {local_qpn:#x} exists already on {self.ip}")
        if remote.version != self.ip.version:
            raise ValueError(f"{remote} and {self.ip} are of different IP versions")
        if rto_us <= 0:
            raise ValueError(f"rto_us = {rto_us} must be above 0")
        if window_bytes is not None and window_bytes <= 0:
            raise ValueError(f"window_bytes = {window_bytes} must be above 0; None is unlimited")
        layout.sport(0, job_tag)  # Raises for a job tag that does not fit.
        qp = QueuePair(
            self,
            local_qpn,
            remote,
            remote_qpn,
            remote_mac=self.gateway_mac if remote_mac is None else remote_mac,
            dcqcn=dcqcn,
            notify=notify,
            mtu_payload=mtu_payload,
            initial_psn=initial_psn,
            remote_psn=remote_psn,
            ack_interval=ack_interval,
            rto_us=rto_us,
            retry_limit=retry_limit,
            window_bytes=window_bytes,
            var_window=var_window,
            layout=layout,
            job_tag=job_tag,
            dscp=dscp,
            resv6a=resv6a,
            retime=retime,
            rate_trace=rate_trace,
            record_rates=record_rates,
        )
        self._qps[local_qpn] = qp
        return qp

    def qp(self, qpn: int) -> QueuePair | None:
        """Return the queue pair with a number, None if there is none."""
        return self._qps.get(qpn)

    def destroy_qp(self, qpn: int) -> None:
        """Remove a queue pair and flush its requests. Raises KeyError if there is none."""
        qp = self._qps.pop(qpn)
        qp._fail(Status.FLUSHED, self.now_us)
        self._ring = deque(other for other in self._ring if other is not qp)
        self._control = deque(entry for entry in self._control if entry[0] is not qp)

    def register_memory(
        self, length: int, *, va: int, rkey: int, discard: bool = False
    ) -> MemoryRegion:
        """Let peers write to ``length`` bytes at ``va``.

        Without any region, every WRITE is accepted and its payload discarded; from the first region
        on, a WRITE outside of one is refused with a remote access error. With ``discard`` writes
        are checked but not kept. Raises ValueError if ``rkey`` is taken or a number does not fit.
        """
        if rkey in self._regions:
            raise ValueError(f"rkey {rkey:#x} is taken on {self.ip}")
        if not 0 <= rkey < 1 << 32 or length < 0 or not 0 <= va <= (1 << 64) - length:
            raise ValueError(
                f"region of {length} bytes at {va:#x} with rkey {rkey:#x} does not fit"
            )
        region = MemoryRegion(va, length, rkey, None if discard else bytearray(length))
        self._regions[rkey] = region
        return region

    def deregister_memory(self, rkey: int) -> None:
        """Refuse writes to a region from now on. Raises KeyError if there is none.

        Destroy the queue pairs that write to it first: a WRITE that is arriving is still carried
        out, and without any region every WRITE is accepted and discarded again.
        """
        del self._regions[rkey]

    def _check_access(self, message: _Arriving) -> int:
        # A WRITE of zero bytes touches no memory (9.7.4.1.4).
        if not self._regions or message.length == 0:
            return 0
        region = self._regions.get(message.rkey)
        if (
            region is None
            or message.raddr < region.va
            or message.raddr + message.length > region.va + region.length
        ):
            return _NAK_REMOTE_ACCESS
        message.region = region
        return 0

    # -- input ----------------------------------------------------------------------------------

    def on_frame(self, frame: bytes, now_us: float) -> None:
        """Take a received Ethernet frame; what is broken or for others is dropped and counted."""
        # Clocks of a caller's threads may be read in another order than they are handed in.
        now_us = self.now_us = max(self.now_us, now_us)
        stats = self.stats
        stats.rx_frames += 1
        peeked = peek(frame)
        if peeked is None:
            self._drop_unreadable(frame)
            return
        src, dst, ecn, opcode, flags, pkey, qp_word, psn_word, at, end = peeked
        if dst != self._ip_packed:
            self._drop("other_ip", "destination address is not this NIC's")
            return
        if frame[:6] != self._mac_packed and not self.promiscuous:
            self._drop(
                "other_mac",
                f"destination MAC {frame[:6].hex(':')} is not {self._mac_packed.hex(':')}",
            )
            return
        if flags & 0x0F or pkey != DEFAULT_PKEY:
            self._drop("bad_bth", f"transport version {flags & 15} or P_Key {pkey:#06x} is unknown")
            return
        qp = self._qps.get(qp_word & _MAX_QPN)
        if qp is None:
            self._drop("no_qp", f"no queue pair {qp_word & _MAX_QPN:#x} here")
            return
        if src != qp._remote_packed:
            self._drop("other_peer", f"queue pair {qp.qpn:#x} is connected to {qp.remote_ip}")
            return
        if qp.state is not QpState.RTS:
            self._drop("qp_error", f"queue pair {qp.qpn:#x} has failed")
            return
        if opcode == Opcode.RC_ACK:
            if end - at != AETH_BYTES:
                self._drop("malformed", f"an acknowledgement with {end - at} bytes after the BTH")
                return
            if qp_word & _QP_WORD_BECN:
                self._on_congestion(qp, now_us)
            qp._on_aeth(psn_word & _PSN_MASK, frame[at], now_us)
        elif opcode in _RC_REQUESTS:
            qp._on_request(opcode, psn_word, flags >> 4 & 3, ecn == CE, frame, at, end, now_us)
        elif opcode == Opcode.CNP:
            if not qp_word & _QP_WORD_BECN:
                self._drop("malformed", "a CNP without BECN")
                return
            self._on_congestion(qp, now_us)
        else:
            self._drop("opcode", f"opcode 0x{opcode:02X} is not supported")

    @staticmethod
    def _on_congestion(qp: QueuePair, now_us: float) -> None:
        qp.stats.cnps_rx += 1
        if qp.rp is not None:
            qp.rp.on_cnp(now_us)

    def _drop(self, reason: str, text: str) -> None:
        self.stats.drops[reason] += 1
        self.stats.last_drop = text

    def _drop_unreadable(self, frame: bytes) -> None:
        try:
            parse(frame)
        except NotRoce as error:
            self._drop("not_roce", str(error))
        except MalformedFrame as error:
            self._drop("bad_icrc" if str(error).startswith("ICRC") else "malformed", str(error))
        else:
            self._drop("malformed", "the frame is not readable")

    # -- output ---------------------------------------------------------------------------------

    def _queue_cnp(self, qp: QueuePair) -> None:
        self._control.append((qp, True))

    def poll(self, now_us: float) -> list[bytes]:
        """Return the frames whose transmission starts by ``now_us``; expired timers act first."""
        now_us = self.now_us = max(self.now_us, now_us)
        for qp in [qp for qp in self._timed if qp._deadline <= now_us]:
            qp._on_timeout(now_us)
        frames: list[bytes] = []
        # ``at`` is when the line takes the next frame: in the past only where this poll came late.
        at = max(self._nic_free, now_us - self.pacing_slack_us)
        while at <= now_us:
            if self._control:
                sender, is_cnp = self._control.popleft()
                frame = sender._cnp() if is_cnp else sender._control_frame()
            else:
                qp_next, ready = self._pick(at)
                if qp_next is None:
                    at = ready
                    continue
                frame = qp_next._next_frame(now_us)
                size = len(frame) + self.wire_overhead_bytes
                rp = qp_next.rp
                if rp is None:
                    qp_next._next_avail = at + size * self._us_per_byte
                else:
                    qp_next._next_avail = at + size * 8e6 / rp.on_sent(size, now_us)
                    qp_next._last_start = at
                    qp_next._last_size = size
            frames.append(frame)
            at += (len(frame) + self.wire_overhead_bytes) * self._us_per_byte
            self._nic_free = at
        self.stats.tx_frames += len(frames)
        return frames

    def _pick(self, at: float) -> tuple[QueuePair | None, float]:
        """Return the next queue pair in turn that may start a packet at ``at``, or when one may."""
        ring = self._ring
        ready = _NEVER
        for _ in range(len(ring)):
            qp = ring.popleft()
            if qp._send is None:
                qp._active = False
                continue
            ring.append(qp)
            if not qp._window_open():
                qp._window_blocked = True
                continue
            if qp._next_avail > at and qp._retime:
                qp._retime_next()
            if qp._next_avail <= at:
                return qp, at
            if qp._next_avail < ready:
                ready = qp._next_avail
        return None, ready

    def next_wakeup(self, now_us: float) -> float | None:
        """Return when to call :meth:`poll` next, None while only a frame or request can matter."""
        wake = _NEVER
        for qp in self._timed:
            if qp._deadline < wake:
                wake = qp._deadline
        if self._control:
            wake = min(wake, self._nic_free)
        for qp in self._ring:
            if qp._send is not None and qp._window_open():
                start = qp._next_avail
                if qp._retime and qp.rp is not None:
                    change = qp.rp.next_change_us()
                    if change is not None and change < start:
                        start = max(change, now_us)
                wake = min(wake, max(start, self._nic_free))
        if wake == _NEVER:
            return None
        return max(wake, now_us)

    # -- events ---------------------------------------------------------------------------------

    def poll_completions(self) -> list[Completion]:
        """Return the requests that ended since the last call, in order."""
        done, self._completions = self._completions, []
        return done

    def poll_arrivals(self) -> list[Arrival]:
        """Return the messages received since the last call, in order."""
        arrived, self._arrivals = self._arrivals, []
        return arrived
