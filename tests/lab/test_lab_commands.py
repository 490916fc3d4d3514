"""``ringstep lab`` without a lab: what is refused, and how; what a killed lab's state says."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ringstep.lab import lab_cli, leftovers, mininet_env
from ringstep.lab.lab_cli import app, parse_seeds
from ringstep.lab.leftovers import Owner, read_state
from ringstep.lab.priority import Scheduling, prefer, preferred_thread
from ringstep.lab.thrift import ThriftError, encode_call, set_queue_rate

RINGSTEP = [sys.executable, "-m", "ringstep.cli"]
WIDE = {"COLUMNS": "200", "TERM": "dumb"}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("up ring", "leaf-spine"),
        ("up leaf-spine --hosts 7", "multiple of the 4 leaves"),
        ("up leaf-spine --rate 50", "50"),
        ("up leaf-spine --rate 5k", "1M..1G"),
        ("up leaf-spine --engine ovs", "bmv2"),
        ("up leaf-spine --ready-file /nonexistent/x", "/nonexistent"),
        ("run broadcast", "ring-allreduce"),
        ("run ring-allreduce --seeds 5..1", "upwards"),
        ("run ring-allreduce --seeds x", "1..5"),
        ("run ring-allreduce --seeds 1,1", "twice"),
        ("run ring-allreduce --paths ecmp,best", "ecmp, planned, turning"),
        ("run ring-allreduce --marking on", "off, paper, spaced, ringstep"),
        ("run ring-allreduce --background maybe", "on, off"),
        ("run ring-allreduce --background-share 2", "(0, 1]"),
        ("run ring-allreduce --size 0", "size"),
        ("run ring-allreduce --preset nonsense", "connectx"),
        ("run ring-allreduce --k 2", "0..1"),
        ("run ring-allreduce --jitter -1", "jitter"),
        ("run ring-allreduce --out /dev/null/lab", "/dev/null/lab"),
    ],
)
def test_bad_values_are_refused_before_anything_is_started(command: str, said: str) -> None:
    done = CliRunner().invoke(app, command.split(), env=WIDE)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", ["up leaf-spine", "run ring-allreduce", "down"])
def test_without_root_the_lab_says_so(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, command.split(), env=WIDE)
    assert done.exit_code == 2
    assert "needs root" in done.output


def test_without_mininet_the_lab_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mininet_env, "DIST_PACKAGES", (tmp_path,))
    monkeypatch.setattr(sys, "modules", {n: m for n, m in sys.modules.items() if n != "mininet"})
    monkeypatch.setattr(mininet_env.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(mininet_env.LabUnavailable, match="apt-get install"):
        mininet_env.load_mininet()


def test_without_bmv2_the_lab_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(mininet_env.BMV2_VARIABLE, raising=False)
    with pytest.raises(mininet_env.LabUnavailable, match="on the PATH cannot be run; build"):
        mininet_env.find_bmv2()
    monkeypatch.setenv(mininet_env.BMV2_VARIABLE, "/nonexistent/switch")
    with pytest.raises(mininet_env.LabUnavailable, match="names '/nonexistent/switch'"):
        mininet_env.find_bmv2()


def test_help_shows_examples_and_starts_no_mininet() -> None:
    script = (
        "import sys; from ringstep.cli.main import compose; compose(); "
        "assert not any(name.startswith('mininet') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    for command in ("up", "run", "down", "status"):
        done = CliRunner().invoke(app, [command, "--help"], env=WIDE)
        assert "Example" in done.output


@pytest.mark.parametrize(
    ("text", "seeds"), [("1..3", (1, 2, 3)), ("7", (7,)), ("1,2,7..8", (1, 2, 7, 8))]
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


def test_status_tells_a_live_lab_from_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "lab.json"
    monkeypatch.setenv(leftovers.STATE_ENV, str(state))
    assert read_state() is None
    me = Owner.me()
    state.write_text(json.dumps({"owner": {"pid": me.pid, "started": me.started}}))
    assert read_state() is not None
    # The same process id, handed out again.
    state.write_text(json.dumps({"owner": {"pid": me.pid, "started": me.started - 1}}))
    assert read_state() is None
    state.write_text("{half a fi")
    assert read_state() is None
    done = CliRunner().invoke(lab_cli.app, ["status"])
    assert done.exit_code == 1
    assert "no lab is up" in done.output


def test_only_marked_processes_are_found_and_never_our_own_parents(only_lab: None) -> None:
    mark = {**os.environ, leftovers.MARK: "test"}
    with (
        subprocess.Popen(["sleep", "60"], env=mark) as marked,
        subprocess.Popen(["sleep", "60"]) as other,
    ):
        try:
            found = leftovers.marked_processes()
            assert marked.pid in found
            assert other.pid not in found
            assert os.getpid() not in found
        finally:
            marked.kill()
            other.kill()


def test_real_time_is_asked_for_and_given_back() -> None:
    before = os.sched_getscheduler(0)
    with preferred_thread(Scheduling.REALTIME) as granted:
        assert os.sched_getscheduler(0) == (os.SCHED_RR if granted else before)
    assert os.sched_getscheduler(0) == before
    with preferred_thread(Scheduling.NORMAL) as granted:
        assert not granted
    assert prefer([2**22 + 1])


def test_thrift_call_is_encoded_as_the_protocol_says() -> None:
    name = b"simple_switch:set_egress_queue_rate"
    expected = struct.pack("!Ii", 0x80010001, len(name)) + name + bytes(4)
    expected += b"\x08\x00\x01" + struct.pack("!i", 7) + b"\x0a\x00\x02" + struct.pack("!q", 378)
    assert encode_call("set_egress_queue_rate", 7, 378) == expected + b"\0"


@pytest.mark.parametrize(("kind", "fails"), [(2, False), (3, True)])
def test_thrift_answers(kind: int, fails: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(struct.pack("!Ii", 0x80010000 | kind, 4) + b"name" + bytes(4))

        thread = threading.Thread(target=answer)
        thread.start()
        port = server.getsockname()[1]
        if fails:
            with pytest.raises(ThriftError, match="refused"):
                set_queue_rate(port, 1, 100)
        else:
            set_queue_rate(port, 1, 100)
        thread.join()
