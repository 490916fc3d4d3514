"""Packets per second of the software switch on one core and on several, with the RoCEv2 program.

Each packet is parsed, classified (job by destination and QP), routed (LPM, planned path),
queued, marked (job parameters, block, RED, all registers of the marker), deparsed and handed out.
BMv2's simple_switch runs the same program with the same entries on the same frames in the same run
where it is installed (simple_switch or simple_switch_grpc, on the PATH or named by
$RINGSTEP_SIMPLE_SWITCH_GRPC), and the ratio is printed, per second of processor time.

Scaling: one process per switch, each on a core of its own, all at once. Rounds with one process
and with several take turns, so that what else the machine does meets all alike. Efficiency is
packets per second together over that many times one process's: by the clock, and per second of the
processes' own processor time, which leaves out what other programs took of the cores.

    python bench/softswitch_pps.py [--json] [--packets N] [--repeats N] [--payload-bytes N]
        [--processes N]
"""

from __future__ import annotations

import argparse
import functools
import ipaddress
import json
import multiprocessing
import os
import platform
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ringstep.protocol.marker import MarkerParams, ProgressMode
from ringstep.protocol.rocev2 import Bth, Opcode, RoceFrame, build
from ringstep.protocol.tag import TagLayout
from ringstep.softswitch import QueueConfig, Switch

SOURCE = ipaddress.IPv4Address("10.0.0.1")
DESTINATION = ipaddress.IPv4Address("10.0.1.1")
FIRST_QP = 0x100
JOB = 5
IN_PORT = 1
FIRST_OUT_PORT = 2
OUT_PORTS = 400
PACKETS_PER_PORT = 60
"""BMv2 takes pcap files in as fast as it can and its queues hold 64 packets: so many ports, and so
few packets for each, that it loses none."""
PACKETS_PER_STEP = 16
BMV2_START_S = 60.0


def load() -> tuple[str, str]:
    """(P4Info text, BMv2 JSON text) of the installed program."""
    folder = resources.files("ringstep") / "p4build"
    return (
        (folder / "ringstep_v1model.p4info.txtpb").read_text(),
        (folder / "ringstep_v1model.json").read_text(),
    )


Match = list[tuple[str, int]]


def with_entries(text: str) -> str:
    """The program with one job on many ports, one route, planned paths and RED as entries.

    Both switches read this same file, so both do the same work; BMv2 needs no control plane.
    """
    program = json.loads(text)
    mapped = 0xFFFF << 32 | int(DESTINATION)
    params = MarkerParams(
        mode=ProgressMode.ANCHORED,
        layout=TagLayout(),
        packets_per_step=PACKETS_PER_STEP,
        q_gate=None,
        t_win=1000,
    ).to_table()
    wanted: dict[str, tuple[str, list[tuple[Match, dict[str, int]]]]] = {
        "route_v4": (
            "set_nexthop",
            [([("lpm", int(DESTINATION) & 0xFFFFFF00)], {"nexthop_id": 7})],
        ),
        "job_params": ("set_params", [([("exact", JOB)], params)]),
        "job_by_dst_qp": ("set_job", []),
        "planned_path": ("forward", []),
        "block_map": ("set_block", []),
        "red": ("set_red", []),
    }
    for index in range(OUT_PORTS):
        port, path = FIRST_OUT_PORT + index, 1 + index
        hop = {"port": port, "src_mac": 0x020000000001, "dst_mac": 0x02000000AA02}
        red = {"q_min": 40, "q_max": 120, "p_max": 6553, "gap": 20}
        for table, match, arguments in (
            ("job_by_dst_qp", [mapped, FIRST_QP + index], {"job": JOB, "path_id": path}),
            ("planned_path", [path], hop),
            ("block_map", [JOB, port], {"block": port}),
            ("red", [port], red),
        ):
            wanted[table][1].append(([("exact", value) for value in match], arguments))
    actions = {action["id"]: action for action in program["actions"]}
    tables = [table for pipe in program["pipelines"] for table in pipe["tables"]]
    for table in tables:
        alias = table["name"].rpartition(".")[2]
        if alias in wanted:
            action, entries = wanted.pop(alias)
            table["entries"] = [
                _entry(program, table, actions, match, action, arguments)
                for match, arguments in entries
            ]
    if wanted:
        raise SystemExit(f"the program has no table {', '.join(wanted)}")
    return json.dumps(program)


