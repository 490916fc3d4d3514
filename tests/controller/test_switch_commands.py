"""Commands for switches and the controller itself, against answers that are canned."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator

import grpc
import pytest
from commands import read, run
from fake_controller import FakeController, switch

from ringstep.controller.tokens import TOKEN_PREFIX
from ringstep.controller.v1 import switches_pb2


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with FakeController() as fake:
        drifted = switch(
            "tor1", pending=7, drift_missing=2, drift_foreign=1, drifts=3, foreign_kept=4,
            refused=["job_by_pair 10.0.0.1: table full"], refused_count=2,
            audited_unix_ms=1_700_000_000_000, desired_entries=50,
        )  # fmt: skip
        drifted.drained = True
        drifted.down_ports.append(11)
        fake.answers["Switches.List"] = switches_pb2.ListSwitchesResponse(
            switches=[drifted, switch("tor2")]
        )
        yield fake


def test_list_shows_what_is_pending_and_what_drifted(controller: FakeController) -> None:
    lines = run("switch", "list", at=controller).stdout.splitlines()
    (tor1,) = [line for line in lines if "tor1" in line]
    assert [cell.strip() for cell in tor1.strip("│").split("│")] == [
        "tor1", "tor", "1", "127.0.0.1:9559", "in sync (drained)", "50", "7", "-2 +1",
    ]  # fmt: skip


def test_show_tells_everything_of_one_switch(controller: FakeController) -> None:
    text = run("switch", "show", "tor1", at=controller).stdout
    for part in (
        "2 missing, 0 changed, 1 foreign", "2023-11-14 22:13:20 UTC",
        "tor1 refuses: job_by_pair 10.0.0.1: table full", "tor1: and 1 more",
    ):  # fmt: skip
        assert part in text
    data = read("switch", "show", "tor1", at=controller)
    assert (data["drift"], data["drained"], data["down_ports"]) == (
        {"missing": 2, "changed": 0, "foreign": 1}, True, [11],
    )  # fmt: skip
    wrong = run("switch", "show", "tor9", at=controller)
    assert wrong.exit_code == 1
    assert "no switch of the topology has name 'tor9'; known switches: tor1, tor2" in wrong.stderr


def test_switch_is_drained_and_used_again(controller: FakeController) -> None:
    controller.answers["Switches.Drain"] = switches_pb2.DrainResponse(
        switch=switch("spine1"), moved_jobs=["a"]
    )
    result = run("switch", "drain", "spine1", at=controller)
    assert result.stdout == "spine1 is drained; jobs that move: a\n"
    assert read("switch", "drain", "spine1", "--undo", at=controller)["moved_jobs"] == ["a"]
    assert [one.drained for one in controller.asked("Switches.Drain")] == [True, False]


def test_link_is_said_to_be_down_and_up(controller: FakeController) -> None:
    controller.answers["Switches.SetLink"] = switches_pb2.SetLinkResponse()
    result = run("switch", "link", "tor1:11", "--down", at=controller)
    assert result.stdout == "tor1:11 is down; jobs that move: none\n"
    assert read("switch", "link", "tor1:11", "--up", at=controller)["up"] is True
    for arguments in (("tor1", "--down"), ("tor1:", "--up"), (":4", "--up"), ("tor1:x", "--up")):
        wrong = run("switch", "link", *arguments, at=controller)
        assert (wrong.exit_code, "is not NAME:PORT" in wrong.stderr) == (2, True)
    neither = run("switch", "link", "tor1:11", at=controller)
    assert (neither.exit_code, "give --up or --down" in neither.stderr) == (2, True)


def test_switches_are_watched_until_the_controller_refuses(controller: FakeController) -> None:
    for _ in range(2):
        late = switch("tor1", phase=switches_pb2.SWITCH_PHASE_CONNECTING, detail="no answer")
        controller.switch_events.put(switches_pb2.SwitchEvent(switch=late))
        controller.switch_events.put(switches_pb2.SwitchEvent(synced=True))
        controller.switch_events.put(None)
    denied = (grpc.StatusCode.PERMISSION_DENIED, "a reader may not", None)
    controller.answers["Switches.Watch"] = None
    # The stream ends, and the one after it is refused.
    controller.refusals["Switches.Watch"] = []

    def watch(*arguments: str) -> str:
        controller.refusals["Switches.Watch"] = [None, denied]  # type: ignore[list-item]
        result = run("switch", "watch", *arguments, at=controller)
        assert (result.exit_code, result.stderr) == (1, "error: a reader may not\n")
        return result.stdout

    assert watch() == "tor1 connecting, 0 entries: no answer\n"
    assert json.loads(watch("--json"))["phase"] == "connecting"


def test_topology_is_read_again(controller: FakeController) -> None:
    controller.answers["Switches.ReloadTopology"] = switches_pb2.ReloadTopologyResponse(
        moved_jobs=["a"]
    )
    result = run("controller", "reload", at=controller)
    assert (result.exit_code, result.stdout) == (0, "the topology is read; jobs that move: a\n")
    controller.answers["Switches.ReloadTopology"] = switches_pb2.ReloadTopologyResponse(
        broken_jobs=["b"]
    )
    broken = run("controller", "reload", "--json", at=controller)
    assert broken.exit_code == 1
    assert json.loads(broken.stdout) == {"moved_jobs": [], "broken_jobs": ["b"]}


def test_new_token_is_shown_with_the_entry_that_knows_only_its_hash() -> None:
    result = run(
        "controller", "token", "new", "--name", "slurm", "--role", "scheduler", "--tenant", "ads",
        "--json",
    )  # fmt: skip
    data = json.loads(result.stdout)
    assert data["token"].startswith(TOKEN_PREFIX)
    assert len(data["token"]) == len(TOKEN_PREFIX) + 43
    assert data["token"] not in data["entry"]
    entry = tomllib.loads(data["entry"])["token"]
    assert entry == [
        {
            "name": "slurm", "role": "scheduler", "tenant": "ads",
            "sha256": hashlib.sha256(data["token"].encode()).hexdigest(),
        }
    ]  # fmt: skip
    text = run("controller", "token", "new", "--name", "me", "--role", "operator").stdout
    tokens = [line for line in text.splitlines() if line.startswith(TOKEN_PREFIX)]
    assert len(tokens) == 1
    assert tokens[0] != data["token"]
    assert tomllib.loads("\n".join(line for line in text.splitlines() if line not in tokens))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--name", "", "--role", "reader"), "--name '': use a letter"),
        (("--name", "a", "--role", "reader", "--tenant", "a b"), "--tenant 'a b': use a letter"),
        (("--name", "a", "--role", "root"), "'root' is not one of"),
        (("--name", "a", "--role", "operator", "--tenant", "b"), "commands the whole fabric"),
    ],
)
def test_tokens_of_nobody_are_refused(arguments: tuple[str, ...], text: str) -> None:
    result = run("controller", "token", "new", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        ("switch", "show"), ("switch", "drain"), ("switch", "link"), ("switch", "watch"),
        ("switch", "shell"), ("controller", "reload"), ("controller", "token", "new"), ("top",),
    ],
)  # fmt: skip
def test_every_command_has_help_with_an_example(command: tuple[str, ...]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"Example: ringstep {' '.join(command)}" in " ".join(result.stdout.split())
