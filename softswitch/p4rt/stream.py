"""What one StreamChannel has to send: a bounded outbox that never blocks the data plane.

Arbitration updates always get through; packet-ins and stream errors are dropped, and counted,
while the client does not keep up (specification section "Stream Error Reporting").
"""

from __future__ import annotations

import threading
from collections import deque

from finsy.proto import p4r

from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError

MAX_PACKETS = 1024
MAX_CONTROL = 256


class Outbox:
    """Messages waiting for one client; put from any thread, taken by the stream's own."""

    def __init__(self, max_packets: int = MAX_PACKETS, max_control: int = MAX_CONTROL) -> None:
        self._max_packets = max_packets
        self._max_control = max_control
        self._control: deque[p4r.StreamMessageResponse] = deque()
        self._packets: deque[p4r.StreamMessageResponse] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._error: P4RuntimeError | None = None
        self.dropped = 0

    @property
    def error(self) -> P4RuntimeError | None:
        """Why the stream ends, None where it ends well."""
        return self._error

    def put_control(self, message: p4r.StreamMessageResponse) -> None:
        """Queue an arbitration update; a client that lets them pile up is cut off."""
        with self._ready:
            if len(self._control) >= self._max_control:
                self._close(
                    P4RuntimeError(
                        Code.RESOURCE_EXHAUSTED,
                        f"the client did not read {self._max_control} stream messages",
                    )
                )
                return
            self._control.append(message)
            self._ready.notify()

    def put_packet(self, message: p4r.StreamMessageResponse) -> bool:
        """Queue a packet-in or stream error; drop and count it where the outbox is full."""
        with self._ready:
            if self._closed or len(self._packets) >= self._max_packets:
                self.dropped += 1
                return False
            self._packets.append(message)
            self._ready.notify()
            return True

    def close(self, error: P4RuntimeError | None = None) -> None:
        """End the stream; what is queued as control goes out first, packets do not."""
        with self._ready:
            self._close(error)

    def get(self) -> p4r.StreamMessageResponse | None:
        """Wait for the next message; None when the stream is to end."""
        with self._ready:
            while not (self._control or self._packets or self._closed):
                self._ready.wait()
            if self._control:
                return self._control.popleft()
            if self._closed:
                return None
            return self._packets.popleft()

    def _close(self, error: P4RuntimeError | None) -> None:
        if not self._closed:
            self._closed = True
            self._error = error
        self._ready.notify_all()


class Session:
    """One open StreamChannel, known by its identity. `left` is set when it has ended."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.left = False
        self.outbox = Outbox()
