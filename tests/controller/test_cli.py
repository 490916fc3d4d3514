"""The commands, as people and scripts use them: a controller process and the CLI against it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked import ForkedProcess
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner, Result

from ringstep.controller.cli import app
from ringstep.controller.render import job_notes, job_table, switch_notes, switch_table
from ringstep.controller.talk import show, waiting
from ringstep.controller.v1 import jobs_pb2, switches_pb2

_START_S = 60.0
_PROGRAM = "from ringstep.controller.cli import app; app()"
FABRIC_OF_ONE = """
[[switch]]
name = "tor1"
device_id = 1
role = "tor"
mac = "02:00:00:00:01:00"

[[host]]
name = "h1"
ip = "10.0.0.1"
mac = "02:00:00:00:00:01"

[[host]]
name = "h2"
ip = "10.0.0.2"
mac = "02:00:00:00:00:02"

[[link]]
a = "tor1:1"
b = "h1"
rate = "10G"

[[link]]
a = "tor1:2"
b = "h2"
rate = "10G"
"""


class Process:
    """A controller process; ``listen`` once it is ready.

    ``executed``: as a shell does it, which takes longer than to fork it.
    """

    def __init__(self, folder: Path, *options: str, executed: bool = False) -> None:
        ready = folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [
            "controller", "serve", "--topology", str(folder / "fabric.toml"),
            "--db", f"sqlite:///{folder / 'store.db'}", "--ready-file", str(ready), *options,
        ]  # fmt: skip
        self._output = folder / "output"
        self.process: subprocess.Popen[bytes] | ForkedProcess
        with self._output.open("wb") as output:
            if executed:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *command], stdout=output, stderr=output
                )
            else:
                self.process = ForkedProcess(command, output)
        deadline = time.monotonic() + _START_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(self._output.read_text())
            time.sleep(0.005)
        facts = json.loads(ready.read_text())
        self.listen: str = facts["listen"]
        assert facts == {"listen": self.listen, "pid": self.process.pid, "leading": True}

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.process.wait(_START_S), self._output.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fabric.toml").write_text(FABRIC_OF_ONE)
    return tmp_path


@pytest.fixture
def controller(folder: Path) -> Iterator[Process]:
    process = Process(folder, "--listen", "127.0.0.1:0")
    yield process
    process.kill()


def run(*arguments: str, controller: Process | None = None) -> Result:
    environment = {"RINGSTEP_CONTROLLER": controller.listen} if controller else {}
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(app, arguments)


def read(*arguments: str, controller: Process) -> Any:
    result = run(*arguments, "--json", controller=controller)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


RING = ("job", "register", "--name", "resnet", "--ring", "h1,h2")


def test_job_is_registered_listed_shown_and_released(controller: Process) -> None:
    job = read(*RING, "--k", "0.5", "--tau", "1/3", "--q-gate", "off", controller=controller)
    assert sorted(job) == [
        "channels", "created_unix_ms", "followers", "generation", "id", "lease_remaining_ms",
        "lease_s", "marking", "match", "moving", "name", "owner", "parameters", "paths",
        "paths_choice", "problem", "profile", "programming", "queue_pairs", "rails", "request_id",
        "rings", "tag", "tenant", "uec_job_ids",
    ]  # fmt: skip
    assert (job["id"], job["generation"], job["name"]) == (1, 1, "resnet")
    assert (job["rings"], job["match"], job["profile"]) == ([["h1", "h2"]], "pair", "ringstep")
    assert sorted(job["parameters"]) == [
        "alpha_max", "enabled", "job_bits", "k", "mode", "n_sample", "n_warmup",
        "packets_per_step", "q_gate", "scope", "step_bits", "t_win_us", "tau",
    ]  # fmt: skip
    assert (job["parameters"]["k"], job["parameters"]["tau"]) == (0.5, "1/3")
    assert job["parameters"]["q_gate"] is None
    assert job["programming"] == [
        {
            "switch": "tor1",
            "phase": "unmanaged",
            "detail": "has no P4Runtime address; add it with 'ringstep switch add'",
            "cannot": False,
        }
    ]
    assert read("job", "list", controller=controller) == [job]
    shown = read("job", "show", "resnet", controller=controller)
    assert shown == read("job", "show", "1", controller=controller)
    assert shown["job"] == job
    assert shown["state"] == [
        {
            "switch": "tor1",
            "error": "has no P4Runtime address; add it with 'ringstep switch add'",
            "counters": None,
            "blocks": [],
        }
    ]
    assert read("job", "release", "resnet", controller=controller)["id"] == 1
    assert read("job", "list", controller=controller) == []


def test_people_get_tables(controller: Process) -> None:
    register = run(*RING, "--profile", "paper", controller=controller)
    assert "resnet" in register.stdout
    listed = run("job", "list", controller=controller)
    assert "h1 h2" in listed.stdout
    assert "0 of 1 in sync; tor1 unmanaged" in listed.stdout
    shown = run("job", "show", "resnet", controller=controller)
    assert "h1 -> h2 -> h1" in shown.stdout
    assert "\ntor1: has no P4Runtime address" in shown.stdout
    switches = run("switch", "list", controller=controller)
    assert "unmanaged" in switches.stdout
    assert "\ntor1: has no P4Runtime address; add it with" in switches.stdout
    released = run("job", "release", "resnet", controller=controller)
    assert released.stdout == "released job 1 resnet\n"


def test_switches_are_added_listed_and_removed(controller: Process) -> None:
    added = read("switch", "add", "tor1", "127.0.0.1:1", controller=controller)
    assert sorted(added) == [
        "address", "audited_unix_ms", "desired_entries", "detail", "device_id", "down_ports",
        "drained", "drift", "drifts", "foreign_kept", "foreign_removed", "name", "pending",
        "phase", "refused", "refused_count", "role", "sessions", "updates_written",
    ]  # fmt: skip
    assert (added["name"], added["address"], added["device_id"]) == ("tor1", "127.0.0.1:1", 1)
    (listed,) = read("switch", "list", controller=controller)
    assert listed["address"] == "127.0.0.1:1"
    late = run(
        "switch", "add", "tor1", "127.0.0.1:1", "--wait", "--timeout", "0.1", controller=controller
    )
    assert (late.exit_code, late.stdout) == (1, "")
    assert "not in sync after 0.1 s: tor1 is connecting" in late.stderr
    assert read("switch", "remove", "tor1", controller=controller) == {"name": "tor1"}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("job", "show", "nobody"), 1, "error: no live job has name 'nobody'"),
        (("job", "release", "7"), 1, "error: no live job has Job_ID 7"),
        (("job", "show", "99999"), 2, "error: job.id: 99999: must be in 1..16383"),
        (("switch", "remove", "tor1"), 1, "error: switch 'tor1' is not kept programmed"),
        (("switch", "add", "tor9", "127.0.0.1:1"), 1, "known switches: tor1"),
        (
            ("job", "register", "--name", "a", "--ring", "h1,h9"),
            2,
            "error: spec.rings[1].hosts: host 'h9' is not in the topology; known hosts: h1, h2",
        ),
        (
            (*RING, "--k", "2"),
            2,
            "error: spec.overrides.k: k = 2.0: must be in 0..1 (the paper uses 0.001 to 0.01)",
        ),
        ((*RING, "--t-win-us", "-1"), 2, "numbers are whole, not negative, and below 2**32"),
    ],
)
def test_failures_go_to_stderr_with_a_status(
    controller: Process, arguments: tuple[str, ...], status: int, text: str
) -> None:
    result = run(*arguments, controller=controller)
    assert (result.exit_code, result.stdout) == (status, "")
    assert text in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("job", "register", "--name", "a", "--qp", "h1:h2"), "is not SRC:DST:QP"),
        (("job", "register", "--name", "a", "--tag", "rule:1"), "is not CARRIER:VALUE"),
        (("job", "register", "--name", "a", "--q-gate", "deep"), "is not a queue depth"),
        ((*RING, "--marking", "on", "--paused"), "on, but --paused says off; give one of them"),
        ((*RING, "--marking", "maybe"), "'maybe' is not one of 'auto', 'on', 'off'"),
        ((*RING, "--chunk", "lots"), "'lots' is not a size"),
        ((*RING, "--rtt", "soon"), "'soon' is not a delay"),
        (("job", "register", "--name", "a", "--uec-job-id", "x"), "'x' is not a number; write for"),
        (("job", "register", "--name", "a", "--tau", "1/0"), "'1/0' is not a fraction; write 1/4"),
        (("job", "register"), "--name"),
        (("switch", "add", "tor1", "here"), "is not HOST:PORT"),
        (("job", "list", "--controller", "here"), "is not HOST:PORT"),
        (("controller", "serve", "--listen", "here", "--topology", "x"), "is not HOST:PORT"),
        (("controller", "serve"), "error: no topology; give --topology fabric.toml"),
        (("controller", "serve", "--topology", "/none.toml"), "error: /none.toml: cannot be read"),
        (("controller", "serve", "--config", "/none.toml"), "error: /none.toml: cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_is_asked(
    arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("flags", "on", "choice"),
    [
        ((), False, "auto"),
        (("--marking", "auto"), False, "auto"),
        (("--marking", "on"), True, "on"),
        (("--enabled",), True, "on"),
        (("--marking", "off"), False, "off"),
        (("--paused", "--marking", "off"), False, "off"),
    ],
)
def test_register_says_whether_it_marks_and_why(
    controller: Process, flags: tuple[str, ...], on: bool, choice: str
) -> None:
    job = read(*RING, *flags, controller=controller)
    assert job["parameters"]["enabled"] is on
    auto = choice == "auto"
    reason = "no ring edge leaves its rack: there is no path to choose and no queue to mark in"
    assert job["marking"] == {
        "on": on,
        "choice": choice,
        "reason": reason if auto else "as asked",
        "confidence": "measured" if auto else None,
        "closed_loop": False,
    }
    run("job", "release", "resnet", controller=controller)
    shown = run(*RING, *flags, controller=controller)
    line = f"marking off, auto, measured: {reason}" if auto else f"marking {choice}: as asked"
    assert line in shown.stdout.splitlines()


def test_reason_is_one_line_on_a_narrow_terminal(controller: Process) -> None:
    environment = {"COLUMNS": "60", "RINGSTEP_CONTROLLER": controller.listen}
    shown = CliRunner(env=environment).invoke(app, RING)
    assert "no queue to mark in" in shown.stdout.splitlines()[-1]
    assert shown.stdout.splitlines()[-1].startswith("marking off, auto")


def test_job_of_ultra_ethernet_needs_its_program(folder: Path) -> None:
    plain = Process(folder, "--listen", "127.0.0.1:0")
    result = run(*RING, "--uec-job-id", "0xA00007", controller=plain)
    plain.end(signal.SIGTERM)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no table job_by_uec_id" in result.stderr
    with_uec = Process(folder, "--listen", "127.0.0.1:0", "--uec")
    try:
        job = read(*RING, "--uec-job-id", "0xA00007", controller=with_uec)
        assert (job["match"], job["uec_job_ids"]) == ("uec", [0xA00007])
        assert "0xa00007" in run("job", "show", "resnet", controller=with_uec).stdout
    finally:
        with_uec.end(signal.SIGTERM)


def test_option_and_file_that_name_different_programs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "controller.toml"
    path.write_text('topology = "f.toml"\n[pipeline]\njson = "x.json"\n')
    result = run("controller", "serve", "--config", str(path), "--uec")
    assert result.exit_code == 2
    assert "--uec, but" in result.stderr


def test_interrupted_wait_says_what_stays_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(asyncio.CancelledError), waiting("job 'a' stays registered as 1"):
        raise asyncio.CancelledError
    assert capsys.readouterr().err == "job 'a' stays registered as 1\n"


def test_no_controller_is_a_failure_with_a_way_out() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        host, port = reserved.getsockname()
        result = run("job", "list", "--controller", f"{host}:{port}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "start one with 'ringstep controller serve'" in result.stderr


def test_brackets_in_a_reason_are_shown_as_they_are() -> None:
    """A switch's own words are not markup: ``[/x]`` would end the command with a traceback."""
    reason = "refused by [/opt/switch]: [red]hosts[1]"
    switch = switches_pb2.Switch(name="s1", status=switches_pb2.SwitchStatus(detail=reason))
    job = jobs_pb2.Job(spec=jobs_pb2.JobSpec(name="a"), problem=reason)
    console = Console(file=io.StringIO(), width=200)
    for item in (
        switch_table([switch]), *switch_notes([switch]), job_table([job]), *job_notes([job])
    ):  # fmt: skip
        console.print(item)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"s1: {reason}\n" in shown
    assert f"job a: {reason}\n" in shown