def _entry(
    program: dict[str, Any],
    table: dict[str, Any],
    actions: dict[int, Any],
    match: Match,
    alias: str,
    arguments: dict[str, int],
) -> dict[str, Any]:
    def hexstring(value: int, bits: int) -> str:
        return f"0x{value:0{2 * -(-bits // 8)}x}"

    keys = []
    for key, (kind, value) in zip(table["key"], match, strict=True):
        item = {"match_type": kind, "key": hexstring(value, _width(program, key["target"]))}
        keys.append({**item, "prefix_length": 24} if kind == "lpm" else item)
    action = next(
        actions[i] for i in table["action_ids"] if actions[i]["name"].rpartition(".")[2] == alias
    )
    data = [hexstring(arguments[p["name"]], p["bitwidth"]) for p in action["runtime_data"]]
    return {
        "match_key": keys,
        "action_entry": {"action_id": action["id"], "action_data": data},
        "priority": 1,
    }


def _width(program: dict[str, Any], target: list[str]) -> int:
    header = next(h for h in program["headers"] if h["name"] == target[0])
    kind = next(t for t in program["header_types"] if t["name"] == header["header_type"])
    width: int = next(field[1] for field in kind["fields"] if field[0] == target[1])
    return width


def frames(count: int, payload_bytes: int) -> list[bytes]:
    """Data packets of one flow per port in turn, step after step, in order of PSN."""
    layout = TagLayout()
    result = []
    for number in range(count):
        index, flow = divmod(number, OUT_PORTS)
        step = index // PACKETS_PER_STEP
        last = index % PACKETS_PER_STEP == PACKETS_PER_STEP - 1
        result.append(
            build(
                RoceFrame(
                    src_mac=0x020000000011,
                    dst_mac=0x020000000012,
                    src_ip=SOURCE,
                    dst_ip=DESTINATION,
                    sport=layout.sport(step),
                    bth=Bth(
                        opcode=Opcode.RC_WRITE_LAST if last else Opcode.RC_WRITE_MIDDLE,
                        dest_qp=FIRST_QP + flow,
                        psn=index & 0xFFFFFF,
                    ),
                    payload=bytes(payload_bytes),
                    ecn=2,
                )
            )
        )
    return result


@dataclass(frozen=True)
class Round:
    """When a switch took all packets, in seconds of the machine's clock, and its processor time."""

    start: float
    end: float
    cpu: float


def run_once(program: tuple[str, str], packets: list[bytes], queue: QueueConfig | None) -> Round:
    """Put all packets through a fresh switch."""
    ports = range(FIRST_OUT_PORT, FIRST_OUT_PORT + OUT_PORTS)
    switch = Switch(queues=dict.fromkeys(ports, queue) if queue else None)
    switch.load(*program)
    return _run(switch, packets)


def _run(switch: Switch, packets: list[bytes], not_before: float = 0.0) -> Round:
    receive, advance = switch.receive, switch.advance
    now = 0.0
    sent = 0
    gap_us = 10.0
    while time.monotonic() < not_before:
        pass
    cpu = time.process_time()
    start = time.monotonic()
    for frame in packets:
        now += gap_us
        receive(IN_PORT, frame, now)
        sent += len(advance(now))
    taken = Round(start, time.monotonic(), time.process_time() - cpu)
    sent += len(advance(now + 1e9))
    if sent != len(packets):
        raise SystemExit(
            f"{len(packets) - sent} of {len(packets)} packets did not come out: "
            f"{switch.port_stats()} {switch.stats}"
        )
    return taken


def measure(packets: list[bytes], repeats: int, queue: QueueConfig | None) -> dict[str, float]:
    """Packets per second, by the clock and per second of processor time, over all repeats."""
    program = load()
    program = program[0], with_entries(program[1])
    rounds = [run_once(program, packets, queue) for _ in range(repeats)]
    return {
        **summary([len(packets) / (each.end - each.start) for each in rounds]),
        **per_cpu_second([len(packets) / each.cpu for each in rounds]),
    }


def per_cpu_second(rates: list[float]) -> dict[str, float]:
    """min, median, max of packets per second of processor time."""
    return {
        "pps_per_cpu_second": round(statistics.median(rates)),
        "pps_per_cpu_second_min": round(min(rates)),
        "pps_per_cpu_second_max": round(max(rates)),
    }


# -- scaling -------------------------------------------------------------------------------------

_LEAD_S = 0.05
"""From the start signal to the start, so that every process waits for the same moment."""


