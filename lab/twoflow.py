"""Hosts of the two-flow experiment: three software RNICs, and the pair of flows they exchange.

Hosts ``a`` and ``b`` send to ``r``, all behind one switch; the port to ``r`` is the bottleneck.
Each flow is one RDMA WRITE on a fresh QP (progress mode ``per_step``), tagged with its step in the
UDP source port. The QP numbers at ``r`` decide to which job the switch counts the flow, so the runs
with and without the marker take turns on the same switch without touching its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from ringstep.hostlib.dcqcn import DcqcnParams
from ringstep.hostlib.rnic import QueuePair, SoftRnic, Status, WorkRequest
from ringstep.lab.pace import RETRY_LIMIT
from ringstep.lab.results import FlowRun
from ringstep.lab.scenario import Mode, Starts

SWITCH_MAC: Final = 0x02_00_00_00_FF_01
HOSTS: Final = ("a", "b", "r")
HOST_PORTS: Final[Mapping[str, int]] = {"a": 1, "b": 2, "r": 3}
BOTTLENECK_PORT: Final = HOST_PORTS["r"]
MTU_PAYLOAD: Final = 1024
_WRITE_MIDDLE_FRAME_BYTES: Final = 14 + 20 + 8 + 12 + MTU_PAYLOAD + 4

JOB_QPNS: Final[Mapping[Mode, tuple[int, int]]] = {
    Mode.IDEAL: (0x100, 0x101),
    Mode.DCQCN: (0x100, 0x101),
    Mode.MARKER: (0x200, 0x201),
}
"""QP numbers at ``r`` of flow A and flow B."""


def host_mac(name: str) -> int:
    """Return a host's MAC address."""
    return 0x02_00_00_00_00_00 | HOST_PORTS[name]


def host_ip(name: str) -> IPv4Address:
    """Return a host's address."""
    return IPv4Address(f"10.0.0.{HOST_PORTS[name]}")


def packets_for(duration_ms: float, rate_bps: float) -> int:
    """Return how many full packets keep a link of ``rate_bps`` busy for ``duration_ms``."""
    return max(1, round(duration_ms * 1e-3 * rate_bps / (8 * _WRITE_MIDDLE_FRAME_BYTES)))


class FlowFailed(RuntimeError):
    """A flow ended with an error, or did not end; the text says which and how far it came."""


@dataclass(frozen=True, slots=True)
class HostParams:
    """What the hosts' NICs do."""

    line_rate_bps: float
    dcqcn: DcqcnParams
    packets: int
    """Length of each flow in packets of 1024 bytes."""
    ack_interval: int = 16
    rto_us: float = 400_000.0
    pacing_slack_us: float = 2_000.0


@dataclass(slots=True)
class _Flow:
    sender: str
    qpn: int
    step: int
    start_us: float | None
    """On the run's clock; None: when the other flow has ended."""
    tx: QueuePair
    rx: QueuePair
    request: WorkRequest | None = None
    started_us: float = 0.0
    ended_us: float | None = None


