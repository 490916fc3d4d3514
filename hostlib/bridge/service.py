"""The bridge's process: one NIC, one loop, a Unix socket where engines open connections."""

from __future__ import annotations

import errno
import mmap
import secrets
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ringstep.hostlib.bridge.attach import Attachment, HairpinPort
from ringstep.hostlib.bridge.connection import Connection
from ringstep.hostlib.bridge.messages import Endpoint
from ringstep.hostlib.bridge.sockets import Handler, Sockets, listen
from ringstep.hostlib.dcqcn import DcqcnParams
from ringstep.hostlib.rnic import QueuePair, SoftRnic
from ringstep.hostlib.tagging import PortPerStep, StepTagger
from ringstep.hostlib.wires import HostLoop, monotonic_us

__all__ = ["Bridge", "BridgeConfig"]

_LINGER_US: Final = 1e6
"""How long queue pairs outlive their connection, to acknowledge what the peer sends again."""
_STOP_US: Final = 500e3
_MAX_CONNECTIONS: Final = 4096
_ACCEPTS: Final = 64
"""Connections accepted before the others have their turn."""


@dataclass(frozen=True)
class BridgeConfig:
    """What a bridge does with the messages it is handed. Sizes are powers of two."""

    tagger: StepTagger = field(default_factory=PortPerStep)
    job_tag: int = 0
    dcqcn: DcqcnParams | None = None
    line_rate_bps: float = 100e9
    gateway_mac: int | None = None
    """First hop of all frames; None: they go straight to the peer's NIC."""
    initial_psn: int = 0
    """The same for every queue pair of a job, where switches follow it by anchors."""
    dscp: int = 0
    ring_log2: int = 22
    """log2 of the bytes of a connection that are on their way or wait for an engine."""
    window_bytes: int = 256 << 10
    """Bytes in flight of one queue pair."""
    rto_us: float = 100e3
    peer_timeout_us: float = 30e6
    """A peer that is silent for so long is given up."""

    @property
    def piece_log2(self) -> int:
        """log2 of the longest WRITE: a sender that waits for room must miss half a ring."""
        return self.ring_log2 - 1


