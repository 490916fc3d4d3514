"""Peers on the skeleton's port that are silent, slow, half there, or replay what they heard."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from ringstep.hostlib.coordinator import channel, tcp, wire
from ringstep.hostlib.coordinator.channel import Channel, parse_address
from ringstep.hostlib.coordinator.loop import Loop
from ringstep.hostlib.coordinator.messages import Abandon, NodeHello
from ringstep.hostlib.coordinator.tcp import MAGIC, TcpLinks

TOKEN = 0x5EED
Make = Callable[..., Any]


class Stub:
    """Speaks the protocol by hand."""

    def __init__(self, address: str, name: bytes = b"b", token: int = TOKEN) -> None:
        self.sock = socket.create_connection(parse_address(address), timeout=30)
        self.reader = wire.FrameReader(wire.FRAME_MAX)
        greeting = self.frame()
        assert greeting is not None
        assert greeting.startswith(MAGIC)
        self.server_nonce, self.nonce = greeting[len(MAGIC) :], b"n" * 32
        mac = wire.hello_mac(token, b"stub", self.server_nonce, self.nonce, name)
        self.hello = wire.framed(MAGIC + self.nonce + mac + name)
        self.sock.sendall(self.hello)
        self.proof = self.frame()
        key = wire.session_key(token, self.server_nonce, self.nonce)
        self.out = wire.Sealer(key, b"to skeleton")

    def frame(self) -> bytes | None:
        """Return the next frame, None where the skeleton hung up."""
        while (content := self.reader.next()) is None:
            got = self.sock.recv(1 << 16)
            if not got:
                return None
            self.reader.feed(got)
        return content

    def tell(self, message: Any) -> None:
        self.sock.sendall(wire.framed(self.out.seal(wire.encode(message))))

    def hung_up(self) -> bool:
        try:
            while self.frame() is not None:
                pass
        except ConnectionResetError:
            return True
        return True


@pytest.fixture
def begin(start: Make) -> Make:
    """Starts a skeleton that listens."""
    return lambda: start(
        node="a", token=TOKEN, links=lambda loop, config: TcpLinks("127.0.0.1:0", TOKEN, "a", loop)
    )


@pytest.fixture
def skeleton(begin: Make) -> Any:
    return begin()


@pytest.fixture
def address(skeleton: Any) -> str:
    return str(skeleton.status()["address"])


@pytest.fixture
def nodes(skeleton: Any) -> Callable[[], Any]:
    return lambda: skeleton.status()["nodes"]


def test_a_stub_that_proves_itself_is_a_node(address: str, nodes: Make, until: Make) -> None:
    stub = Stub(address)
    assert stub.proof == wire.hello_mac(TOKEN, b"skeleton", stub.nonce, stub.server_nonce)
    stub.tell(NodeHello(7, 1))
    until(lambda: nodes() == ["a", "b"])
    stub.sock.close()
    until(lambda: nodes() == ["a"])


def test_a_wrong_token_gets_no_proof_and_is_hung_up_on(address: str, nodes: Make) -> None:
    stub = Stub(address, token=TOKEN + 1)
    assert stub.proof is None
    assert nodes() == ["a"]


def test_a_replayed_greeting_is_worth_nothing(address: str, nodes: Make) -> None:
    first = Stub(address)
    assert first.proof is not None
    first.sock.close()
    with socket.create_connection(parse_address(address), timeout=30) as replay:
        replay.sendall(first.hello)
        got = b""
        while part := replay.recv(1 << 16):
            got += part
    assert len(got) == 4 + len(MAGIC) + 32  # the greeting, and nothing for it
    assert nodes() == ["a"]


def test_what_only_a_skeleton_tells_ends_the_link(address: str, nodes: Make, until: Make) -> None:
    stub = Stub(address)
    stub.tell(NodeHello(0, 1))
    until(lambda: nodes() == ["a", "b"])
    stub.tell(Abandon((0, 1), 1))
    assert stub.hung_up()
    until(lambda: nodes() == ["a"])


@pytest.mark.parametrize("part", [0, 2, 20])
def test_half_a_greeting_is_not_waited_for(
    begin: Make, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "HANDSHAKE_S", 0.05)
    running = begin()
    where = parse_address(running.status()["address"])
    with socket.create_connection(where, timeout=30) as half:
        half.sendall(wire.framed(MAGIC + b"n" * 64)[:part])
        while half.recv(1 << 16):
            pass
    assert running.status()["nodes"] == ["a"]


def test_a_silent_stub_is_given_up_and_a_living_one_is_not(
    begin: Make, until: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "SILENCE_S", 1.0)
    monkeypatch.setattr(tcp, "PING_S", 0.05)
    monkeypatch.setattr(TcpLinks, "poll_s", 0.02)
    running = begin()
    address = running.status()["address"]
    silent, living = Stub(address, b"silent"), Stub(address, b"living")
    for stub in (silent, living):
        stub.tell(NodeHello(0, 1))
    until(lambda: len(running.status()["nodes"]) == 3)
    until(lambda: running.status()["nodes"] == ["a", "living"], lambda: living.tell(None))
    assert silent.hung_up()
    silent.sock.close()
    living.sock.close()


def test_too_many_strangers_are_turned_away(begin: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "WAITING_MAX", 4)
    running = begin()
    where = parse_address(running.status()["address"])
    strangers = [socket.create_connection(where, timeout=30) for _ in range(4)]
    for stranger in strangers:
        assert stranger.recv(100)
    with socket.create_connection(where, timeout=30) as late:
        assert late.recv(100) == b""
    for stranger in strangers:
        stranger.close()


def test_a_peer_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "UNSENT_MAX", 1 << 20)
    loop = Loop()
    ours, theirs = socket.socketpair()
    one = Channel(ours, loop, lambda: None)

    def send_much() -> None:
        for _ in range(1000):
            one.send(bytes(100_000))

    with pytest.raises(ConnectionAbortedError, match="the other side does not read"):
        send_much()
    one.close()
    theirs.close()
    loop.close()