def test_addresses_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """``:cd:`` and ``:ab:`` are names of emojis."""
    table = Table("MAC", "IP")
    table.add_row("02:00:00:cd:ab:01", "fd00:ab:cd::1")
    show(False, {}, table)
    shown = capsys.readouterr().out
    assert "02:00:00:cd:ab:01" in shown
    assert "fd00:ab:cd::1" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("controller", "serve"),
        ("switch", "add"),
        ("switch", "list"),
        ("switch", "remove"),
        ("job", "register"),
        ("job", "list"),
        ("job", "show"),
        ("job", "release"),
    ],
)
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: ringstep {' '.join(command)}" in " ".join(result.stdout.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_controller_and_frees_its_port(folder: Path, number: int) -> None:
    process = Process(folder, "--listen", "127.0.0.1:0", executed=True)
    status, output = process.end(number)
    assert (status, "Traceback" in output) == (0, False)
    host, _, port = process.listen.rpartition(":")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((host, int(port)))


def test_controller_killed_at_any_time_keeps_its_jobs(folder: Path) -> None:
    first = Process(folder, "--listen", "127.0.0.1:0")
    job = read(*RING, "--request-id", "r1", controller=first)
    first.kill()
    second = Process(folder, "--listen", "127.0.0.1:0")
    try:
        assert read("job", "list", controller=second) == [job]
        assert read(*RING, "--request-id", "r1", controller=second) == job
    finally:
        second.end(signal.SIGTERM)