class Pair:
    """One run: flow A (``step``) from host ``a``, flow B (``step + 1``) from host ``b``.

    Sans-IO: whoever drives it moves frames between the NICs and the switch, and calls
    :meth:`start_due` and :meth:`collect` with the time.
    """

    def __init__(
        self,
        nics: Mapping[str, SoftRnic],
        params: HostParams,
        mode: Mode,
        at: Starts,
        step: int,
        origin_us: float,
    ) -> None:
        self._nics = nics
        self._params = params
        self._origin = origin_us
        qpn_a, qpn_b = JOB_QPNS[mode]
        if mode is Mode.IDEAL:
            self._a = self._connect("a", qpn_a, step, origin_us)
            self._b = self._connect("b", qpn_b, step + 1, None)
        else:
            self._a = self._connect("a", qpn_a, step, origin_us + at.a_ms * 1e3)
            self._b = self._connect("b", qpn_b, step + 1, origin_us + at.b_ms * 1e3)
        self._flows = (self._a, self._b)
        self._closed = False

    def _connect(self, sender: str, qpn: int, step: int, start_us: float | None) -> _Flow:
        p = self._params
        options = {
            "mtu_payload": MTU_PAYLOAD,
            "ack_interval": p.ack_interval,
            "rto_us": p.rto_us,
            "retry_limit": RETRY_LIMIT,
        }
        tx = self._nics[sender].create_qp(qpn, host_ip("r"), qpn, p.dcqcn, **options)  # type: ignore[arg-type]
        rx = self._nics["r"].create_qp(qpn, host_ip(sender), qpn, p.dcqcn, **options)  # type: ignore[arg-type]
        return _Flow(sender, qpn, step, start_us, tx, rx)

    @property
    def done(self) -> bool:
        """Both flows have ended."""
        return all(flow.ended_us is not None for flow in self._flows)

    def start_times(self) -> list[float]:
        """Return when flows are due on the run's clock."""
        return [flow.start_us for flow in self._flows if flow.start_us is not None]

    def start_due(self, now_us: float) -> None:
        """Post the flows whose time has come; nothing once the pair is closed."""
        if self._closed:
            return
        for flow in self._flows:
            if flow.request is None and flow.start_us is not None and flow.start_us <= now_us:
                flow.started_us = now_us
                flow.request = flow.tx.post_write(
                    self._params.packets * MTU_PAYLOAD, step=flow.step, now_us=now_us
                )

    def collect(self, now_us: float) -> None:
        """Take completions; the end of A starts B where B waits for it.

        Raises:
            FlowFailed: a flow completed in error.
        """
        for flow in self._flows:
            request = flow.request
            if flow.ended_us is not None or request is None or request.status is None:
                continue
            if request.status is not Status.OK:
                raise FlowFailed(
                    f"flow {flow.sender} ended with status {request.status}: {self.progress()}"
                )
            flow.ended_us = request.acked_us if request.acked_us is not None else now_us
            if self._b.request is None and self._b.start_us is None:
                self._b.start_us = now_us
                self.start_due(now_us)

    def close(self) -> None:
        """Take the QPs away."""
        self._closed = True
        for flow in self._flows:
            self._nics[flow.sender].destroy_qp(flow.qpn)
            self._nics["r"].destroy_qp(flow.qpn)
        for nic in self._nics.values():
            nic.poll_completions()
            nic.poll_arrivals()

    def progress(self) -> str:
        """Say how far both flows are, for an error text."""
        return ", ".join(
            f"flow {f.sender}: {f.rx.stats.rx_bytes // MTU_PAYLOAD} of {self._params.packets} "
            f"packets in order, {f.tx.stats.tx_packets} sent, {f.tx.stats.rtos} timeouts"
            for f in self._flows
        )

    def results(self) -> tuple[FlowRun, FlowRun]:
        """Return what A and B did; both must be done."""
        first = min(flow.started_us for flow in self._flows)
        return _flow_run(self._a, first), _flow_run(self._b, first)


def _flow_run(flow: _Flow, first_us: float) -> FlowRun:
    if flow.ended_us is None:
        raise FlowFailed(f"flow {flow.sender} has not ended")
    return FlowRun(
        start_ms=round((flow.started_us - first_us) * 1e-3, 3),
        completion_ms=round((flow.ended_us - flow.started_us) * 1e-3, 3),
        packets=flow.tx.stats.tx_packets,
        retransmissions=flow.tx.stats.retransmissions,
        ce_received=flow.rx.stats.ce_rx,
        cnps_received=flow.tx.stats.cnps_rx,
    )


def make_nics(params: HostParams) -> dict[str, SoftRnic]:
    """Return the three hosts' NICs by host name."""
    return {
        name: SoftRnic(
            host_mac(name),
            host_ip(name),
            SWITCH_MAC,
            params.line_rate_bps,
            pacing_slack_us=params.pacing_slack_us,
        )
        for name in HOSTS
    }
