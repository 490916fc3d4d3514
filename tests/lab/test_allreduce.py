"""The ring AllReduce over software RNICs, in virtual time: sums, overlap, loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from ringstep.hostlib.dcqcn import preset
from ringstep.hostlib.rnic import SoftRnic
from ringstep.hostlib.wires import VirtualNet
from ringstep.lab.allreduce import (
    BackgroundFlow,
    CollectiveFailed,
    QpSetting,
    RingAllReduce,
    chunk_bytes,
    make_data,
    register_landing,
    steps_of,
)
from ringstep.protocol.tag import TagLayout

RATE_BPS = 1e9
SETTING = QpSetting(
    dcqcn=preset("connectx", 10e9).scaled(10, 0.1), payload=256, ack_interval=4, rto_us=20_000
)
GATEWAY = 0x02_00_00_00_00_FF
Hook = Callable[[bytes, float], Iterable[tuple[float, bytes]]]


class Crossbar:
    """A switch without queues: frames leave at once, by destination address."""

    def __init__(self, ports: dict[bytes, tuple[int, int]]) -> None:
        self._ports = ports
        self._leaving: list[tuple[int, bytes]] = []

    def receive(self, _port: int, frame: bytes, _now_us: float) -> None:
        port, mac = self._ports[frame[30:34]]
        self._leaving.append((port, mac.to_bytes(6, "big") + frame[6:]))

    def advance(self, _now_us: float) -> list[tuple[int, bytes]]:
        leaving, self._leaving = self._leaving, []
        return leaving

    def next_departure(self) -> float | None:
        return 0.0 if self._leaving else None


class Rig:
    """N ranks around a crossbar."""

    def __init__(self, ranks: int, size: int, seed: int = 1, hook: Hook | None = None) -> None:
        self.net = VirtualNet()
        self.nics = [
            SoftRnic(0x02_00_00_00_00_10 + n, f"10.0.0.{n + 1}", GATEWAY, RATE_BPS)
            for n in range(ranks)
        ]
        ports = {nic.ip.packed: (n + 1, nic.mac) for n, nic in enumerate(self.nics)}
        self.net.add_switch("x", Crossbar(ports))
        for n, nic in enumerate(self.nics):
            self.net.add_host(f"h{n}", nic)
            self.net.link(f"h{n}", ("x", n + 1), 5.0, a_to_b=hook)
        chunk = chunk_bytes(size, ranks)
        self.data = make_data(ranks, chunk, seed)
        self.ring = RingAllReduce(
            self.nics,
            [register_landing(nic, ranks, chunk) for nic in self.nics],
            self.data,
            SETTING,
            first_qpn=0x100,
            sport=lambda _rank, step: TagLayout().sport(step),
        )

    def run(self, starts_us: list[float] | None = None) -> bool:
        for rank, at in enumerate(starts_us or [0.0] * len(self.nics)):
            self.net.call_at(at, lambda rank=rank: self.ring.start(rank, self.net.now_us))

        def done() -> bool:
            for rank in range(len(self.nics)):
                self.ring.collect(rank, self.net.now_us)
            return self.ring.done

        return self.net.run(done, deadline_us=10e6)


@pytest.mark.parametrize(("ranks", "size"), [(2, 64), (3, 1000), (4, 40_000), (8, 65_536)])
def test_every_rank_ends_with_the_sum(ranks: int, size: int) -> None:
    rig = Rig(ranks, size)
    assert rig.run()
    rig.ring.check_sums()
    assert len(rig.ring.records) == ranks * steps_of(ranks)
    assert rig.ring.traffic().dropped == 0
    assert rig.ring.completion_us > 0


def test_a_late_rank_sends_what_came_before_its_start() -> None:
    rig = Rig(4, 16_384)
    assert rig.run([0.0, 50_000.0, 0.0, 30_000.0])
    rig.ring.check_sums()
    late = rig.ring.records[1, 0].posted_us
    # Its predecessor's chunk was there already, so both of its first steps leave at its start.
    assert rig.ring.records[1, 1].posted_us == late == 50_000.0


def test_loss_is_repaired_and_counted() -> None:
    sent = 0

    def lossy(frame: bytes, _now_us: float) -> Iterable[tuple[float, bytes]]:
        nonlocal sent
        sent += 1
        return [] if sent % 37 == 0 else [(0.0, frame)]

    rig = Rig(4, 40_000, hook=lossy)
    assert rig.run()
    rig.ring.check_sums()
    traffic = rig.ring.traffic()
    assert traffic.dropped > 0
    assert traffic.retransmissions >= traffic.dropped


def test_a_wrong_sum_is_found() -> None:
    rig = Rig(2, 1024)
    assert rig.run()
    rig.ring._buffers[1][3] += 1
    with pytest.raises(CollectiveFailed, match="rank 1: 1 of 256 elements"):
        rig.ring.check_sums()


def test_a_collective_leaves_the_nics_as_they_were() -> None:
    rig = Rig(3, 3000)
    assert rig.run()
    rig.ring.close()
    assert all(not nic.qps for nic in rig.nics)


def test_data_of_another_seed_is_other_data() -> None:
    first, again, other = (make_data(2, 64, seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_background_flow_goes_on_until_it_is_closed() -> None:
    rig = Rig(3, 3000)
    # As on the lab's background hosts: without a region every WRITE is taken.
    rig.nics[2]._regions.clear()
    flow = BackgroundFlow(rig.nics[0], rig.nics[2], SETTING, qpn=0x20, message_bytes=2048)
    rig.net.call_at(0.0, lambda: flow.start(rig.net.now_us))

    def done() -> bool:
        flow.collect(rig.net.now_us)
        return flow.traffic.packets > 100

    assert rig.net.run(done, deadline_us=1e6)
    flow.close()
    assert 0x20 not in rig.nics[0].qps
