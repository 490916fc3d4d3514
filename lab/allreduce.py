"""A ring AllReduce over software RNICs: real data, one queue pair per edge and step.

Sans-IO: whoever drives it moves frames between the NICs and the wires, and says when a NIC has
taken some in. Rank r sends chunk (r - s) mod N to rank r + 1 in step s of 2 (N - 1): N - 1 steps
that reduce and scatter, N - 1 that gather. A step is sent as soon as the chunk that it forwards has
come, whatever else is still on its way: then steps may overlap, which is what the marker is about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ringstep.hostlib.dcqcn import DcqcnParams
from ringstep.hostlib.rnic import MemoryRegion, QueuePair, SoftRnic, Status, WorkRequest
from ringstep.lab.pace import RETRY_LIMIT

ELEMENT: Final = np.dtype("<i4")
RKEY: Final = 1
Data = npt.NDArray[np.int32]


class CollectiveFailed(RuntimeError):
    """The collective did not end, or ended with an error or a wrong sum."""


@dataclass(frozen=True, slots=True)
class QpSetting:
    """What all queue pairs of a run have in common."""

    dcqcn: DcqcnParams
    payload: int
    ack_interval: int
    rto_us: float
    retime: bool = True
    """A packet that waits for its turn follows a change of rate, as a rate limiter in hardware
    does; otherwise a sender that was cut to the floor sleeps through its recovery."""

    def options(self) -> dict[str, Any]:
        """Return what :meth:`SoftRnic.create_qp` takes by name."""
        return {
            "mtu_payload": self.payload,
            "ack_interval": self.ack_interval,
            "rto_us": self.rto_us,
            "retry_limit": RETRY_LIMIT,
            "retime": self.retime,
        }


@dataclass(slots=True)
class StepRecord:
    """One step on one edge. Times in us on the run's clock; None before they come."""

    rank: int
    step: int
    sport: int
    posted_us: float
    request: WorkRequest
    arrived_us: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the queue pairs of a run counted."""

    packets: int
    """Data packets sent, retransmissions included."""
    received: int
    """Data packets that arrived; the others were dropped on the way."""
    retransmissions: int
    timeouts: int
    ce: int
    """Data packets that arrived with a mark."""
    cnps: int
    """CNPs that reached a sender."""

    @property
    def dropped(self) -> int:
        """Data packets that did not arrive."""
        return self.packets - self.received

    @classmethod
    def of(cls, pairs: Sequence[tuple[QueuePair, QueuePair]]) -> Traffic:
        """Add up (sender, receiver) pairs."""
        tx = [pair[0].stats for pair in pairs]
        rx = [pair[1].stats for pair in pairs]
        return cls(
            packets=sum(s.tx_packets for s in tx),
            received=sum(s.rx_packets for s in rx),
            retransmissions=sum(s.retransmissions for s in tx),
            timeouts=sum(s.rtos for s in tx),
            ce=sum(s.ce_rx for s in rx),
            cnps=sum(s.cnps_rx for s in tx),
        )


def steps_of(ranks: int) -> int:
    """Return the number of steps of a ring AllReduce: 2 (N - 1)."""
    return 2 * (ranks - 1)


def chunk_bytes(size: int, ranks: int) -> int:
    """Return the bytes of one chunk: the N-th part of ``size``, in whole elements, rounded up."""
    return -(-size // (ranks * ELEMENT.itemsize)) * ELEMENT.itemsize


def make_data(ranks: int, chunk: int, seed: int) -> list[Data]:
    """Return what each rank brings along; sums of up to 64 ranks do not overflow."""
    random = np.random.default_rng(seed)
    count = ranks * chunk // ELEMENT.itemsize
    return [random.integers(-(1 << 24), 1 << 24, count, dtype=np.int32) for _ in range(ranks)]


def register_landing(nic: SoftRnic, ranks: int, chunk: int) -> MemoryRegion:
    """Give a NIC the memory that the predecessor writes to: a place for each step."""
    return nic.register_memory(steps_of(ranks) * chunk, va=0, rkey=RKEY)


class RingAllReduce:
    """One collective of the ranks ``nics[0] .. nics[N - 1]``, in ring order."""

    def __init__(
        self,
        nics: Sequence[SoftRnic],
        landings: Sequence[MemoryRegion],
        data: Sequence[Data],
        setting: QpSetting,
        *,
        first_qpn: int,
        sport: Callable[[int, int], int],
    ) -> None:
        """Make the queue pairs.

        Args:
            nics: one per rank.
            landings: their memory, from :func:`register_landing`.
            data: what each rank brings along; left as it is.
            setting: of all queue pairs.
            first_qpn: 4 (N - 1) queue pair numbers from here on are used on every NIC.
            sport: UDP source port by (rank of the sender, step).
        """
        self._nics = nics
        self._landings = landings
        self._ranks = len(nics)
        self._steps = steps_of(self._ranks)
        self._expected = np.sum(np.stack(data), axis=0, dtype=np.int32)
        self._buffers = [part.copy() for part in data]
        self._chunk = data[0].nbytes // self._ranks
        self._first_qpn = first_qpn
        self._sport = sport
        self._pairs: list[list[tuple[QueuePair, QueuePair]]] = []
        self.records: dict[tuple[int, int], StepRecord] = {}
        """By (rank of the sender, step)."""
        self._left = self._ranks * self._steps
        self._started_us: list[float | None] = [None] * self._ranks
        self._early: list[list[int]] = [[] for _ in nics]
        """Steps that became ready before their rank was started."""
        for rank in range(self._ranks):
            self._pairs.append([self._connect(rank, step, setting) for step in range(self._steps)])

    def _connect(self, rank: int, step: int, setting: QpSetting) -> tuple[QueuePair, QueuePair]:
        sender, receiver = self._nics[rank], self._nics[self._after(rank)]
        tx, rx = self._first_qpn + 2 * step, self._first_qpn + 2 * step + 1
        options = setting.options()
        return (
            sender.create_qp(tx, receiver.ip, rx, setting.dcqcn, **options),
            receiver.create_qp(rx, sender.ip, tx, setting.dcqcn, **options),
        )

    def _after(self, rank: int) -> int:
        return (rank + 1) % self._ranks

    # -- what the driver calls

    def start(self, rank: int, now_us: float) -> None:
        """Let a rank send its first step."""
        self._started_us[rank] = now_us
        for step in (0, *self._early[rank]):
            self._post(rank, step, now_us)

    def collect(self, rank: int, now_us: float) -> None:
        """Take what a rank's NIC has received and finished, and send what has become ready.

        Raises:
            CollectiveFailed: a message ended with an error.
        """
        nic = self._nics[rank]
        for done in nic.poll_completions():
            if done.status is not Status.OK:
                raise CollectiveFailed(f"rank {rank}: a message ended with status {done.status}")
        for arrival in nic.poll_arrivals():
            step, odd = divmod(arrival.qpn - self._first_qpn, 2)
            if odd and 0 <= step < self._steps:
                self._take(rank, step, arrival.time_us, now_us)

    def _take(self, rank: int, step: int, arrived_us: float, now_us: float) -> None:
        sender = (rank - 1) % self._ranks
        self.records[sender, step].arrived_us = arrived_us
        self._left -= 1
        landing = self._landings[rank].buffer
        assert landing is not None
        count = self._chunk // ELEMENT.itemsize
        came = np.frombuffer(landing, ELEMENT, count, step * self._chunk)
        part = self._part(rank, (sender - step) % self._ranks)
        if step < self._ranks - 1:
            part += came
        else:
            part[:] = came
        if step + 1 == self._steps:
            return
        if self._started_us[rank] is None:
            self._early[rank].append(step + 1)
        else:
            self._post(rank, step + 1, now_us)

    def _part(self, rank: int, chunk: int) -> Data:
        count = self._chunk // ELEMENT.itemsize
        return self._buffers[rank][chunk * count : (chunk + 1) * count]

    def _post(self, rank: int, step: int, now_us: float) -> None:
        sport = self._sport(rank, step)
        request = self._pairs[rank][step][0].post_write(
            self._part(rank, (rank - step) % self._ranks).tobytes(),
            sport=sport,
            raddr=step * self._chunk,
            rkey=RKEY,
            now_us=now_us,
        )
        self.records[rank, step] = StepRecord(rank, step, sport, now_us, request)

    # -- what came of it

    @property
    def done(self) -> bool:
        """Every chunk has arrived everywhere."""
        return self._left == 0

    def progress(self) -> str:
        """Say how far it is, for an error text."""
        total = self._ranks * self._steps
        return f"{total - self._left} of {total} messages arrived"

    def check_sums(self) -> None:
        """Compare every rank's result with the sum.

        Raises:
            CollectiveFailed: one differs; the text says where.
        """
        for rank, result in enumerate(self._buffers):
            wrong = np.flatnonzero(result != self._expected)
            if wrong.size:
                raise CollectiveFailed(
                    f"rank {rank}: {wrong.size} of {result.size} elements of the sum are wrong, "
                    f"the first at {int(wrong[0])}"
                )

    @property
    def started_us(self) -> float:
        """Start of the first rank."""
        return min(at for at in self._started_us if at is not None)

    @property
    def completion_us(self) -> float:
        """From the start of the first rank to the arrival of the last chunk: CCT."""
        return max(r.arrived_us or 0.0 for r in self.records.values()) - self.started_us

    def traffic(self) -> Traffic:
        """Return what the queue pairs counted so far."""
        return Traffic.of([pair for pairs in self._pairs for pair in pairs])

    def close(self) -> None:
        """Take the queue pairs away."""
        for rank, pairs in enumerate(self._pairs):
            for tx, rx in pairs:
                self._nics[rank].destroy_qp(tx.qpn)
                self._nics[self._after(rank)].destroy_qp(rx.qpn)
        for nic in self._nics:
            nic.poll_completions()
            nic.poll_arrivals()


class BackgroundFlow:
    """An endless stream of untagged RDMA WRITEs from one NIC to another, under DCQCN."""

    QUEUED: Final = 2

    def __init__(
        self,
        sender: SoftRnic,
        receiver: SoftRnic,
        setting: QpSetting,
        *,
        qpn: int,
        message_bytes: int,
    ) -> None:
        """Make the queue pairs; ``qpn`` also decides the source port, and so ECMP's choice."""
        self._sender, self._receiver = sender, receiver
        self._message = message_bytes
        self.sport = 0
        """UDP source port of its packets, once it has started."""
        self._stopped = True
        options = setting.options()
        self.tx = sender.create_qp(qpn, receiver.ip, qpn, setting.dcqcn, **options)
        self.rx = receiver.create_qp(qpn, sender.ip, qpn, setting.dcqcn, **options)

    def start(self, now_us: float) -> None:
        """Begin to send."""
        self._stopped = False
        for _ in range(self.QUEUED):
            self._post(now_us)

    def _post(self, now_us: float) -> None:
        self.sport = self.tx.post_write(self._message, now_us=now_us).sport

    def collect(self, now_us: float) -> None:
        """Take completions and keep the queue filled."""
        for done in self._sender.poll_completions():
            if done.status is not Status.OK:
                raise CollectiveFailed(f"background flow: ended with status {done.status}")
            if not self._stopped:
                self._post(now_us)
        self._receiver.poll_arrivals()

    @property
    def traffic(self) -> Traffic:
        """What it counted so far."""
        return Traffic.of([(self.tx, self.rx)])

    def close(self) -> None:
        """End it at once."""
        self._stopped = True
        self._sender.destroy_qp(self.tx.qpn)
        self._receiver.destroy_qp(self.rx.qpn)
        for nic in (self._sender, self._receiver):
            nic.poll_completions()
            nic.poll_arrivals()