def test_port_in_use_is_refused_and_nothing_keeps_running(
    controller: Process, folder: Path
) -> None:
    result = subprocess.run(
        [
            sys.executable, "-c", _PROGRAM, "controller", "serve",
            "--topology", str(folder / "fabric.toml"), "--db", "sqlite://",
            "--listen", controller.listen,
        ],
        capture_output=True,
        text=True,
        timeout=_START_S,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert result.returncode == 2
    assert f"error: cannot listen on {controller.listen}: the port is in use" in result.stderr
    assert "Traceback" not in result.stderr


def test_program_that_is_not_the_controllers_is_refused(folder: Path) -> None:
    (folder / "other.p4info.txtpb").write_text('pkg_info { arch: "v1model" }\n')
    (folder / "controller.toml").write_text(
        'topology = "fabric.toml"\nlisten = "127.0.0.1:0"\n'
        '[pipeline]\np4info = "other.p4info.txtpb"\n'
    )
    result = run("controller", "serve", "--config", str(folder / "controller.toml"))
    assert result.exit_code == 2
    assert "not the program of this controller" in result.stderr
    assert "table route_v4 is missing" in result.stderr


def test_ready_file_that_cannot_be_written_is_refused(folder: Path) -> None:
    result = run(
        "controller", "serve", "--topology", str(folder / "fabric.toml"), "--db", "sqlite://",
        "--listen", "127.0.0.1:0", "--ready-file", "/nonexistent/ready.json",
    )  # fmt: skip
    assert result.exit_code == 2
    assert "give a path that can be written" in result.stderr
