"""Loss, slow engines, garbage, peers that go: data stays whole, or the socket closes."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.hostlib.bridge import (
    Bridge,
    BridgeConfig,
    Endpoint,
    EndpointError,
    SocketInUse,
    attach,
)
from ringstep.hostlib.tagging import QpPool
from ringstep.protocol.tag import TagLayout

from .conftest import Connect, MakeCable, StartBridge
from .stand_in import UNTAGGED, Engine


@pytest.mark.parametrize("pool", [False, True], ids=["port_per_step", "qp_pool"])
def test_loss_and_disorder_on_the_wire_heal(
    start: StartBridge, connect: Connect, make_cable: MakeCable, pool: bool
) -> None:
    draw = random.Random(5)
    held: list[tuple[int, bytes]] = []

    def hook(side: int, frame: bytes) -> list[bytes]:
        luck = draw.random()
        if luck < 0.04:
            return []
        if luck < 0.06:
            return [frame, frame]
        if luck < 0.10:
            held.append((side, frame))
            return []
        late = [old for old_side, old in held if old_side == side]
        held[:] = [(s, f) for s, f in held if s != side]
        return [frame, *late]

    cable = make_cable(hook)
    options: dict[str, Any] = {"rto_us": 5e3, "ring_log2": 15, "window_bytes": 16 << 10}
    if pool:
        options["tagger"] = QpPool.of(4)
    a, b = (start(cable.wire(side), mtu=1024, **options) for side in (0, 1))
    left, right = connect(a, b)
    sizes = random.Random(6)
    sent = [(os.urandom(sizes.choice((1, 900, 5000, 30_000))), step) for step in range(60)]
    sender = threading.Thread(target=lambda: [left.send(*one) for one in sent])
    sender.start()
    assert [right.receive() for _ in sent] == sent
    sender.join()
    assert a.bridge.stats()["queue_pairs"]["retransmissions"] > 0
    assert a.bridge.stats()["broken"] == 0


def test_a_slow_engine_holds_its_peer_back_and_loses_nothing(
    start: StartBridge, connect: Connect
) -> None:
    a, b = (start(ring_log2=16) for _ in range(2))
    left, right = connect(a, b)
    left.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
    sent = [(bytes([index]) * 10_000, index) for index in range(100)]
    done = threading.Event()

    def send() -> None:
        for one in sent:
            left.send(*one)
        done.set()

    sender = threading.Thread(target=send)
    sender.start()
    # A megabyte does not fit into the ring and the buffers of the sockets.
    assert not done.wait(0.5)
    assert b.bridge.stats()["queue_pairs"]["rx_bytes"] <= 1 << 19
    # The other direction is not held back.
    right.send(b"back", 1)
    assert left.receive() == (b"back", 1)
    assert [right.receive() for _ in sent] == sent
    sender.join()


def test_what_an_engine_sent_before_it_closed_still_arrives(
    start: StartBridge, connect: Connect
) -> None:
    a, b = start(), start()
    left, right = connect(a, b)
    right.send(b"never read", 1)
    sent = [(os.urandom(50_000), index) for index in range(10)]
    sender = threading.Thread(target=lambda: ([left.send(*one) for one in sent], left.close()))
    sender.start()
    assert [right.receive() for _ in sent] == sent
    sender.join()
    assert right.closed()
    # The bridges go on.
    again = connect(a, b)
    again[0].send(b"again", 1)
    assert again[1].receive() == (b"again", 1)


def test_half_a_message_is_never_handed_on_as_a_whole(start: StartBridge, connect: Connect) -> None:
    a, b = start(), start()
    left, right = connect(a, b)
    left.send(b"whole", 1)
    left.sock.sendall(struct.pack("=II", 1000, 2) + b"half")
    left.close()
    assert right.receive() == (b"whole", 1)
    assert right.closed()


def test_a_bridge_that_stops_closes_its_peers_sockets(start: StartBridge, connect: Connect) -> None:
    a, b = start(), start()
    left, right = connect(a, b)
    a.stop()
    assert left.closed()
    assert right.closed()
    assert not a.path.exists()


def test_a_peer_that_does_not_answer_breaks_the_connection(
    start: StartBridge, connect: Connect, make_cable: MakeCable
) -> None:
    cut = threading.Event()
    cable = make_cable(lambda side, frame: [] if cut.is_set() else [frame])
    options = {"rto_us": 20e3, "peer_timeout_us": 1e6}
    a, b = (start(cable.wire(side), **options) for side in (0, 1))
    left, right = connect(a, b)
    left.send(b"x", 1)
    right.receive()
    cut.set()
    # Nobody sends anything: the bridges notice by themselves.
    assert left.closed()
    assert right.closed()
    assert "does not answer" in a.log[0]
    assert "rank 0 to 1 channel 0" in a.log[0]


GARBAGE = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, struct.pack("=II", 0x31425352, 9)]


@pytest.mark.parametrize("data", GARBAGE, ids=["nothing", "a byte", "http", "ones", "short"])
def test_garbage_closes_that_socket_only(start: StartBridge, connect: Connect, data: bytes) -> None:
    one = start()
    good = connect(one, one)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(20)
        sock.connect(str(one.path))
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        reply = b""
        while True:
            try:
                part = sock.recv(100)
            except ConnectionResetError:
                break
            if not part:
                break
            reply += part
    if len(data) >= 32:
        assert struct.unpack("=II", reply[:8]) == (0x31425352, 71)  # EPROTO
    else:
        assert reply == b""
    good[0].send(b"still here", 3)
    assert good[1].receive() == (b"still here", 3)


@pytest.mark.parametrize("length", [0, 0x4000001, 0xFFFFFFFF])
def test_a_length_that_no_message_has_closes_both_sides(
    start: StartBridge, connect: Connect, length: int
) -> None:
    a, b = start(), start()
    left, right = connect(a, b)
    left.send(b"good", 1)
    left.sock.sendall(struct.pack("=II", length, 2))
    assert left.closed()
    assert right.receive() == (b"good", 1)
    assert right.closed()
    assert str(length) in a.log[0]


def test_an_endpoint_that_does_not_fit_is_refused_with_einval(
    start: StartBridge, engines: list[Engine]
) -> None:
    plain, pool, mtu = start(), start(tagger=QpPool.of(4)), start(mtu=1024)
    for other, word in ((pool, "queue pairs"), (mtu, "MTU"), (None, "starts with")):
        left = Engine(plain.path)
        engines.append(left)
        left.open()
        endpoint = bytes(64)
        if other is not None:
            right = Engine(other.path)
            engines.append(right)
            endpoint = right.open()
        assert left.connect(endpoint) == 22
        assert left.closed()
        assert word in plain.log[-1]


def test_two_bridges_do_not_share_a_path_and_a_dead_ones_is_taken_over(
    start: StartBridge, tmp_path: Path
) -> None:
    one = start()
    attachment = attach("udp:127.0.0.1:0")
    with attachment.wire, pytest.raises(SocketInUse, match="listens on"):
        Bridge(one.path, attachment)
    dead = tmp_path / "dead"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(dead))
    with Bridge(dead, attach("udp:127.0.0.1:0")):
        assert dead.stat().st_mode & 0o777 == 0o600
    file = tmp_path / "file"
    file.write_text("mine")
    attachment = attach("udp:127.0.0.1:0")
    with attachment.wire, pytest.raises(FileExistsError, match="not a socket"):
        Bridge(file, attachment)
    assert file.read_text() == "mine"


def test_all_ranks_open_all_channels_at_once(start: StartBridge, engines: list[Engine]) -> None:
    one = start()
    engines += [Engine(one.path) for _ in range(300)]  # Each has to be taken without waiting.
    ends = [engine.open() for engine in engines]
    for index, engine in enumerate(engines):
        assert engine.connect(ends[index ^ 1]) == 0
    for index, engine in enumerate(engines):
        engine.send(bytes([index & 255]) * 100, index)
    for index, engine in enumerate(engines):
        assert engine.receive() == (bytes([(index ^ 1) & 255]) * 100, index ^ 1)


def test_queue_pairs_and_memory_are_given_back(start: StartBridge, connect: Connect) -> None:
    a, b = start(), start()
    for _ in range(3):
        left, right = connect(a, b)
        left.send(b"x", UNTAGGED)
        right.receive()
        left.close()
        assert right.closed()
    deadline = threading.Event()
    for _ in range(200):
        if not a.bridge.rnic.qps and not b.bridge.rnic.qps:
            break
        deadline.wait(0.05)
    assert not a.bridge.rnic.qps
    assert not b.bridge.rnic.qps
    assert a.bridge.stats()["queue_pairs"]["messages_tx"] >= 3


def test_endpoints_survive_the_trip() -> None:
    from ipaddress import ip_address

    for ip, wire in (
        ("10.0.0.1", ("127.0.0.1", 9)),
        ("fd00::1", ("::1", 65535)),
        ("1.2.3.4", None),
    ):
        point = Endpoint(
            ip_address(ip), 0x020304050607, 77, 5, 8, 4096, TagLayout(11, 3), 22, 21, wire
        )
        assert len(point.pack()) == 64
        assert Endpoint.unpack(point.pack()) == point


@given(st.binary(min_size=64, max_size=64), st.booleans())
def test_any_64_bytes_are_an_endpoint_or_refused(data: bytes, begins_well: bool) -> None:
    if begins_well:
        data = b"RSEP\x01\x04" + data[6:]
    try:
        point = Endpoint.unpack(data)
    except EndpointError:
        return
    assert Endpoint.unpack(point.pack()) == point


def test_config_says_what_does_not_fit() -> None:
    for config, word in (
        (BridgeConfig(ring_log2=5), "ring"),
        (BridgeConfig(job_tag=1), "job tag"),
        (BridgeConfig(rto_us=0), "timeout"),
    ):
        attachment = attach("udp:127.0.0.1:0")
        with attachment.wire, pytest.raises(ValueError, match=word):
            Bridge(Path("unused"), attachment, config)
