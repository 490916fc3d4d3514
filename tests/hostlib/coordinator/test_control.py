"""The control socket, and the commands that use it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ringstep.hostlib.cli import app
from ringstep.hostlib.coordinator.control import (
    CLIENTS_MAX,
    LINE_MAX,
    ControlError,
    ControlServer,
    ask,
    socket_path,
)
from ringstep.hostlib.coordinator.loop import Loop
from ringstep.hostlib.shm import default_path
from ringstep.hostlib.shm_layout import Algo, Proto

Make = Callable[..., Any]
run = CliRunner().invoke
TABLE = "collective,bytes,algorithm,protocol,channels,chunk\nallreduce,1KiB..,ring,simple,7,64KiB\n"


def connected() -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(str(socket_path(default_path())))
    return client


def line_of(client: socket.socket) -> dict[str, Any]:
    found = b""
    while not found.endswith(b"\n"):
        found += client.recv(1 << 16)
    answer = json.loads(found)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{}", 'an object with "do"'),
        (b"[]", 'an object with "do"'),
        (b"\xff\xfe", "not a JSON object"),
        (b"status", "not a JSON object"),
        (b'{"do": 3}', 'an object with "do"'),
        (b'{"do": "dance"}', "'dance': status, calls, policy, bypass or stop"),
        (b'{"do": "policy"}', '"name" is missing'),
        (b'{"do": "policy", "name": ["x"]}', '"name" is missing'),
        (b'{"do": "bypass", "on": 1}', '"on" is true or false'),
        (b"[" * 4000, "not a JSON object"),
        (b"", "not a JSON object"),
    ],
)
def test_bad_requests_are_refused_and_good_ones_follow(start: Make, line: bytes, said: str) -> None:
    start()
    with connected() as client:
        client.sendall(line + b"\n")
        answer = line_of(client)
        assert answer["ok"] is False
        assert said in answer["error"]
        client.sendall(b'{"do": "status"}\n')
        assert line_of(client)["ok"] is True


def test_garbage_half_lines_and_crowds_hurt_nobody(start: Make) -> None:
    running = start()
    with connected() as endless:
        endless.sendall(b"x" * LINE_MAX)
        with contextlib.suppress(OSError):  # hung up on
            for _ in range(10):
                endless.sendall(b"x" * LINE_MAX)
            assert endless.recv(1) == b""
    crowd = [connected() for _ in range(CLIENTS_MAX + 8)]
    for client in crowd:
        with contextlib.suppress(BrokenPipeError):  # those beyond the limit are hung up on
            client.sendall(b'{"do": "sta')
    assert running.status()["ok"] is True
    for client in crowd:
        client.close()
    slow = connected()
    slow.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(2000):
            slow.send(b'{"do": "status"}\n')
    assert running.status()["ok"] is True
    slow.close()
    assert running.status()["ok"] is True


def test_two_requests_in_one_packet_get_two_answers(start: Make) -> None:
    start()
    with connected() as client:
        client.sendall(b'{"do": "bypass", "on": true}\n{"do": "bypass", "on": false}\n')
        found = b""
        while found.count(b"\n") < 2:
            found += client.recv(1 << 16)
        assert [json.loads(line)["bypass"] for line in found.splitlines()] == [True, False]


def test_a_socket_left_behind_is_recognised_and_replaced(start: Make, shm_dir: Path) -> None:
    path = socket_path(default_path())
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ControlError, match="left behind by a coordinator that is gone"):
        ask(path, {"do": "status"})
    assert "left behind" in run(app, ["status"]).stderr
    running = start()
    assert running.status()["ok"] is True


def test_no_coordinator(shm_dir: Path) -> None:
    for command in (["status"], ["policy", "nccl"], ["bypass", "on"], ["stop"]):
        found = run(app, command)
        assert found.exit_code == 2
        assert "no coordinator; `ringstep tuner coordinator`" in " ".join(found.stderr.split())


def test_paths_that_no_socket_can_have(tmp_path: Path) -> None:
    loop = Loop()
    with pytest.raises(ControlError, match="longer than the 107 bytes"):
        ControlServer(tmp_path / ("x" * 200), loop, lambda request: {})
    with pytest.raises(ControlError, match="No such file"):
        ControlServer(Path("/proc/none/x.ctl"), loop, lambda request: {})
    loop.close()


def test_who_answers_nonsense_is_no_coordinator(shm_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.ctl"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(ControlError, match=r"no answer within 0\.1 s"):
            ask(path, {"do": "status"}, timeout_s=0.1)


def test_status_for_people_and_scripts(start: Make, make_ranks: Make, shm_dir: Path) -> None:
    (shm_dir / "t.csv").write_text(TABLE)
    start(f"fixed:{shm_dir / 't.csv'}")
    make_ranks(2).run_until(((Algo.RING, Proto.SIMPLE), 7))
    shown = run(app, ["status"], env={"COLUMNS": "160"})
    assert shown.exit_code == 0
    words = " ".join(shown.output.split())
    assert "policy fixed: in use, epoch 1" in words
    assert "2 ranks, switches at collectives, epoch 1" in words
    assert "ring/simple, 7 channels, 65536 B chunks" in words
    found = json.loads(run(app, ["status", "--json"]).output)
    assert found["policy"] == "fixed"
    assert found["communicators"][0]["apply_ms"] > 0


def test_the_commands_switch_and_stop(
    start: Make, make_ranks: Make, shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shm_dir / "t.csv").write_text(TABLE)
    start()
    ranks = make_ranks(2)
    ranks.step()
    monkeypatch.chdir(shm_dir)
    assert run(app, ["policy", "fixed:t.csv"]).output == "policy fixed\n"
    ranks.run_until(((Algo.RING, Proto.SIMPLE), 7))
    assert run(app, ["bypass", "on"]).output == "NCCL is left alone\n"
    ranks.run_until(((Algo.TREE, Proto.LL), 0))
    assert json.loads(run(app, ["bypass", "off", "--json"]).output)["bypass"] is False
    ranks.run_until(((Algo.RING, Proto.SIMPLE), 7))
    assert run(app, ["bypass", "maybe"]).exit_code == 2
    refused = run(app, ["policy", "fixed:none.csv"])
    assert refused.exit_code == 2
    assert "No such file" in refused.stderr
    assert run(app, ["stop"]).output == "ending\n"


def test_tables_are_checked_and_saved(start: Make, make_ranks: Make, shm_dir: Path) -> None:
    table = shm_dir / "t.csv"
    table.write_text("# mine\n" + TABLE)
    checked = run(app, ["check-table", str(table)])
    assert (checked.exit_code, checked.output) == (0, TABLE)
    (row,) = json.loads(run(app, ["check-table", str(table), "--json"]).output)
    assert (row["min_bytes"], row["channels"], row["line"]) == (1024, 7, 3)
    table.write_text(TABLE.replace("ring", "rung"))
    wrong = run(app, ["check-table", str(table)])
    assert wrong.exit_code == 2
    assert f"{table}:2: algorithm 'rung'" in "".join(wrong.stderr.split("\n"))

    saved = shm_dir / "saved.csv"
    table.write_text(TABLE)
    start(f"fixed:{table}")
    nothing = run(app, ["save-table", str(saved)])
    assert nothing.exit_code == 2
    assert "nothing settled is in force yet" in nothing.stderr
    assert not saved.exists()
    make_ranks(2).run_until(((Algo.RING, Proto.SIMPLE), 7))
    assert run(app, ["save-table", str(saved)]).exit_code == 0
    assert saved.read_text() == TABLE
    assert run(app, ["save-table", "/none/x.csv"]).exit_code == 2
    assert run(app, ["save-table", str(saved), "--communicator", "1"]).exit_code == 2
    assert list(shm_dir.glob(".saved*")) == []
