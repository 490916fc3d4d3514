"""The engines that a compiled v1model program can run on, behind one interface.

Both are programmed over P4Runtime by the same client. `SoftSwitch` is this project's; `Bmv2` is
p4lang/behavioral-model's simple_switch_grpc, where it is installed: on the PATH or named by
$RINGSTEP_SIMPLE_SWITCH_GRPC. Its packets go in and out over its gRPC packet interface
(`--dp-grpc-server-addr`), so no engine needs root.
"""

from __future__ import annotations

import functools
import os
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import grpc
from finsy.proto import p4i, p4r
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ringstep.protocol.limits import CPU_PORT
from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.p4rt import serve
from ringstep.softswitch.tables import Pipeline

# Whoever imports this from elsewhere finds the client too.
P4RT_TESTS = Path(__file__).resolve().parents[1] / "softswitch" / "p4rt"
if str(P4RT_TESTS) not in sys.path:
    sys.path.insert(0, str(P4RT_TESTS))

from p4rt_rig import Client  # noqa: E402 - the path first

VARIABLE = "RINGSTEP_SIMPLE_SWITCH_GRPC"
DEVICE_ID = 1
TIMEOUT_S = 60.0
BATCH = 16
"""Packets that BMv2 gets at once. A queue of its egress holds 64, and a packet may be copied."""

Sent = tuple[int, bytes]
"""A frame and the port it goes in at or came out of."""


class Engine(Protocol):
    """A switch that runs nothing yet, or the pipeline that `client` pushed."""

    name: str
    client: Client

    def exchange(self, packets: Sequence[Sent], at_once: int = BATCH) -> list[list[Sent]]:
        """Put packets in one after the other; return what came out for each.

        `at_once` of them are put in without waiting for what becomes of them. Packets that leave
        at the CPU port are not among those that came out: the client has them.
        """

    def packet_out(self, packet: p4r.PacketOut) -> None:
        """Send a packet-out."""

    def packet_ins(self, count: int) -> list[bytes]:
        """The payloads of the next `count` packet-ins."""

    def digest(self) -> p4r.DigestList:
        """The next digest list."""

    def close(self) -> None:
        """Stop it."""


