"""`softswitch run` as a process: ready file, packets, counts, clean end; `softswitch inspect`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest
from bmv2_json import assign, call, field, num, scratch_program, send_to
from finsy.proto import p4i, p4r
from typer.testing import CliRunner

from ringstep.softswitch.cli import app, parse_queue
from ringstep.softswitch.engine import Switch
from ringstep.softswitch.queueing import QueueConfig
from ringstep.softswitch.runtime import MAX_PACKET_OUTS, Runtime
from ringstep.softswitch.wires import PcapWriter

pytest.importorskip("grpc")
import grpc
from finsy.proto import p4r_grpc

LAUNCH = "from ringstep.softswitch.cli import app; app()"


def loopback() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.settimeout(20)
    return made


@contextmanager
def running(
    tmp_path: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    ready = tmp_path / "ready.json"
    command = [
        sys.executable, "-c", LAUNCH, "run", "--grpc", "127.0.0.1:0", "--ready-file", str(ready)
    ]  # fmt: skip
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline, "the switch did not get ready"
            time.sleep(0.02)
        yield process, json.loads(ready.read_text())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def push(address: str, text: str) -> grpc.Channel:
    """Load a program over P4Runtime; the channel stays primary until closed."""
    channel = grpc.insecure_channel(address)
    stub = p4r_grpc.P4RuntimeStub(channel)
    election = p4r.Uint128(low=1)
    hello = p4r.StreamMessageRequest()
    hello.arbitration.device_id = 1
    hello.arbitration.election_id.CopyFrom(election)

    def requests() -> Iterator[p4r.StreamMessageRequest]:
        yield hello
        time.sleep(3600)

    stream = stub.StreamChannel(requests())
    next(iter(stream))
    request = p4r.SetForwardingPipelineConfigRequest(
        device_id=1,
        election_id=election,
        action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        config=p4r.ForwardingPipelineConfig(p4info=p4i.P4Info(), p4_device_config=text.encode()),
    )
    stub.SetForwardingPipelineConfig(request, timeout=20)
    stream.cancel()
    return channel


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_frames_go_in_at_one_port_and_out_at_another(tmp_path: Path, end: signal.Signals) -> None:
    program = scratch_program({"a": 8, "b": 8})
    program.do("ingress", [send_to(2), assign(field("h", "b"), num(7))])
    stats = tmp_path / "stats.json"
    with loopback() as left, loopback() as right:
        ports = [s.getsockname()[1] for s in (left, right)]
        options = [
            "--port", f"1=udp:127.0.0.1:0,127.0.0.1:{ports[0]}",
            "--port", f"2=udp:127.0.0.1:0,127.0.0.1:{ports[1]}",
            "--queue", "2=rate_bps:100000000,capacity:32",
            "--stats-file", str(stats),
        ]  # fmt: skip
        with running(tmp_path, *options) as (process, ready):
            assert ready["pid"] == process.pid
            channel = push(ready["grpc"], program.text())
            host, _, port = ready["ports"]["1"].rpartition(":")  # type: ignore[index]
            for number in range(5):
                left.sendto(bytes([number, 0]) + b"payload", (host, int(port)))
                assert right.recv(2000) == bytes([number, 7]) + b"payload"
            channel.close()
            process.send_signal(end)
            assert process.wait(20) == 0
    counts = json.loads(stats.read_text())
    assert counts["ports"]["1"]["rx_packets"] == 5
    assert counts["ports"]["2"]["tx_packets"] == 5
    assert counts["error_drops"] == 0
    for where in (ready["grpc"], ready["ports"]["1"]):  # type: ignore[index]
        host, _, port = where.rpartition(":")
        kind = socket.SOCK_STREAM if where == ready["grpc"] else socket.SOCK_DGRAM
        with socket.socket(socket.AF_INET, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--port", "x=udp:a:1,b:2"], "does not start with NUMBER="),
        (["--port", "511=udp:127.0.0.1:0,127.0.0.1:5"], "a port in 0..510"),
        (["--port", "1=tin-can"], "none of udp:"),
        (["--queue", "1=rate:5"], "is not one of rate_bps:NUMBER"),
        (["--queue", "1=rate_bps:fast"], "'fast' is not a number"),
        (["--queue", "1=capacity:0"], "capacity is 0"),
        (["--queue", "1=capacity:1.5"], "'1.5' is not a whole number"),
        (["--queue", "1=rate_bps:nan"], "rate_bps is nan; it must be finite"),
        (["--queue", "1=rate_bps:inf"], "rate_bps is inf; it must be finite"),
        (["--queue", "1=capacity:1,capacity:2"], "capacity is given twice"),
        (["--queue", "1=capacity:1", "--queue", "1=capacity:2"], "port 1 was given before"),
        (["--log-level", "loud"], "'loud' is not debug"),
        (["--port", "²=udp:127.0.0.1:0,127.0.0.1:5"], "does not start with NUMBER="),
        (["--port", "1=udp:127.0.0.1:²,127.0.0.1:5"], "is not HOST:PORT"),
        (["--port", "510=udp:127.0.0.1:0,127.0.0.1:5"], "port 510 is the CPU port"),
        (["--device-id", str(1 << 64)], "--device-id"),
        (["--grpc", "127.0.0.1"], "'127.0.0.1' is not HOST:PORT"),
        (["--grpc", "127.0.0.1:99999"], "'127.0.0.1:99999' is not HOST:PORT"),
        (["--grpc", ":9559"], "':9559' is not HOST:PORT"),
        (["--ready-file", "/nonexistent/ready.json"], "there is no folder '/nonexistent'"),
        (["--stats-file", "/nonexistent/stats.json"], "there is no folder '/nonexistent'"),
        (
            ["--port", "1=udp:127.0.0.1:0,127.0.0.1:5", "--port", "1=udp:127.0.0.1:0,127.0.0.1:5"],
            "port 1 was given before",
        ),
    ],
)
def test_bad_options_end_with_status_2_and_a_reason(options: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["run", *options])
    assert result.exit_code == 2
    assert reason in result.output


def test_a_grpc_port_in_use_ends_with_status_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(app, ["run", "--grpc", address])
    assert result.exit_code == 2
    assert f"cannot listen on {address}: the port is in use" in result.output


def test_a_ready_file_that_is_a_folder_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "ready"
    folder.mkdir()
    result = CliRunner().invoke(app, ["run", "--grpc", "127.0.0.1:0", "--ready-file", str(folder)])
    assert result.exit_code == 2
    assert f"--ready-file {str(folder)!r}: cannot be written" in result.output
    assert list(tmp_path.iterdir()) == [folder]


def test_two_ports_do_not_write_one_file(tmp_path: Path) -> None:
    source, sink = tmp_path / "in.pcap", tmp_path / "out.pcap"
    PcapWriter(source).close()
    ports = [item for port in (1, 2) for item in ("--port", f"{port}=pcap:{source},{sink}")]
    result = CliRunner().invoke(app, ["run", "--grpc", "127.0.0.1:0", *ports])
    assert result.exit_code == 2
    assert f"port 1 ends at {sink} already" in result.output


def test_packet_outs_beyond_what_may_wait_are_dropped_and_counted() -> None:
    runtime = Runtime(Switch(), {})
    try:
        for _ in range(MAX_PACKET_OUTS + 3):
            runtime.submit_packet_out(b"frame")
        assert len(runtime._packet_outs) == MAX_PACKET_OUTS
        assert runtime.statistics()["packet_out_drops"] == 3
    finally:
        runtime.close()


def test_queue_descriptions() -> None:
    assert parse_queue("capacity:256,rate_bps:4e7") == QueueConfig(rate_bps=4e7, capacity=256)
    assert parse_queue("rate_pps:10,overhead_bytes:24") == QueueConfig(
        rate_pps=10, overhead_bytes=24
    )


def test_inspect_tells_what_a_program_uses() -> None:
    path = Path(str(resources.files("ringstep"))) / "p4build" / "ringstep_v1model.json"
    result = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    assert result.exit_code == 0
    facts = json.loads(result.output)
    assert facts["loads"] is True
    assert facts["selectors"] == 1
    assert "loads:        yes" in CliRunner().invoke(app, ["inspect", str(path)]).output
    source = CliRunner().invoke(app, ["inspect", str(path), "--source"]).output
    compile(source, "generated", "exec")


def test_inspect_names_what_keeps_a_program_from_loading(tmp_path: Path) -> None:
    program = scratch_program({"a": 8})
    program.do("ingress", [call("_my_extern_method", num(1))])
    path = tmp_path / "x.json"
    path.write_text(program.text())
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 1
    assert "primitive '_my_extern_method' is not supported" in result.output
    assert CliRunner().invoke(app, ["inspect", str(tmp_path / "gone")]).exit_code == 2