class Bridge:
    """A software RNIC for the engines of one host. Use it as a context manager."""

    def __init__(
        self,
        path: Path,
        attachment: Attachment,
        config: BridgeConfig | None = None,
        *,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Listen at ``path``, which only this user may connect to.

        Args:
            path: of the Unix socket; what an ended bridge left there is replaced.
            attachment: the wire and the NIC's addresses; closed with the bridge.
            config: what to do with messages.
            log: told of connections that were refused or broke.

        Raises:
            SocketInUse: another process listens there. OSError: the path cannot be bound.
            ValueError: a number of ``config`` outside its range, or the job tag does not fit.
        """
        config = BridgeConfig() if config is None else config
        if not 13 <= config.ring_log2 <= 30:
            raise ValueError(f"a ring of 2^{config.ring_log2} bytes: 2^13 to 2^30 are possible")
        if config.rto_us <= 0 or config.peer_timeout_us < config.rto_us:
            raise ValueError("the peer's timeout must be above the retransmission timeout, above 0")
        config.tagger.place(config.job_tag, 0)
        self.config = config
        self.attachment = attachment
        self.tagger = config.tagger
        self.job_tag = config.job_tag
        self.log = (lambda text: None) if log is None else log
        self.counts: Counter[str] = Counter()
        self.rnic = SoftRnic(
            attachment.mac,
            attachment.ip,
            attachment.mac if config.gateway_mac is None else config.gateway_mac,
            config.line_rate_bps,
        )
        # A NIC without regions accepts every WRITE: have one that nobody knows the key of.
        self.rnic.register_memory(0, va=0, rkey=0)
        # Random, so that late packets of an earlier bridge meet no queue pair.
        self._next_qpn = 0x100 + secrets.randbelow(1 << 23)
        self._retries = max(1, min(1 << 16, round(config.peer_timeout_us / config.rto_us)))
        self._by_qpn: dict[int, Connection] = {}
        self._connections: dict[Connection, Endpoint | None] = {}
        self._retiring: set[Connection] = set()
        self._totals: Counter[str] = Counter()
        self._stopping = False
        self._listener = listen(path)
        self.path = path
        self._inode = path.stat().st_ino
        self._sockets = Sockets()
        self._sockets.watch(self._listener.fileno(), self._on_accept)
        self._loop = HostLoop(
            [(HairpinPort(self.rnic), attachment.wire), (self._sockets, self._sockets)],
            on_progress=self._progress,
        )
        self._loop.call_at(monotonic_us() + config.peer_timeout_us / 3, self._keep_alive)

    # -- what connections ask for ---------------------------------------------------------------

    @property
    def now_us(self) -> float:
        """Present time of the loop's clock."""
        return monotonic_us()

    def watch(self, sock: socket.socket, handler: Handler) -> None:
        """Call ``handler`` when ``sock`` can be read."""
        self._sockets.watch(sock.fileno(), handler)

    def rewatch(self, sock: socket.socket, *, reading: bool, writing: bool) -> None:
        """Change what the handler of ``sock`` waits for."""
        self._sockets.rewatch(sock.fileno(), reading=reading, writing=writing)

    def unwatch(self, sock: socket.socket) -> None:
        """Forget ``sock``, which is about to be closed."""
        self._sockets.unwatch(sock.fileno())

    def reserve(self, connection: Connection) -> Endpoint:
        """Return an endpoint with numbers that nobody uses. Raises OSError if there are none."""
        need = 1 + self.tagger.qps
        for _ in range(1024):
            first = self._next_qpn
            if first + need >= 1 << 24:
                first = 0x100
            self._next_qpn = first + need
            if not any(qpn in self._by_qpn for qpn in range(first, first + need)):
                break
        else:
            raise OSError(errno.ENOBUFS, f"no {need} queue pair numbers in a row are free")
        for qpn in range(first, first + need):
            self._by_qpn[qpn] = connection
        config, attachment = self.config, self.attachment
        endpoint = Endpoint(
            ip=attachment.ip,
            mac=attachment.mac,
            qpn=first,
            psn=config.initial_psn,
            data_qps=self.tagger.qps,
            mtu=attachment.mtu,
            layout=self.tagger.layout,
            ring_log2=config.ring_log2,
            piece_log2=config.piece_log2,
            wire=attachment.udp,
        )
        self._connections[connection] = endpoint
        return endpoint

    def connect(self, own: Endpoint, peer: Endpoint) -> tuple[list[QueuePair], mmap.mmap]:
        """Make the queue pairs, control first, and the ring that ``peer`` writes to."""
        config = self.config
        if self.attachment.route is not None and peer.wire is not None and peer.ip != own.ip:
            self.attachment.route(peer.ip, peer.wire)
        # What goes to the own NIC does not pass the first hop.
        straight = config.gateway_mac is None or peer.ip == own.ip
        qps = [
            self.rnic.create_qp(
                own.qpn + index,
                peer.ip,
                peer.qpn + index,
                config.dcqcn,
                remote_mac=peer.mac if straight else None,
                mtu_payload=own.mtu,
                initial_psn=own.psn,
                remote_psn=peer.psn,
                rto_us=config.rto_us,
                retry_limit=self._retries,
                window_bytes=config.window_bytes,
                layout=own.layout,
                job_tag=config.job_tag,
                dscp=config.dscp,
            )
            for index in range(1 + own.data_qps)
        ]
        length = (1 << own.ring_log2) + (1 << own.piece_log2)
        # Unlike a bytearray it takes no memory where nothing was written yet.
        ring = mmap.mmap(-1, length)
        for rkey in (own.rkey, own.rkey + 1):
            self.rnic.register_memory(length, va=0, rkey=rkey, discard=True).buffer = ring
        self.counts["connected"] += 1
        return qps, ring

    def retire(self, connection: Connection) -> None:
        """Remove a connection once its peer has what was sent, and no longer sends again."""
        if connection in self._retiring or connection not in self._connections:
            return
        self._retiring.add(connection)

        def check() -> None:
            if connection.drained:
                self._forget(connection)
            else:
                self._loop.call_at(self.now_us + _LINGER_US, check)

        self._loop.call_at(self.now_us + _LINGER_US, check)

    def _forget(self, connection: Connection) -> None:
        endpoint = self._connections.pop(connection)
        self._retiring.discard(connection)
        connection.release()
        if endpoint is None:
            return
        for qpn in range(endpoint.qpn, endpoint.qpn + 1 + endpoint.data_qps):
            del self._by_qpn[qpn]
            qp = self.rnic.qp(qpn)
            if qp is not None:
                self._totals.update(qp.stats.as_dict())
                self.rnic.destroy_qp(qpn)
        for rkey in (endpoint.rkey, endpoint.rkey + 1):
            with suppress(KeyError):
                self.rnic.deregister_memory(rkey)

    # -- the loop -------------------------------------------------------------------------------

    def _on_accept(self, readable: bool, writable: bool) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: trying again at once would keep the loop busy.
                self.log(f"cannot accept a connection: {error.strerror}; again in a second")
                self._sockets.rewatch(self._listener.fileno(), reading=False)
                self._loop.call_at(self.now_us + 1e6, self._accept_again)
                return
            if len(self._connections) >= _MAX_CONNECTIONS:
                self.log(f"a connection was closed at once: {_MAX_CONNECTIONS} are open")
                sock.close()
                continue
            sock.setblocking(False)
            self._connections[Connection(self, sock)] = None

    def _accept_again(self) -> None:
        self._sockets.rewatch(self._listener.fileno(), reading=True)

    def _progress(self) -> None:
        by_qpn = self._by_qpn
        for arrival in self.rnic.poll_arrivals():
            connection = by_qpn.get(arrival.qpn)
            if connection is not None:
                connection.on_arrival(arrival)
        for completion in self.rnic.poll_completions():
            connection = by_qpn.get(completion.qpn)
            if connection is not None:
                connection.on_completion(completion)

    def _keep_alive(self) -> None:
        for connection in list(self._connections):
            connection.keep_alive()
        self._loop.call_at(self.now_us + self.config.peer_timeout_us / 3, self._keep_alive)

    def call_every(self, seconds: float, action: Callable[[], None]) -> None:
        """Run ``action`` in the loop again and again."""

        def act() -> None:
            action()
            self._loop.call_at(self.now_us + seconds * 1e6, act)

        self._loop.call_at(self.now_us + seconds * 1e6, act)

    def run(self) -> None:
        """Serve until :meth:`stop`; then the peers are told and have half a second to hear it."""
        self._loop.run(lambda: self._stopping)
        for connection in list(self._connections):
            connection.end()
        self._loop.run(
            lambda: all(connection.drained for connection in self._connections),
            deadline_us=self.now_us + _STOP_US,
        )

    def stop(self) -> None:
        """Make :meth:`run` return; may be called from a signal handler or another thread."""
        self._stopping = True
        self._loop.stop()

    def stats(self) -> dict[str, Any]:
        """Return counters of messages, queue pairs and the NIC, all since the start."""
        queue_pairs = Counter(self._totals)
        for qp in self.rnic.qps.values():
            queue_pairs.update(qp.stats.as_dict())
        nic = self.rnic.stats
        names = ("connected", "refused", "broken", "messages_sent", "messages_received",
                 "untagged_sent", "untagged_received")  # fmt: skip
        return {
            "connections": len(self._connections) - len(self._retiring),
            **{name: self.counts[name] for name in names},
            "queue_pairs": dict(queue_pairs),
            "nic": {
                "ip": str(self.attachment.ip),
                "rx_frames": nic.rx_frames,
                "tx_frames": nic.tx_frames,
                "drops": dict(nic.drops),
                "lost_on_wire": getattr(self.attachment.wire, "lost", 0),
            },
        }

    def close(self) -> None:
        """Close the wire and every socket, and remove the socket's path."""
        for connection in list(self._connections):
            connection.end()
        # Another bridge may have taken the path over.
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        self._listener.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
