"""Hosts in network namespaces: they reach one another, have a rate, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringstep.hostlib.nethosts import NetHosts, missing

LISTEN = """
import socket
s = socket.create_server(("0.0.0.0", 5000)); print("ready", flush=True)
c, who = s.accept(); n = 0
while d := c.recv(1 << 16): n += len(d)
print(who[0], n)
"""
SEND = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 5000)); begin = time.perf_counter()
s.sendall(bytes(int(sys.argv[2]))); s.shutdown(1); s.recv(1); print(time.perf_counter() - begin)
"""


@pytest.fixture(autouse=True)
def _may(request: pytest.FixtureRequest) -> None:
    if "hosts" in request.fixturenames and (reason := missing()) is not None:
        pytest.skip(reason)


@pytest.fixture
def hosts() -> Iterator[NetHosts]:
    with NetHosts(3) as made:
        yield made


def transfer(hosts: NetHosts, size: int) -> tuple[list[str], float]:
    """Send bytes from host 0 to host 2; return what the receiver says and the seconds it took."""
    listener = hosts.start(2, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE)
    assert listener.stdout is not None
    assert listener.stdout.readline() == "ready\n"
    sender = hosts.start(
        0, [sys.executable, "-c", SEND, hosts.address(2), str(size)], stdout=subprocess.PIPE
    )
    out, _ = sender.communicate(timeout=60)
    return listener.communicate(timeout=60)[0].split(), float(out)


@pytest.mark.root
def test_hosts_reach_one_another_by_their_links(hosts: NetHosts) -> None:
    before = hosts.received_bytes(2)
    said, _ = transfer(hosts, 300_000)
    assert said == [hosts.address(0), "300000"]
    assert hosts.received_bytes(2) - before > 300_000


@pytest.mark.root
def test_rate_holds_at_least_what_it_must(hosts: NetHosts) -> None:
    hosts.set_rate(20e6)
    _, took = transfer(hosts, 2_000_000)
    assert took > 2_000_000 * 8 / 20e6 * 0.8  # a shaped link is never faster


@pytest.mark.root
def test_queues_retransmissions_and_congestion_control_are_as_asked_for() -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with NetHosts(
        2, rate_bps=80e6, queue_ms=40, burst_ms=4, least_burst=1 << 14, rto_min_ms=20,
        congestion="reno",
    ) as hosts:  # fmt: skip
        said = [
            subprocess.run(
                hosts.command(1, command), capture_output=True, text=True, check=True
            ).stdout
            for command in (["tc", "-j", "qdisc", "show", "dev", "eth0"], ["ip", "route"])
        ]
    [queue] = json.loads(said[0])
    assert queue["options"]["rate"] == 10_000_000  # bytes
    assert queue["options"]["burst"] == pytest.approx(40_000, rel=0.01)
    assert queue["options"]["lat"] == pytest.approx(36_000, rel=0.01)  # µs beyond the burst
    assert "rto_min lock 20ms" in said[1]
    assert "congctl reno" in said[1]


@pytest.mark.root
def test_host_that_is_cut_off_is_silent(hosts: NetHosts) -> None:
    hosts.set_link(2, up=False)
    before = hosts.received_bytes(2)
    with socket.socket() as _:
        probe = hosts.start(0, [sys.executable, "-c", SEND, hosts.address(2), "10"],
                            stderr=subprocess.PIPE)  # fmt: skip
        time.sleep(0.2)
        assert probe.poll() is None
    assert hosts.received_bytes(2) == before
    hosts.set_link(2, up=True)


@pytest.mark.root
def test_nothing_is_left_when_the_program_is_killed(hosts: NetHosts) -> None:
    script = (
        "from ringstep.hostlib.nethosts import NetHosts; import sys\n"
        "h = NetHosts(2); print(h.pid(0), h.pid(1), flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        holders = [int(word) for word in process.stdout.readline().split()]
        assert all(Path(f"/proc/{pid}").exists() for pid in holders)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in holders):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_senseless_counts_are_refused() -> None:
    for count in (0, 251):
        with pytest.raises(ValueError, match="1 to 250"):
            NetHosts(count)


@pytest.mark.parametrize("wrong", [{"queue_ms": 0}, {"rto_min_ms": -1}, {"burst_ms": float("nan")}])
def test_senseless_times_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a finite time above 0"):
        NetHosts(2, **wrong)  # type: ignore[arg-type]