def _worker(pipe: Connection, core: int, count: int, payload_bytes: int) -> None:
    """A switch in a process of its own, pinned to a core: one run per message, until None."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    info, text = load()
    text = with_entries(text)
    packets = frames(count, payload_bytes)
    while True:
        switch = Switch()
        switch.load(info, text)
        pipe.send(None)
        begin = pipe.recv()
        if begin is None:
            return
        pipe.send(_run(switch, packets, begin))


def cores_of_this_process() -> list[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def measure_scaling(
    sizes: list[int], cores: list[int], count: int, repeats: int, payload_bytes: int
) -> dict[int, list[list[Round]]]:
    """Number of processes -> rounds, each with a Round per process; sizes take turns."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for core in cores[: max(sizes)]:
        ours, theirs = context.Pipe()
        process = context.Process(target=_worker, args=(theirs, core, count, payload_bytes))
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    found: dict[int, list[list[Round]]] = {size: [] for size in sizes}
    try:
        ready = [False] * len(pipes)
        for _ in range(repeats):
            for size in sizes:
                for index, pipe in enumerate(pipes):
                    if not ready[index]:
                        pipe.recv()
                        ready[index] = True
                begin = time.monotonic() + _LEAD_S
                for pipe in pipes[:size]:
                    pipe.send(begin)
                found[size].append([pipe.recv() for pipe in pipes[:size]])
                ready[:size] = [False] * size
    except EOFError:
        raise SystemExit("a process of the scaling run ended; its message is above") from None
    finally:
        for pipe in pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
    return found


def scaling_report(
    found: dict[int, list[list[Round]]], count: int, cores: list[int]
) -> list[dict[str, Any]]:
    """Per number of processes: packets per second together, and efficiency against one process."""
    rows: list[dict[str, Any]] = []
    for size, rounds in found.items():
        wall = [
            size * count / (max(r.end for r in each) - min(r.start for r in each))
            for each in rounds
        ]
        per_cpu = [size * count / sum(r.cpu for r in each) for each in rounds]
        share = [r.cpu / (r.end - r.start) for each in rounds for r in each]
        row: dict[str, Any] = {
            "processes": size,
            "cores": cores[:size],
            **{key: value for key, value in summary(wall).items() if key != "us_per_packet"},
            **per_cpu_second(per_cpu),
            # 1 where nothing else ran on the cores.
            "cpu_share_min": round(min(share), 3),
            "cpu_share_median": round(statistics.median(share), 3),
        }
        if rows:
            one = rows[0]
            row["efficiency"] = round(row["pps_median"] / (size * one["pps_median"]), 3)
            row["efficiency_per_cpu_second"] = round(
                row["pps_per_cpu_second"] / one["pps_per_cpu_second"], 3
            )
        rows.append(row)
    return rows


def siblings(cores: list[int]) -> list[str]:
    """Hardware threads that share a core with each of ``cores``, as Linux tells; may be empty."""
    paths = [
        Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in cores
    ]
    return [path.read_text().strip() for path in paths if path.exists()]


