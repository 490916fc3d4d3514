"""TAB on the command line: names that the controller knows, and silence where it is away."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_controller import FakeController, job, switch
from forked import run_forked

from ringstep.controller.v1 import jobs_pb2, switches_pb2

TAKES_A_SHELL = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"
"""Lets Typer's --show-completion be told which shell, instead of finding it out."""


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        fake.answers["Jobs.List"] = jobs_pb2.ListResponse(jobs=[job("resnet", 1), job("gpt", 2)])
        fake.answers["Switches.List"] = switches_pb2.ListSwitchesResponse(
            switches=[switch("tor1"), switch("tor2"), switch("spine1")]
        )
        yield fake


def complete(line: str, target: str) -> subprocess.CompletedProcess[str]:
    """What bash is offered at the end of a line."""
    words = line.split(" ")
    return run_forked(
        env={
            "_RINGSTEP_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "RINGSTEP_CONTROLLER": target,
        },
        timeout=60,
    )


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ringstep jo", ["job"]),
        ("ringstep job show ", ["gpt", "resnet"]),
        ("ringstep job release re", ["resnet"]),
        ("ringstep job watch g", ["gpt"]),
        ("ringstep top --job ", ["gpt", "resnet"]),
        ("ringstep switch show tor", ["tor1", "tor2"]),
        ("ringstep switch link sp", ["spine1"]),
        ("ringstep job register --paths ", ["auto", "ecmp", "planned"]),
        ("ringstep job register --followers t", ["tor"]),
        ("ringstep top --sort al", ["alpha"]),
        ("ringstep controller token new --role ", ["operator", "reader", "scheduler"]),
    ],
)
def test_names_and_values_are_offered(
    controller: FakeController, line: str, offered: list[str]
) -> None:
    done = complete(line, controller.target)
    assert sorted(done.stdout.split()) == offered
    assert done.stderr == ""


def test_controller_named_on_the_line_is_asked(controller: FakeController) -> None:
    line = f"ringstep job show --controller {controller.target} re"
    assert complete(line, "127.0.0.1:1").stdout.split() == ["resnet"]


def test_nothing_is_offered_or_said_where_no_controller_answers() -> None:
    with socket.socket() as silent:
        # It takes connections and never says a word.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host, port = silent.getsockname()
        done = complete("ringstep job show ", f"{host}:{port}")
    assert (done.stdout.strip(), done.stderr) == ("", "")
    done = complete("ringstep job show ", "not a target")
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there_for_each_shell(shell: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run_forked("--show-completion", shell, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "_RINGSTEP_COMPLETE" in done.stdout
