"""The walk through examples/two-hosts, as its README tells it, on free ports."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "two-hosts"
RINGSTEP = [sys.executable, "-m", "ringstep.cli"]


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(command: list[str], ready: Path) -> Iterator[dict[str, Any]]:
    process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (ready.exists() and ready.read_text().endswith("\n")):
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield json.loads(ready.read_text())
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def ringstep(controller: str, *arguments: str) -> Any:
    done = subprocess.run(
        [*RINGSTEP, *arguments, "--json"], capture_output=True, text=True, timeout=60,
        check=False, env={**os.environ, "RINGSTEP_CONTROLLER": controller},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_two_hosts_by_hand(tmp_path: Path) -> None:
    hosts = [free_udp_port() for _ in range(2)]
    switch = [*RINGSTEP, "softswitch", "run", "--grpc", "127.0.0.1:0"]
    for number, host in enumerate(hosts, 1):
        switch += ["--port", f"{number}=udp:127.0.0.1:0,127.0.0.1:{host}"]
        switch += ["--queue", f"{number}=rate_bps:50000000"]
    controller = [
        *RINGSTEP, "controller", "serve", "--topology", str(EXAMPLE / "topology.toml"),
        "--db", f"sqlite:///{tmp_path / 'ringstep.db'}", "--listen", "127.0.0.1:0",
    ]  # fmt: skip
    with (
        serving(switch, tmp_path / "switch.json") as at,
        serving(controller, tmp_path / "controller.json") as control,
    ):
        target = control["listen"]
        ringstep(target, "switch", "add", "s1", at["grpc"], "--wait")
        job = ringstep(
            target, "job", "register", "--name", "ring", "--ring", "h1,h2", "--mode", "anchored",
            "--wait",
        )  # fmt: skip
        assert 1 <= job["id"] <= 16383

        script = (EXAMPLE / "ring.py").read_text()
        for number, host in enumerate(hosts, 1):
            switch_port = at["ports"][str(number)].rpartition(":")[2]
            script = script.replace(f"600{number}", str(host)).replace(f"500{number}", switch_port)
        (tmp_path / "ring.py").write_text(script)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "ring.py"), "--steps", "3", "--packets", "50"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("ok") == 3

        (state,) = ringstep(target, "job", "show", "ring")["state"]
        assert state["counters"]["data"] >= 2 * 3 * 50
        assert {block["step_min"] for block in state["blocks"]} == {3}
        ringstep(target, "job", "release", "ring")
        assert ringstep(target, "job", "list") == []