class _Streamed:
    """The client's stream: packets and digests, each kind in order."""

    def __init__(self, client: Client) -> None:
        self._stream = client.stream(timeout=None)
        self._stream.arbitrate(client.election_id)
        assert self._stream.advisory()[0] == 0
        self._arrived: dict[str, queue.SimpleQueue[p4r.StreamMessageResponse]] = defaultdict(
            queue.SimpleQueue
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        # The stream ends with its channel.
        with suppress(grpc.RpcError):
            for message in self._stream.call:
                self._arrived[str(message.WhichOneof("update"))].put(message)

    def packet_out(self, packet: p4r.PacketOut) -> None:
        self._stream.send(p4r.StreamMessageRequest(packet=packet))

    def packet_ins(self, count: int) -> list[bytes]:
        packets = self._arrived["packet"]
        return [packets.get(timeout=TIMEOUT_S).packet.payload for _ in range(count)]

    def digest(self) -> p4r.DigestList:
        return self._arrived["digest"].get(timeout=TIMEOUT_S).digest


def forget_replicas(client: Client) -> None:
    """Delete all multicast groups and clone sessions.

    BMv2 forgets them by name when it gets another pipeline, but goes on making their copies.
    """
    for kind in ("multicast_group_entry", "clone_session_entry"):
        query = p4r.PacketReplicationEngineEntry()
        getattr(query, kind).SetInParent()
        client.delete(*client.read(p4r.Entity(packet_replication_engine_entry=query)))


def find_bmv2() -> str | None:
    """Where simple_switch_grpc is, None where it is not installed."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    return shutil.which("simple_switch_grpc")


WHY_NOT = (
    "simple_switch_grpc is not installed: build p4lang/behavioral-model (with PI) and put it on "
    f"the PATH, or name it in ${VARIABLE}"
)


@functools.cache
def _compiled_once(p4info: bytes, json_text: str) -> Pipeline:
    return compile_pipeline(p4i.P4Info.FromString(p4info), json_text)


def _compiled(p4info: p4i.P4Info, json_text: str) -> Pipeline:
    """A pipeline in its first state. Only one engine of this process may run it at a time."""
    pipeline = _compiled_once(p4info.SerializeToString(deterministic=True), json_text)
    pipeline.reset()
    return pipeline


class SoftSwitch(_Streamed):
    """The software switch in this process behind its P4Runtime server."""

    name = "softswitch"

    def __init__(self, **options: Any) -> None:
        self.switch = Switch(DEVICE_ID, **options)
        self._server = serve(
            self.switch,
            "127.0.0.1:0",
            compiler=_compiled,
            packet_out=lambda frame: self._receive(CPU_PORT, frame),
        )
        self.client = Client(self._server.address, election_id=1)
        super().__init__(self.client)

    def _now(self) -> int:
        return time.monotonic_ns() // 1000

    def _receive(self, port: int, frame: bytes) -> list[Sent]:
        with self.switch.lock:
            self.switch.receive(port, frame, self._now())
            sent = self.switch.advance(self._now())
            digests = self.switch.take_digests()
        for name, values in digests:
            self._server.digest(name, values)
        for port_out, data in sent:
            if port_out == CPU_PORT:
                self._server.packet_in(data)
        return [one for one in sent if one[0] != CPU_PORT]

    def exchange(self, packets: Sequence[Sent], at_once: int = BATCH) -> list[list[Sent]]:
        return [self._receive(port, frame) for port, frame in packets]

    def close(self) -> None:
        self.client.close()
        self._server.stop(grace_s=0)


def _packet_message() -> Any:
    """BMv2's message for a packet, request and answer alike: id, device_id, port, packet."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="ringstep/test/bmv2_packet.proto", package="ringstep.test", syntax="proto3"
    )
    message = file.message_type.add(name="Bmv2Packet")
    for number, (name, kind) in enumerate(
        (
            ("id", kinds.TYPE_UINT64),
            ("device_id", kinds.TYPE_UINT64),
            ("port", kinds.TYPE_UINT32),
            ("packet", kinds.TYPE_BYTES),
        ),
        1,
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ringstep.test.Bmv2Packet"))


Bmv2Packet = _packet_message()


@functools.cache
def _has_thrift(binary: str) -> bool:
    """Whether this build also serves Thrift: at port 9090 unless told, where only one can be."""
    done = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    return "--thrift-port" in done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Bmv2(_Streamed):
    """A process of simple_switch_grpc without a program."""

    name = "bmv2"

    def __init__(self, binary: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        for _ in range(5):
            # Somebody else may take a port between the search and the start.
            if self._start(binary):
                break
        else:
            self._log.seek(0)
            raise RuntimeError(f"{binary} does not start: {self._log.read().decode()[-2000:]}")
        super().__init__(self.client)

    def _start(self, binary: str) -> bool:
        grpc_address, self._packets_address = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        thrift = ["--thrift-port", str(_free_port())] if _has_thrift(binary) else []
        self._process = subprocess.Popen(
            [
                binary, "--no-p4", "--device-id", str(DEVICE_ID), *thrift, "--",
                "--grpc-server-addr", grpc_address,
                "--dp-grpc-server-addr", self._packets_address,
                "--cpu-port", str(CPU_PORT),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.client = Client(grpc_address, election_id=1)
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self.client.close()
                return False
            try:
                self.client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=1)
                return True
            except grpc.RpcError:
                time.sleep(0.05)
        self.client.close()
        self._process.kill()
        self._process.wait()
        return False

    def exchange(self, packets: Sequence[Sent], at_once: int = BATCH) -> list[list[Sent]]:
        """Each packet has an id, which every frame that comes of it carries.

        The stream's end is the barrier: BMv2 ends it when all packets are done with. So few are
        sent on one that no queue of its egress can be full.
        """
        found: list[list[Sent]] = [[] for _ in packets]
        with grpc.insecure_channel(self._packets_address) as channel:
            stream = channel.stream_stream(
                "/p4.bm.DataplaneInterface/PacketStream",
                request_serializer=Bmv2Packet.SerializeToString,
                response_deserializer=Bmv2Packet.FromString,
            )
            requests = [
                Bmv2Packet(id=number, device_id=DEVICE_ID, port=port, packet=frame)
                for number, (port, frame) in enumerate(packets, 1)
            ]
            for at in range(0, len(requests), at_once):
                batch = iter(requests[at : at + at_once])
                for answer in stream(batch, timeout=TIMEOUT_S, wait_for_ready=True):
                    if answer.port != CPU_PORT:
                        found[answer.id - 1].append((answer.port, answer.packet))
        return found

    def close(self) -> None:
        self.client.close()
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._log.close()
