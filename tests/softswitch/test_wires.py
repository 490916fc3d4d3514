"""Wires: frames in, frames out, and clear words where one cannot be set up."""

from __future__ import annotations

import select
import socket
import struct
from pathlib import Path

import pytest

from ringstep.softswitch.wires import (
    MemoryWire,
    PcapWire,
    PcapWriter,
    UdpWire,
    WireError,
    parse_wire,
    read_pcap,
)


def neighbour() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.settimeout(5)
    return made


def address(wire: UdpWire) -> tuple[str, int]:
    host, _, port = wire.describe().rpartition(":")
    return host, int(port)


def wait_readable(wire: UdpWire) -> None:
    assert select.select([wire.fileno()], [], [], 5)[0]


def test_udp_carries_one_frame_per_datagram_both_ways() -> None:
    with neighbour() as host:
        wire = UdpWire(("127.0.0.1", 0), host.getsockname())
        try:
            wire.send(b"out", 0)
            assert host.recv(2000) == b"out"
            host.sendto(b"in", address(wire))
            wait_readable(wire)
            assert wire.receive(0) == [b"in"]
            assert wire.receive(0) == []
        finally:
            wire.close()


def test_udp_ignores_strangers() -> None:
    with neighbour() as host, neighbour() as stranger:
        wire = UdpWire(("127.0.0.1", 0), host.getsockname())
        try:
            stranger.sendto(b"evil", address(wire))
            host.sendto(b"good", address(wire))
            wait_readable(wire)
            assert wire.receive(0) == [b"good"]
        finally:
            wire.close()


def test_udp_with_peer_port_0_answers_whoever_sent_last() -> None:
    wire = UdpWire(("127.0.0.1", 0), ("127.0.0.1", 0))
    try:
        wire.send(b"lost", 0)
        assert wire.tx_errors == 1
        with neighbour() as host:
            host.sendto(b"hello", address(wire))
            wait_readable(wire)
            assert wire.receive(0) == [b"hello"]
            wire.send(b"answer", 0)
            assert host.recv(2000) == b"answer"
    finally:
        wire.close()


def test_udp_survives_a_peer_that_went_away() -> None:
    with neighbour() as host:
        peer = host.getsockname()
    wire = UdpWire(("127.0.0.1", 0), peer)
    try:
        for _ in range(5):
            wire.send(b"x", 0)
            assert wire.receive(0) == []
    finally:
        wire.close()


def test_port_in_use_is_said() -> None:
    with neighbour() as host:
        port = host.getsockname()[1]
        with pytest.raises(WireError, match=rf"udp wire 127.0.0.1:{port} .*[Aa]ddress"):
            UdpWire(("127.0.0.1", port), ("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("udp:127.0.0.1:1", "none of udp:"),
        ("tcp:x,y", "none of udp:"),
        ("afpacket:", "none of udp:"),
        ("udp:nowhere,127.0.0.1:5", "'nowhere' is not HOST:PORT"),
        ("udp:127.0.0.1:70000,127.0.0.1:5", "is not HOST:PORT"),
        ("pcap:/no/such/file,/tmp/out", "cannot read /no/such/file"),
        ("pcap:same,same", "are the same"),
    ],
)
def test_descriptions_that_are_wrong(text: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        parse_wire(text)


def test_pcap_plays_at_the_recorded_pace_and_records(tmp_path: Path) -> None:
    source, sink = tmp_path / "in.pcap", tmp_path / "out.pcap"
    writer = PcapWriter(source)
    for at, frame in ((5_000_000, b"one"), (5_000_100, b"two"), (6_000_000, b"three")):
        writer.write(frame, at)
    writer.close()
    wire = PcapWire(source, sink)
    assert wire.receive(1000) == [b"one"]
    assert wire.next_arrival() == 1100
    assert wire.receive(1100) == [b"two"]
    assert wire.receive(1200) == []
    assert wire.receive(1_001_000) == [b"three"]
    assert wire.next_arrival() is None
    wire.send(b"sent", 7_000_001)
    wire.close()
    assert read_pcap(sink) == [(7_000_001.0, b"sent")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not a pcap file"),
        (b"\x0a\x0d\x0d\x0a" + bytes(40), "is not a pcap file"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 101), "link type 101"),
        (
            struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
            + struct.pack("<4I", 0, 0, 1, 9)
            + b"x",
            "cut frame",
        ),
    ],
)
def test_pcap_files_that_are_wrong(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "bad.pcap"
    path.write_bytes(data)
    with pytest.raises(WireError, match=reason):
        read_pcap(path)


def test_pcap_in_nanoseconds_and_big_endian(tmp_path: Path) -> None:
    path = tmp_path / "ns.pcap"
    head = struct.pack(">IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    path.write_bytes(head + struct.pack(">4I", 1, 500_000, 2, 2) + b"hi" + b"\0\0")
    assert read_pcap(path) == [(1_000_500.0, b"hi")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_frames_that_the_disk_does_not_take_are_lost_and_counted(tmp_path: Path) -> None:
    source = tmp_path / "in.pcap"
    PcapWriter(source).close()
    wire = PcapWire(source, Path("/dev/full"))
    for _ in range(3):
        wire.send(bytes(60_000), 0)
    wire.close()
    assert wire.tx_errors >= 3


def test_memory_wire_moves_frames() -> None:
    wire = MemoryWire()
    assert wire.next_arrival() is None
    wire.to_switch.extend([b"a", b"b"])
    assert wire.next_arrival() == 0
    assert wire.receive(0) == [b"a", b"b"]
    wire.send(b"c", 0)
    assert list(wire.from_switch) == [b"c"]
