"""Mininet's switch classes for the software switch and for BMv2. Imports Mininet.

Both run one process per switch in the root namespace, with P4Runtime on a loopback port. Neither
loads a program: that is the controller's part.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Final

from mininet.node import Switch

from ringstep.lab.leafspine import Engine, LeafSpine, SwitchSite
from ringstep.lab.mininet_env import find_bmv2
from ringstep.lab.processes import Child, Process, ringstep
from ringstep.lab.thrift import ThriftError, set_queue_depth, set_queue_rate
from ringstep.protocol.limits import CPU_PORT


class ProcessSwitch(Switch):
    """A switch that is one process in the root namespace."""

    def __init__(
        self, name: str, *, site: SwitchSite, fabric: LeafSpine, scratch: Path, **params: Any
    ) -> None:
        super().__init__(name, **{**params, "inNamespace": False})
        self.site = site
        self.fabric = fabric
        self.scratch = scratch
        self.process: Process | None = None
        self.p4runtime = ""
        self.paced_by_switch = True
        """Whether the egress queues have the links' rates; otherwise only the kernel has."""

    def start(self, controllers: Any) -> None:
        """Start the process. Mininet hands in OpenFlow controllers, of which there are none."""
        del controllers
        self.process = self.launch()

    def launch(self) -> Process:
        """Return the started process."""
        raise NotImplementedError

    def wait_ready(self) -> None:
        """Wait until P4Runtime is served, and learn its address.

        Raises:
            ChildFailed: the process ended, or serves nothing in time.
        """
        raise NotImplementedError

    def stop(self, deleteIntfs: bool = True) -> None:  # noqa: N803 - Mininet's name
        """End the process, then let Mininet delete the interfaces."""
        if self.process is not None:
            self.process.stop()
        super().stop(deleteIntfs)


class SoftSwitchNode(ProcessSwitch):
    """The software switch: AF_PACKET ports, egress queues with the links' rates."""

    def launch(self) -> Process:
        """Start ``ringstep softswitch run``."""
        command = ringstep(
            "softswitch", "run", "--device-id", str(self.site.device_id), "--grpc", "127.0.0.1:0"
        )
        for port, rate_bps in self.site.port_rates_bps.items():
            queue = f"rate_bps:{rate_bps:.0f},capacity:{self.fabric.queue_packets}"
            command += ["--port", f"{port}=afpacket:{self.site.interface(port)}"]
            command += ["--queue", f"{port}={queue}"]
        return Child(self.name, command, self.scratch)

    def wait_ready(self) -> None:
        """Wait for the ready file."""
        assert isinstance(self.process, Child)
        self.p4runtime = str(self.process.wait_ready()["grpc"])


class Bmv2Node(ProcessSwitch):
    """BMv2's simple_switch_grpc. Queue rates are set over Thrift, in packets per second."""

    def launch(self) -> Process:
        """Start simple_switch_grpc without a program."""
        self._grpc, self._thrift = _free_port(), _free_port()
        command = [find_bmv2(), "--device-id", str(self.site.device_id), "--no-p4"]
        command += ["--thrift-port", str(self._thrift)]
        for port in self.site.port_rates_bps:
            command += ["-i", f"{port}@{self.site.interface(port)}"]
        command += ["--", "--grpc-server-addr", f"127.0.0.1:{self._grpc}"]
        command += ["--cpu-port", str(CPU_PORT)]
        return Process(self.name, command, self.scratch)

    def wait_ready(self) -> None:
        """Wait until the gRPC port answers, then set the queues."""
        assert self.process is not None
        self.process.wait_until(lambda: _answers(self._grpc))
        self.p4runtime = f"127.0.0.1:{self._grpc}"
        frame_bits = 8 * self.fabric.frame_bytes
        try:
            for port, rate_bps in self.site.port_rates_bps.items():
                set_queue_rate(self._thrift, port, round(rate_bps / frame_bits))
                set_queue_depth(self._thrift, port, self.fabric.queue_packets)
        except (OSError, ThriftError):
            # Built without Thrift: the kernel's limit on the link is all that paces it.
            self.paced_by_switch = False


SWITCH_CLASSES: Final[dict[Engine, type[ProcessSwitch]]] = {
    Engine.SOFTSWITCH: SoftSwitchNode,
    Engine.BMV2: Bmv2Node,
}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
