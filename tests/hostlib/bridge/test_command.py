"""``python -m ringstep.hostlib.bridge``: what it says, refuses and leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .stand_in import Engine

COMMAND = [sys.executable, "-m", "ringstep.hostlib.bridge"]
SESSION = Path(__file__).resolve().parent / "data" / "veth_bridges.py"
WIRE = ["--wire", "udp:127.0.0.1:0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_until_a_signal_and_tells_what_it_did(tmp_path: Path, number: int) -> None:
    path, stats = tmp_path / "bridge.sock", tmp_path / "stats.json"
    with subprocess.Popen(
        [*COMMAND, "--socket", str(path), *WIRE, "--tagger", "qp_pool:8", "--job-tag", "3",
         "--dcqcn", "connectx", "--rate", "1", "--stats", str(stats), "--json",
         "--mac", "02:00:00:cd:ab:01"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["event"], ready["queue_pairs"], ready["step_bits"]) == ("ready", 8, 3)
        assert ready["mac"] == "02:00:00:cd:ab:01"  # :cd: and :ab: are names of emojis
        left, right = Engine(path), Engine(path)
        ends = left.open(), right.open()
        assert (left.connect(ends[1]), right.connect(ends[0])) == (0, 0)
        left.send(b"hello", 4)
        assert right.receive() == (b"hello", 4)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert left.closed()
        left.close()
        right.close()
    assert process.returncode == 0, err
    ended = json.loads(out)
    assert (ended["event"], ended["messages_received"], ended["broken"]) == ("ended", 1, 0)
    assert json.loads(stats.read_text())["messages_sent"] == 1
    assert not path.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stats.json"]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--wire", "udp:127.0.0.1"], "not HOST:PORT"),
        (["--wire", "udp:0.0.0.0:0"], "not any"),
        (["--wire", "cable"], "none of"),
        (["--wire", "packet:nosuch0"], "no network interface 'nosuch0'"),
        ([*WIRE, "--tagger", "qp_pool:3"], "power of two"),
        ([*WIRE, "--tagger", "often"], "qp_pool:K"),
        ([*WIRE, "--tagger", "qp_pool:8", "--tag-layout", "6:8"], "S = 3"),
        ([*WIRE, "--tag-layout", "6:9"], "J + S"),
        ([*WIRE, "--tag-layout", "six"], "J:S"),
        ([*WIRE, "--job-tag", "1"], "job tag 1"),
        ([*WIRE, "--dcqcn", "fast"], "known: "),
        ([*WIRE, "--mtu", "1000"], "InfiniBand MTU"),
        ([*WIRE, "--mac", "02:00"], "--mac"),
        ([*WIRE, "--address", "10.0.0.256"], "10.0.0.256"),
        ([*WIRE, "--ring", "5000"], "power of two"),
        ([*WIRE, "--rate", "0"], "--rate"),
        ([*WIRE, "--stats", "/nosuch/file"], "no folder"),
        ([*WIRE, "--rto-ms", "0"], "timeout"),
    ],
)
def test_bad_input_is_named_and_nothing_is_left(
    tmp_path: Path, options: list[str], word: str
) -> None:
    from typer.testing import CliRunner

    from ringstep.hostlib.bridge.command import app

    result = CliRunner().invoke(app, ["--socket", str(tmp_path / "s"), *options])
    assert result.exit_code == 2, result.output
    assert word in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "said"), [("none/s", "cannot listen on"), ("s", "not a socket")])
def test_a_place_that_cannot_be_listened_at_is_named_without_numbers(
    tmp_path: Path, name: str, said: str
) -> None:
    from typer.testing import CliRunner

    from ringstep.hostlib.bridge.command import app

    (tmp_path / "s").write_text("mine")
    result = CliRunner().invoke(app, ["--socket", str(tmp_path / name), *WIRE])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Errno" not in result.output
    assert (tmp_path / "s").read_text() == "mine"


@pytest.mark.root
def test_bridges_on_interfaces_straight_and_behind_the_software_switch() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip: apt-get install util-linux iproute2")
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    probe = subprocess.run(
        [*command, "ip", "link", "add", "p0", "type", "veth", "peer", "name", "p1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"no network namespace with veth here ({probe.stderr.strip()}); run as root")
    done = subprocess.run(
        [*command, sys.executable, str(SESSION)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("ok\n"), done.stdout + done.stderr
