"""Wires and the loops that drive NICs on them."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.rnic import SoftRnic, Status
from ringstep.hostlib.wires import AfPacketWire, HostLoop, UdpWire, VirtualNet, monotonic_us


def udp_cable() -> tuple[UdpWire, UdpWire]:
    left, right = UdpWire(), UdpWire()
    left.connect(right.address)
    right.connect(left.address)
    return left, right


def wait_for(wire: UdpWire, count: int) -> list[bytes]:
    frames: list[bytes] = []
    while len(frames) < count:
        readable, _, _ = select.select([wire], [], [], 10)
        assert readable, f"{len(frames)} of {count} frames came"
        frames += wire.receive()
    return frames


def nics() -> tuple[SoftRnic, SoftRnic]:
    return (
        SoftRnic(0xA, "10.0.0.1", 0xB, 400e6),
        SoftRnic(0xB, "10.0.0.2", 0xA, 400e6),
    )


def test_frame_longer_than_a_datagram_is_lost_and_counted() -> None:
    left, right = udp_cable()
    with left, right:
        left.send(bytes(65_520))
        left.send(b"next")
        assert wait_for(right, 1) == [b"next"]
        assert left.lost == 1


def test_a_datagram_is_a_frame() -> None:
    left, right = udp_cable()
    with left, right:
        left.send(b"one")
        left.send(b"")
        left.send(bytes(9000))
        assert wait_for(right, 3) == [b"one", b"", bytes(9000)]
        assert right.receive() == []


def test_ipv6_loopback() -> None:
    try:
        left = UdpWire(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here ({error}); enable net.ipv6.conf.lo.disable_ipv6=0")
    with left, UdpWire(("::1", 0), left.address) as right:
        right.send(b"six")
        assert wait_for(left, 1) == [b"six"]


def test_a_stranger_is_not_heard() -> None:
    left, right = udp_cable()
    with left, right, UdpWire(peer=right.address) as stranger:
        stranger.send(b"stranger")
        left.send(b"friend")
        assert wait_for(right, 1) == [b"friend"]


def test_nobody_at_the_other_end_is_a_loss_not_an_error() -> None:
    gone = UdpWire()
    with UdpWire(peer=gone.address) as wire:
        gone.close()
        for _ in range(4):
            wire.send(b"hello?")
            wire.receive()
    with UdpWire() as loose:
        loose.send(b"hello?")
        assert loose.lost == 1


def test_a_port_in_use_is_named() -> None:
    with UdpWire() as wire:
        host, port = wire.address
        with pytest.raises(OSError, match=rf"UDP wire {host}:{port}: .*; choose another port"):
            UdpWire((host, port))


def test_two_nics_over_udp() -> None:
    a, b = nics()
    qa = a.create_qp(16, "10.0.0.2", 17, rto_us=200_000)
    b.create_qp(17, "10.0.0.1", 16)
    region = b.register_memory(50_000, va=0, rkey=1)
    left, right = udp_cable()
    with HostLoop([(a, left), (b, right)]) as loop:
        payload = os.urandom(50_000)
        posted: list[Any] = []
        loop.call_at(
            loop.now_us, lambda: posted.append(qa.post_write(payload, rkey=1, now_us=loop.now_us))
        )
        assert loop.run(lambda: bool(posted) and posted[0].done, deadline_us=loop.now_us + 30e6)
    assert posted[0].status is Status.OK
    assert bytes(region.buffer or b"") == payload


def test_stop_from_another_thread() -> None:
    a, _ = nics()
    loop = HostLoop([(a, UdpWire())])
    with loop:
        threading.Timer(0.01, loop.stop).start()
        assert loop.run() is False
    loop.stop()  # After closing: no effect, no error.


def test_the_deadline_ends_the_loop() -> None:
    a, _ = nics()
    with HostLoop([(a, UdpWire())]) as loop:
        end = loop.now_us + 1000
        assert loop.run(deadline_us=end) is False
        assert loop.now_us >= end


def test_progress_is_reported() -> None:
    a, _ = nics()
    rounds: list[int] = []
    with HostLoop([(a, UdpWire())], on_progress=lambda: rounds.append(1)) as loop:
        assert loop.run(lambda: len(rounds) >= 1)


def test_interrupt_leaves_no_port_behind() -> None:
    program = textwrap.dedent(
        """
        from ringstep.hostlib.rnic import SoftRnic
        from ringstep.hostlib.wires import HostLoop, UdpWire
        wire = UdpWire()
        nic = SoftRnic(1, "10.0.0.1", 2, 1e9)
        try:
            with HostLoop([(nic, wire)]) as loop:
                loop.call_at(0, lambda: print(wire.address[1], flush=True))
                loop.run()
        except KeyboardInterrupt:
            print("closed" if wire.fileno() == -1 else "open", flush=True)
        """
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "closed\n"
        assert process.wait(timeout=30) == 0
    with UdpWire(("127.0.0.1", port)):
        pass


def test_an_interface_over_af_packet() -> None:
    if not hasattr(socket, "AF_PACKET"):
        pytest.skip("AF_PACKET exists on Linux only")
    try:
        wire = AfPacketWire("lo")
    except PermissionError as error:
        pytest.skip(f"{error}")
    with wire:
        frame = bytes(12) + b"\x88\xb5" + b"ringstep test frame, local experimental EtherType" * 2
        wire.send(frame)
        seen: list[bytes] = []
        while frame not in seen:
            readable, _, _ = select.select([wire], [], [], 10)
            assert readable, "the frame did not come back over lo"
            seen += wire.receive()
        assert seen.count(frame) == 1


def test_an_unknown_interface_is_named() -> None:
    if not hasattr(socket, "AF_PACKET"):
        pytest.skip("AF_PACKET exists on Linux only")
    with pytest.raises(OSError, match="interface nosuch0:"):
        AfPacketWire("nosuch0")


def test_virtual_time_is_exact_and_takes_no_time() -> None:
    a, b = nics()
    qa = a.create_qp(16, "10.0.0.2", 17, rto_us=5e6)
    b.create_qp(17, "10.0.0.1", 16)
    net = VirtualNet()
    net.add_host("a", a)
    net.add_host("b", b)
    net.link("a", "b", 1e6)
    net.call_at(3.6e9, lambda: qa.post_write(8, now_us=net.now_us) and None)
    assert net.run()
    (done,) = a.poll_completions()
    (arrival,) = b.poll_arrivals()
    assert arrival.time_us == 3.6e9 + 1e6
    assert done.acked_us == 3.6e9 + 2e6


def test_a_virtual_net_runs_to_a_condition_or_a_deadline() -> None:
    a, b = nics()
    qa = a.create_qp(16, "10.0.0.2", 17)
    b.create_qp(17, "10.0.0.1", 16)
    net = VirtualNet()
    net.add_host("a", a)
    net.add_host("b", b)
    net.link("a", "b", 10.0)
    wr = qa.post_write(100_000)
    assert net.run(deadline_us=50.0) is False
    assert net.now_us == 50.0
    assert not wr.done
    assert net.run(lambda: wr.done)
    assert wr.status is Status.OK
    assert net.run() is True
    assert net.run(lambda: False) is False


def test_wiring_mistakes_are_named() -> None:
    a, _ = nics()
    net = VirtualNet()
    net.add_host("a", a)
    net.add_host("b", SoftRnic(2, "10.0.0.2", 1, 1e9))
    net.add_host("c", SoftRnic(3, "10.0.0.3", 1, 1e9))
    with pytest.raises(ValueError, match="a node 'a' already"):
        net.add_host("a", a)
    with pytest.raises(ValueError, match="no node 'd'; known: a, b, c"):
        net.link("a", "d")
    with pytest.raises(ValueError, match="port 0 only, not 1"):
        net.link(("a", 1), "b")
    with pytest.raises(ValueError, match="delay_us = -1"):
        net.link("a", "b", -1)
    net.link("a", "b")
    with pytest.raises(ValueError, match="port 0 of 'a' is connected already"):
        net.link("a", "c")
    net.now_us = 5.0
    with pytest.raises(ValueError, match="has passed"):
        net.call_at(1.0, lambda: None)


class Hub:
    """A switch that floods, with port 510 for what came from nowhere."""

    def __init__(self) -> None:
        self.out: list[tuple[int, bytes]] = []

    def receive(self, port: int, frame: bytes, now_us: float) -> None:
        self.out += [(other, frame) for other in (1, 2, 510) if other != port]

    def advance(self, now_us: float) -> list[tuple[int, bytes]]:
        out, self.out = self.out, []
        return out

    def next_departure(self) -> float | None:
        return float("-inf") if self.out else None


def test_a_tap_sees_what_leaves_a_port() -> None:
    a, b = nics()
    qa = a.create_qp(16, "10.0.0.2", 17)
    b.create_qp(17, "10.0.0.1", 16)
    hub, net = Hub(), VirtualNet()
    net.add_host("a", a)
    net.add_host("b", b)
    net.add_switch("s", hub)
    net.link("a", ("s", 1), 3.0)
    net.link("b", ("s", 2), 3.0)
    seen: list[float] = []
    net.tap(("s", 510), lambda frame, now_us: seen.append(now_us))
    with pytest.raises(ValueError, match="port 510 of 's' is connected already"):
        net.tap(("s", 510), lambda frame, now_us: None)
    with pytest.raises(ValueError, match="no switch 'a'; known: s"):
        net.tap(("a", 0), lambda frame, now_us: None)
    wr = qa.post_write(8)
    net.call_at(50.0, lambda: hub.receive(0, b"from the controller", 50.0))
    assert net.run()
    assert wr.status is Status.OK
    assert seen == [3.0, 9.0, 50.0]
    assert net.unconnected == 0
    assert dict(b.stats.drops) == {"not_roce": 1}


def test_the_clock_is_in_microseconds() -> None:
    first = monotonic_us()
    assert monotonic_us() >= first > 0
