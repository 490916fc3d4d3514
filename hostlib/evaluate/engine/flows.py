"""Rival flows: TCP connections that want a rate, told on standard input.

``python -m ringstep.hostlib.evaluate.engine.flows sink`` takes what comes;
``... source HOST CONTROL BACKLOG`` sends by that congestion control of TCP's: each line ``FLOWS
BYTES_PER_S`` says how many flows share which rate from now on. What a flow cannot hand to its
socket in time it does not make up for: the background wants its load. A socket that may hold
megabytes (BACKLOG 0: as the kernel likes) makes up for them all the same, and after a minute of
contention the background wants all there is; with a BACKLOG of some KiB it wants its load, no more.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from typing import Final

PORT: Final = 29_400
TICK_S: Final = 0.004
BURST_S: Final = 0.02
_BLOCK: Final = bytes(1 << 16)


def sink() -> None:
    """Take what comes, until standard input ends."""
    with selectors.DefaultSelector() as waiting, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", PORT))
        listener.listen(256)
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        space = bytearray(1 << 18)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is sys.stdin:
                    return  # nothing is ever written to it
                if key.fileobj is listener:
                    peer, _ = listener.accept()
                    peer.setblocking(False)
                    waiting.register(peer, selectors.EVENT_READ)
                    continue
                peer = key.fileobj  # type: ignore[assignment]
                got = 0
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    got = peer.recv_into(space)
                if got == 0:
                    waiting.unregister(peer)
                    peer.close()


class _Source:
    def __init__(self, host: str, control: str, backlog: int) -> None:
        self._host, self._control, self._backlog = host, control.encode(), backlog
        self.wanted = (0, 0.0)
        self._flows: list[socket.socket] = []

    def run(self) -> None:
        """Send for ever; where that fails the process ends, so that whoever asks next sees it."""
        try:
            self._send()
        except OSError as error:
            print(f"rival flows to {self._host}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _send(self) -> None:
        budget: list[float] = []
        before = time.monotonic()
        while True:
            count, rate = self.wanted
            while len(self._flows) > count:
                self._flows.pop().close()
            while len(self._flows) < count:
                flow = socket.create_connection((self._host, PORT), timeout=10)
                flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._control)
                if self._backlog:
                    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._backlog)
                flow.setblocking(False)
                self._flows.append(flow)
            budget = (budget + [0.0] * count)[:count]
            now = time.monotonic()
            share = rate / count if count else 0.0
            for i, flow in enumerate(self._flows):
                budget[i] = min(budget[i] + share * (now - before), share * BURST_S + 1500)
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    while budget[i] >= 1:
                        budget[i] -= flow.send(_BLOCK[: min(int(budget[i]), len(_BLOCK))])
            before = now
            time.sleep(TICK_S if count else 0.05)


def source(host: str, control: str, backlog: int) -> None:
    """Send as standard input says, until it ends."""
    sender = _Source(host, control, backlog)
    threading.Thread(target=sender.run, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        count, rate = line.split()
        sender.wanted = (int(count), float(rate))
        print("ok", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["sink"]:
        sink()
    else:
        source(sys.argv[2], sys.argv[3], int(sys.argv[4]))
