"""Software switches as processes, and what stands at the other end of their wires."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from forked import ForkedProcess

_START_S = 60.0


class SoftSwitch:
    """A running software switch whose ports are UDP wires that end in this process."""

    def __init__(
        self,
        folder: Path,
        device_id: int,
        ports: Iterable[int] = (),
        grpc: str = "127.0.0.1:0",
        extra: Iterable[str] = (),
    ) -> None:
        self.device_id = device_id
        ready = folder / f"switch-{device_id}-{time.monotonic_ns()}.json"
        self._wires = {port: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for port in ports}
        options: list[str] = []
        for port, wire in self._wires.items():
            wire.bind(("127.0.0.1", 0))
            host, number = wire.getsockname()
            options += ["--port", f"{port}=udp:127.0.0.1:0,{host}:{number}"]
        self._log = (folder / f"switch-{device_id}.log").open("ab")
        self.process = ForkedProcess(
            [
                "softswitch", "run", "--device-id", str(device_id), "--grpc", grpc,
                "--ready-file", str(ready), *options, *extra,
            ],
            self._log,
        )  # fmt: skip
        facts = self._wait_ready(ready)
        self.address: str = facts["grpc"]
        self._peers = {
            int(port): (address.rpartition(":")[0], int(address.rpartition(":")[2]))
            for port, address in facts["ports"].items()
        }

    def _wait_ready(self, ready: Path) -> dict[str, dict[str, str]]:
        deadline = time.monotonic() + _START_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"the software switch did not start; see {self._log.name}")
            time.sleep(0.005)
        facts: dict[str, dict[str, str]] = json.loads(ready.read_text())
        return facts

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process and close the wires; may be called twice."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for wire in self._wires.values():
            wire.close()
        self._log.close()

    def send(self, port: int, frame: bytes) -> None:
        """Let a frame arrive at a port."""
        self._wires[port].sendto(frame, self._peers[port])

    def receive(self, timeout_s: float = 20.0) -> tuple[int, bytes]:
        """Return the next frame that left, with the port it left by.

        Raises:
            TimeoutError: none within ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for port, wire in self._wires.items():
                wire.setblocking(False)
                try:
                    return port, wire.recv(65535)
                except BlockingIOError:
                    continue
            time.sleep(0.001)
        raise TimeoutError(f"no frame left the switch within {timeout_s:g} s")
