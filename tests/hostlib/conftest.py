"""Two software NICs on a link in virtual time."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from ringstep.hostlib.rnic import Arrival, Completion, QueuePair, SoftRnic
from ringstep.hostlib.wires import VirtualNet
from ringstep.protocol.rocev2 import RoceFrame, parse

MAC_A, MAC_B = 0x02_00_00_00_00_0A, 0x02_00_00_00_00_0B
QPN_A, QPN_B = 0x11, 0x22

Hook = Callable[[bytes, float], Iterable[tuple[float, bytes]]]


@dataclass
class Pair:
    """NIC ``a`` sends to NIC ``b``; every frame on the way is noted before the hooks see it."""

    net: VirtualNet
    a: SoftRnic
    b: SoftRnic
    qa: QueuePair
    qb: QueuePair
    to_b: list[RoceFrame] = field(default_factory=list)
    to_a: list[RoceFrame] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)

    def run(self, deadline_us: float = 60e6) -> None:
        """Run until nothing is left to happen."""
        assert self.net.run(deadline_us=deadline_us), "still busy at the deadline"
        self.completions += self.a.poll_completions()
        self.arrivals += self.b.poll_arrivals()


@pytest.fixture
def make_pair() -> Callable[..., Pair]:
    def make(
        *,
        a_to_b: Hook | None = None,
        b_to_a: Hook | None = None,
        delay_us: float = 2.0,
        line_rate_bps: float = 10e9,
        ip_a: str = "10.0.0.1",
        ip_b: str = "10.0.0.2",
        initial_psn: int = 0,
        **options: Any,
    ) -> Pair:
        a = SoftRnic(MAC_A, ip_a, MAC_B, line_rate_bps)
        b = SoftRnic(MAC_B, ipaddress.ip_address(ip_b), MAC_A, line_rate_bps)
        options = {"rto_us": 500.0, "mtu_payload": 256, **options}
        qa = a.create_qp(QPN_A, ip_b, QPN_B, initial_psn=initial_psn, **options)
        qb = b.create_qp(QPN_B, ip_a, QPN_A, initial_psn=initial_psn, **options)
        net = VirtualNet()
        pair = Pair(net, a, b, qa, qb)

        def noted(frames: list[RoceFrame], hook: Hook | None) -> Hook:
            def on_frame(frame: bytes, now_us: float) -> Iterable[tuple[float, bytes]]:
                frames.append(parse(frame))
                return [(0.0, frame)] if hook is None else hook(frame, now_us)

            return on_frame

        net.add_host("a", a)
        net.add_host("b", b)
        net.link(
            "a",
            "b",
            delay_us,
            a_to_b=noted(pair.to_b, a_to_b),
            b_to_a=noted(pair.to_a, b_to_a),
        )
        return pair

    return make
