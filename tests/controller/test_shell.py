"""``ringstep switch shell``: what it starts, and p4runtime-shell itself where it is installed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from commands import run
from fake_controller import FakeController, switch
from softswitches import SoftSwitch

from ringstep.controller.shell import ShellError, find_python
from ringstep.controller.v1 import switches_pb2

ROOT = Path(__file__).parents[2]
PROGRAM = "from ringstep.cli.main import main; main()"


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        unmanaged = switches_pb2.Switch(name="tor2")
        fake.answers["Switches.List"] = switches_pb2.ListSwitchesResponse(
            switches=[switch("tor1"), unmanaged]
        )
        yield fake


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python that notes how it was called, and ends with status 7."""
    stub = tmp_path / "python"
    stub.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys\n"
        f"with open({str(tmp_path / 'calls')!r}, 'a') as log:\n"
        "    log.write(json.dumps([sys.argv[1:], os.environ.get("
        "'PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION')]) + '\\n')\n"
        "sys.exit(7)\n"
    )
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    return stub


def called(python: Path) -> list[str]:
    (line,) = (python.parent / "calls").read_text().splitlines()
    argv, protobuf = json.loads(line)
    assert protobuf == "python"
    return argv


def test_switch_is_looked_up_and_the_controller_stays_primary(
    controller: FakeController, python: Path
) -> None:
    result = run(
        "switch", "shell", "tor1", "-c", "print(1)",
        at=controller, RINGSTEP_P4RUNTIME_SHELL=str(python),
    )  # fmt: skip
    assert result.exit_code == 7
    argv = called(python)
    assert argv[0] == "-c"
    assert argv[1].startswith("COMMAND, BACKUP, SCRIPT = 'print(1)', True, True\n")
    assert argv[2:] == ["--grpc-addr", "127.0.0.1:9559", "--device-id", "1"]
    assert result.stderr.count("\n") == 1
    assert "as a reader: the controller stays primary" in result.stderr


def test_no_controller_is_asked_where_everything_is_said(python: Path) -> None:
    result = run(
        "switch", "shell", "any", "--address", "10.0.0.1:9559", "--device-id", "42",
        "--election-id", "0,5", "--switch-ca", "ca.pem", "--switch-cert", "c.pem",
        "--switch-key", "k.pem",
        RINGSTEP_P4RUNTIME_SHELL=str(python), RINGSTEP_CONTROLLER="127.0.0.1:1",
    )  # fmt: skip
    assert result.exit_code == 7
    argv = called(python)
    assert argv[1].startswith("COMMAND, BACKUP, SCRIPT = None, False, True\n")
    assert argv[2:] == [
        "--grpc-addr", "10.0.0.1:9559", "--device-id", "42", "--ssl", "--cacert", "ca.pem",
        "--cert", "c.pem", "--private-key", "k.pem", "--election-id", "0,5",
    ]  # fmt: skip
    assert "with election id 0,5: the controller mends" in result.stderr


def test_switch_without_an_address_is_refused(controller: FakeController, python: Path) -> None:
    environment = {"RINGSTEP_P4RUNTIME_SHELL": str(python)}
    result = run("switch", "shell", "tor2", at=controller, **environment)
    assert (result.exit_code, "has no P4Runtime address" in result.stderr) == (1, True)
    result = run("switch", "shell", "tor9", at=controller, **environment)
    assert (result.exit_code, "known switches: tor1, tor2" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--election-id", "5"), "is not HIGH,LOW"), (("--address", "here"), "is not HOST:PORT")],
)
def test_options_that_make_no_sense_are_refused(arguments: tuple[str, ...], text: str) -> None:
    result = run("switch", "shell", "tor1", *arguments)
    assert (result.exit_code, text in " ".join(result.stderr.split())) == (2, True)


def test_python_is_named_or_lies_in_one_of_the_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    made = second / ".venv-p4runtime-shell" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.touch()
    assert find_python({}, (first, second)) == made
    variable = {"RINGSTEP_P4RUNTIME_SHELL": sys.executable}
    assert find_python(variable, (first, second)) == Path(sys.executable)
    with pytest.raises(ShellError, match=r"which is no program; name the Python of"):
        find_python({"RINGSTEP_P4RUNTIME_SHELL": str(tmp_path)}, (first,))
    with pytest.raises(ShellError) as caught:
        find_python({}, (first,))
    where = first / ".venv-p4runtime-shell"
    assert f"python3 -m venv {where}\n  {where}/bin/pip install p4runtime-shell==0.0.6" in str(
        caught.value
    )


def test_version_that_is_told_is_the_one_that_is_tested() -> None:
    told = (ROOT / "tests" / "softswitch" / "clients" / "p4runtime-shell.txt").read_text().split()
    from ringstep.controller.shell import REQUIREMENT

    assert told == [REQUIREMENT]


def real_python() -> str:
    """p4runtime-shell's own environment; skips where there is none."""
    named = os.environ.get("RINGSTEP_P4RUNTIME_SHELL") or os.environ.get(
        "RINGSTEP_P4RUNTIME_SHELL_PYTHON"
    )
    made = ROOT / ".venv-p4runtime-shell" / "bin" / "python"
    if named is None and not made.exists():
        pytest.skip(
            "p4runtime-shell needs an environment of its own: `make clients` makes it, or name the "
            "Python of one that has it in $RINGSTEP_P4RUNTIME_SHELL"
        )
    return named or str(made)


PUSH = """
import sys, p4runtime_sh.shell as sh
sh.setup(device_id=3, grpc_addr=sys.argv[1], election_id=(0, 9), verbose=False,
         config=sh.FwdPipeConfig(sys.argv[2], sys.argv[3]))
entry = sh.TableEntry("route_v4")
print("PRIMARY", flush=True)
sys.stdin.readline()
sh.teardown()
"""


@pytest.mark.slow
def test_p4runtime_shell_reads_a_software_switch_beside_its_primary(tmp_path: Path) -> None:
    python = real_python()
    build = files("ringstep") / "p4build"
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    with SoftSwitch(tmp_path, 3) as soft:
        primary = subprocess.Popen(
            [
                python, "-c", PUSH, soft.address, str(build / "ringstep_v1model.p4info.txtpb"),
                str(build / "ringstep_v1model.json"),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            assert primary.stdout is not None
            assert primary.stdout.readline() == "PRIMARY\n"
            shell = [
                sys.executable, "-c", PROGRAM, "switch", "shell", "tor1", "--address",
                soft.address, "--device-id", "3",
            ]  # fmt: skip
            environment["RINGSTEP_P4RUNTIME_SHELL"] = python

            def script(text: str, *options: str) -> subprocess.CompletedProcess[str]:
                return subprocess.run(
                    [*shell, *options], input=text, capture_output=True, text=True, timeout=120,
                    env=environment, check=False,
                )  # fmt: skip

            done = script("", "-c", "nothing")
            assert (done.returncode, "NameError" in done.stderr) == (1, True)
            done = script("rows = list(table_entry['route_v4'].read())\nlen(rows)\n")
            assert done.returncode == 0, done.stderr
            assert "You are not the primary client" in done.stdout
            assert done.stdout.splitlines()[-1] == "0"
        finally:
            primary.kill()
            primary.communicate()
        # With nobody else there it reads all the same, and does not become primary.
        done = script("len(list(table_entry['route_v4'].read()))\n")
        assert done.returncode == 0, done.stderr
        assert "You are not the primary client" in done.stdout