def _write_pcap(path: Path, packets: list[bytes]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in packets:
            file.write(struct.pack("<4I", 0, 0, len(frame), len(frame)) + frame)


def measure_bmv2(packets: list[bytes], repeats: int) -> tuple[list[float], int] | str:
    """simple_switch on pcap files: packets per second of CPU time, and packets it lost.

    Returns why it was not measured where it was not. Its CPU time is summed over its threads and
    includes reading and writing pcap; what a run without packets costs is taken off.
    """
    binary = find_bmv2()
    if binary is None:
        return "simple_switch is not on PATH (build p4lang/behavioral-model to compare)"
    rates, lost = [], 0
    for _ in range(repeats):
        idle, _ = _bmv2_run(binary, [])
        busy, out = _bmv2_run(binary, packets)
        if busy <= idle or not out:
            return f"simple_switch sent {out} of {len(packets)} packets in {busy:.2f} s of CPU time"
        rates.append(out / (busy - idle))
        lost = max(lost, len(packets) - out)
    return rates, lost


def find_bmv2() -> str | None:
    """Where a simple_switch is, with or without gRPC."""
    named = os.environ.get("RINGSTEP_SIMPLE_SWITCH_GRPC")
    return shutil.which("simple_switch") or named or shutil.which("simple_switch_grpc")


@functools.cache
def _thrift(binary: str) -> list[str]:
    """A free port for a build that serves Thrift: at 9090, its default, another may be running."""
    done = subprocess.run([binary, "--help"], capture_output=True, text=True, check=False)
    if "--thrift-port" not in done.stdout + done.stderr:
        return []
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return ["--thrift-port", str(one.getsockname()[1])]


def _bmv2_run(binary: str, packets: list[bytes]) -> tuple[float, int]:
    """CPU seconds of one run, and how many packets came out."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "program.json").write_text(with_entries(load()[1]))
        _write_pcap(work / f"p{IN_PORT}_in.pcap", packets)
        outputs = range(FIRST_OUT_PORT, FIRST_OUT_PORT + OUT_PORTS)
        for number in outputs:
            _write_pcap(work / f"p{number}_in.pcap", [])
        ports = [f"-i{number}@p{number}" for number in (IN_PORT, *outputs)]
        command = [binary, *ports, *_thrift(binary), "--use-files", "0", "program.json"]
        if "grpc" in Path(binary).name:
            command += ["--", "--grpc-server-addr", "127.0.0.1:0"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # It does not end by itself when the file does: wait until its output stops growing, and
        # for the output to begin. A file of its output has its header only once a packet is in it.
        size, quiet, deadline = -1, 0, time.monotonic() + BMV2_START_S
        while process.poll() is None:
            time.sleep(0.5)
            files = [file.stat().st_size for file in work.glob("p*_out.pcap")]
            started = sum(files) > 0 if packets else len(files) > OUT_PORTS
            size, quiet = sum(files), quiet + 1 if sum(files) == size else 0
            if quiet >= 4 and (started or time.monotonic() > deadline):
                break
        process.terminate()
        process.wait()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        files = [file.stat().st_size for file in work.glob("p*_out.pcap")]
        record = 16 + len(packets[0]) if packets else 1
        out = sum((each - 24) // record for each in files if each > 24)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, out


def summary(rates: list[float]) -> dict[str, float]:
    """min, median, max of packets per second, and microseconds per packet at the median."""
    median = statistics.median(rates)
    return {
        "pps_min": round(min(rates)),
        "pps_median": round(median),
        "pps_max": round(max(rates)),
        "us_per_packet": round(1e6 / median, 2),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--packets", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--payload-bytes", type=int, default=1024, help="a multiple of 4")
    parser.add_argument(
        "--processes", type=int, help="for scaling, at most; one per core, by default 2"
    )
    options = parser.parse_args(arguments)
    if options.payload_bytes < 0 or options.payload_bytes % 4:
        parser.error("--payload-bytes must be a multiple of 4")
    if not 1 <= options.packets <= OUT_PORTS * PACKETS_PER_PORT or options.repeats < 1:
        parser.error(f"--packets must be in 1..{OUT_PORTS * PACKETS_PER_PORT}, --repeats above 0")
    cores = cores_of_this_process()
    most = options.processes or min(2, len(cores))
    if not 1 <= most <= len(cores):
        parser.error(f"--processes must be in 1..{len(cores)}, the cores that may be used")
    before = os.getloadavg()
    packets = frames(options.packets, options.payload_bytes)
    report: dict[str, Any] = {
        "bench": "softswitch_pps",
        "frame_bytes": len(packets[0]),
        "packets": options.packets,
        "repeats": options.repeats,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "thread_siblings": siblings(cores[:most]),
        "unlimited_queue": measure(packets, options.repeats, None),
        # A rate just above the offered load: every packet waits in the queue for its wire time.
        "paced_queue": measure(packets, options.repeats, QueueConfig(rate_bps=1e9, capacity=256)),
    }
    sizes = list(range(1, most + 1))
    found = measure_scaling(sizes, cores, options.packets, options.repeats, options.payload_bytes)
    report["scaling"] = scaling_report(found, options.packets, cores)
    bmv2 = measure_bmv2(packets, options.repeats)
    if isinstance(bmv2, str):
        report["bmv2"] = {"skipped": bmv2}
    else:
        rates, lost = bmv2
        report["bmv2"] = {
            **per_cpu_second(rates),
            "lost": lost,
            "time": "processor time of all threads, with pcap I/O",
        }
        ours = report["unlimited_queue"]["pps_per_cpu_second"]
        # Per second of processor time, both.
        report["ratio_to_bmv2"] = round(ours / report["bmv2"]["pps_per_cpu_second"], 3)
    # One-minute load averages. What else ran makes all rates lower, and theirs unlike.
    report["load"] = [round(before[0], 2), round(os.getloadavg()[0], 2)]
    if options.json:
        print(json.dumps(report))
        return 0
    for key, value in report.items():
        for row in value if key == "scaling" else [value]:
            print(f"{key}: {row}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
