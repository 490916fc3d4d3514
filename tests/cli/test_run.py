"""``ringstep run`` around a command: streams, status, environment, what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from launching import Launcher, alive
from typer.testing import CliRunner

from ringstep.cli.launcher.environment import default_folder
from ringstep.cli.launcher.fixedtable import read_table
from ringstep.cli.launcher.plan import POLICIES
from ringstep.cli.run import CONTEXT_SETTINGS, run
from ringstep.hostlib.coordinator.policies import names
from ringstep.hostlib.shm import default_path

Launch = Callable[..., Launcher]
ALONE = ("--job", "train-7", "--no-controller")
BARE = (*ALONE, "--no-tuner")


def shell(text: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", text)


def test_the_command_gets_its_streams_and_its_status_is_passed_on(launch: Launch) -> None:
    ran = launch(*BARE, "--quiet", *shell("echo out; echo err >&2; exit 42"))
    assert ran.wait() == 42
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")


def test_standard_input_is_the_commands(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ringstep.cli", "run", *BARE, "--quiet", "--", "cat"],
        input="from outside", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "from outside"


def test_descriptors_of_the_user_reach_the_command(tmp_path: Path) -> None:
    read, write = os.pipe()
    done = subprocess.run(
        [sys.executable, "-m", "ringstep.cli", "run", *BARE, "--", sys.executable, "-c",
         f"import os; os.write({write}, b'hello')"],
        pass_fds=(write,), timeout=60, check=True,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == "hello"
    assert done.returncode == 0


def test_a_command_that_a_signal_ends_has_the_status_of_a_shell(launch: Launch) -> None:
    assert launch(*BARE, *shell("kill -KILL $$")).wait() == 128 + 9


def test_options_of_the_command_are_its_own_with_and_without_the_dashes(launch: Launch) -> None:
    command = ("echo", "--job", "--", "x")
    for ran in (launch(*BARE, "--", *command), launch(*BARE, *command)):
        assert (ran.wait(), ran.stdout) == (0, "--job -- x\n")


def test_the_command_finds_plugin_and_file_which_is_gone_afterwards(launch: Launch) -> None:
    ran = launch(*ALONE, *shell("ls $RINGSTEP_SHM_DIR/train-7.shm && env"))
    assert ran.wait() == 0, ran.stderr
    assert not (ran.shm / "train-7.shm").exists()
    assert not any(map(alive, ran.coordinators))
    env = ran.environment
    assert env["RINGSTEP_JOB"] == "train-7"
    assert env["RINGSTEP_SHM_DIR"] == str(ran.shm)
    assert int(env["RINGSTEP_SHM_TOKEN"], 16)
    assert Path(env["NCCL_TUNER_PLUGIN"]).exists()
    assert env["NCCL_TUNER_PLUGIN"] == env["NCCL_PROFILER_PLUGIN"]
    assert "RINGSTEP_JOB_ID" not in env
    assert "job train-7, not registered, policy nccl" in ran.stderr


def test_the_coordinator_is_told_job_folder_policy_and_the_summary_is_for_scripts_with_json(
    launch: Launch,
) -> None:
    ran = launch(
        *ALONE, "--policy", "autoccl", "--coordinator-options", "--seed 5 --fences", "--json",
        "--", "true",
    )  # fmt: skip
    assert ran.wait() == 0
    words = (ran.folder / "coordinator.words").read_text().split("\n")
    assert words[2:-2] == [
        "tuner", "coordinator", "--job", "train-7", "--shm", str(ran.shm), "--policy", "autoccl",
        "--seed", "5", "--fences",
    ]  # fmt: skip
    said = json.loads(ran.stderr.removeprefix("ringstep: "))
    assert said == {
        "job": "train-7", "job_id": None, "policy": "autoccl", "collectives": None,
        "decided_on_record": 0, "epochs_applied": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rank", "listens"), [("0", "--listen"), ("1", "--skeleton")], ids=["node0", "node1"]
)
def test_coordinators_of_several_nodes_meet_at_the_master(
    launch: Launch, rank: str, listens: str
) -> None:
    ran = launch(
        *ALONE, "--nodes", "2", "--node-rank", rank, "--", "env", "x=1", "true",
        MASTER_ADDR="10.0.0.1",
    )  # fmt: skip
    assert ran.wait() == 0
    words = (ran.folder / "coordinator.words").read_text().split("\n")
    assert words[words.index(listens) + 1] == "10.0.0.1:9571"


def test_a_plugin_of_the_users_own_stays_and_is_said(launch: Launch) -> None:
    ran = launch(*ALONE, "--", "env", NCCL_TUNER_PLUGIN="libmine.so")
    assert ran.wait() == 0
    assert ran.environment["NCCL_TUNER_PLUGIN"] == "libmine.so"
    assert ran.environment["NCCL_PROFILER_PLUGIN"].endswith("libnccl-tuner-ringstep.so")
    assert "NCCL_TUNER_PLUGIN=libmine.so is yours and stays" in ran.stderr


@pytest.mark.parametrize("fake", ["broken", "mute"])
def test_training_runs_without_a_coordinator_that_does_not_come(launch: Launch, fake: str) -> None:
    ran = launch(*ALONE, "--", "env", fake=fake)
    assert ran.wait() == 0
    assert "NCCL_TUNER_PLUGIN" not in ran.environment
    reason = "no storage for 5259264 bytes" if fake == "broken" else "is not ready after"
    assert ran.stderr.count("warning: tuner: ") == 1
    assert reason in ran.stderr
    assert not any(map(alive, ran.coordinators))


def test_training_runs_without_a_compiler(launch: Launch, tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    ran = launch(
        *ALONE, "--", "/usr/bin/env", PATH=str(empty), RINGSTEP_NATIVE_DIR=str(tmp_path / "cache")
    )
    assert ran.wait() == 0
    assert "warning: tuner: the plugin is not built, and cannot be: needs " in ran.stderr
    assert "NCCL_TUNER_PLUGIN" not in ran.environment


def test_training_runs_where_shared_memory_cannot_be_made(launch: Launch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    ran = launch(*ALONE, "--shm", str(blocked / "folder"), "--", "env")
    assert ran.wait() == 0
    assert "warning: tuner: it ended at once" in ran.stderr
    assert "NCCL_TUNER_PLUGIN" not in ran.environment


def test_several_nodes_without_a_meeting_place_run_without_tuner(launch: Launch) -> None:
    ran = launch(*ALONE, "--nodes", "2", "--node-rank", "0", "--", "env")
    assert ran.wait() == 0
    assert "give --coordinator HOST:PORT" in ran.stderr


@pytest.mark.parametrize("fake", ["broken"])
def test_a_required_tuner_that_is_missing_starts_nothing(
    launch: Launch, fake: str, tmp_path: Path
) -> None:
    ran = launch(*ALONE, "--require", "tuner", "--", "touch", str(tmp_path / "ran"), fake=fake)
    assert ran.wait() == 2
    assert "error: --require tuner: it ended at once" in ran.stderr
    assert not (tmp_path / "ran").exists()


def test_launchers_side_by_side_share_one_coordinator(launch: Launch, tmp_path: Path) -> None:
    step = {"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}
    step["RINGSTEP_SHM_DIR"] = str(tmp_path / "shm")
    second = launch(*ALONE, "--", "env", SLURM_LOCALID="1", **step)
    first = launch(*ALONE, *shell("env; exec sleep 600"), SLURM_LOCALID="0", **step)
    assert second.wait() == 0
    first.says("RINGSTEP_SHM_TOKEN")
    first.send(signal.SIGTERM)
    assert first.wait() == 128 + signal.SIGTERM
    token = first.environment["RINGSTEP_SHM_TOKEN"]
    assert second.environment["RINGSTEP_SHM_TOKEN"] == token
    assert (len(first.coordinators), len(second.coordinators)) == (1, 0)


TABLE = "collective,bytes,algorithm,protocol,channels,chunk\nallreduce,64KiB..1MiB,ring,simple,4,\n"


def fixed_digest(table: Path) -> str:
    return f"{read_table(table).digest(0):x}"


def test_a_fixed_table_holds_from_the_first_collective(launch: Launch, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    show = f"env; {sys.executable} -m ringstep.cli tuner show-decisions --json >&2"
    ran = launch(*ALONE, "--quiet", "--policy", f"fixed:{table}", *shell(show), fake=None)
    assert ran.wait() == 0, ran.stderr
    assert ran.environment["RINGSTEP_STATIC_DIGEST"] == fixed_digest(table)
    (rule,) = json.loads(ran.stderr)["static"]
    assert (rule["collective"], rule["algorithm"], rule["channels"]) == ("all_reduce", "ring", 4)


def test_several_nodes_get_a_static_digest_on_the_users_word_only(
    launch: Launch, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE)
    nodes = (*ALONE, "--policy", f"fixed:{table}", "--nodes", "2", "--node-rank", "0")
    meet = ("--coordinator", "127.0.0.1:9571")  # where nobody listens: the coordinators are fake
    unsure = launch(*nodes, *meet, "--", "env")
    sure = launch(*nodes, *meet, "--static-digest", fixed_digest(table), "--", "env")
    wrong = launch(*nodes, *meet, "--static-digest", "beef", "--", "env")
    status = (unsure.wait(), sure.wait(), wrong.wait())
    assert status == (0, 0, 2), unsure.stderr + sure.stderr + wrong.stderr
    assert "RINGSTEP_STATIC_DIGEST" not in unsure.environment
    assert sure.environment["RINGSTEP_STATIC_DIGEST"] == fixed_digest(table)
    assert "--static-digest beef: the table of" in wrong.stderr


def test_a_table_with_a_mistake_starts_nothing(launch: Launch, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(TABLE.replace("ring", "rinq"))
    ran = launch(*ALONE, "--policy", f"fixed:{table}", "--", "touch", str(tmp_path / "ran"))
    assert ran.wait() == 2
    assert f"{table}:2: algorithm 'rinq': choose" in ran.stderr
    assert not (tmp_path / "ran").exists()
    assert ran.coordinators == []


# -- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("--job", "a"), 2, "no command; write it after --"),
        (("--job", "a", "--"), 2, "no command; write it after --"),
        (("--", "true"), 2, "--job NAME is missing"),
        (("--job", "a/b", "--", "true"), 2, "--job 'a/b': start with a letter"),
        (("--job", "7", "--", "true"), 2, "--job '7': start with a letter"),
        (("--job", "a" * 64, "--", "true"), 2, "at most 63 characters"),
        (("--job", "a", "--policy", "best", "--", "true"), 2, "choose nccl, fixed, autoccl"),
        (("--job", "a", "--policy", "fixed", "--", "true"), 2, "name the table, fixed:FILE"),
        (("--job", "a", "--policy", "fixed:/none", "--", "true"), 2, "/none"),
        (("--job", "a", "--policy", "autoccl:/none", "--", "true"), 2, "/none"),
        (("--job", "a", "--policy", "nccl:x", "--", "true"), 2, "nccl takes nothing"),
        (("--job", "a", "--", "no-such-command"), 127, "no-such-command: not found in $PATH"),
        (("--job", "a", "--", "/etc/none"), 127, "/etc/none: no such file"),
        (("--job", "a", "--", "/etc/passwd"), 126, "/etc/passwd: is not executable"),
        (("--job", "a", "--", "/etc"), 126, "/etc: is a folder"),
        (("--job", "a", "--hosts", "h1", "--", "true"), 2, "the job cannot be registered"),
        (("--job", "a", "--hosts", "h1,h2", "--ring", "h1,h2", "--", "true"), 2, "give one of"),
        (("--job", "a", "--hosts", "h1,,h2", "--", "true"), 2, "a name is missing"),
        (("--job", "a", "--ring", "h1,", "--", "true"), 2, "a name is missing"),
        (("--job", "a", "--ring", "/none", "--", "true"), 2, "neither H1,H2,... nor a file"),
        (("--job", "a", "--nodes", "2", "--", "true"), 2, "give --node-rank 0 to 1"),
        (("--job", "a", "--nodes", "2", "--node-rank", "2", "--", "true"), 2, "node rank 2"),
        (("--job", "a", "--hosts", "x,y", "--", "true"), 2, "2 nodes, and nothing says which"),
        (("--job", "a", "--require", "gpu", "--", "true"), 2, "write controller, tuner"),
        (("--job", "a", "--require", "tuner", "--no-tuner", "--", "true"), 2, "leaves it out"),
        (("--job", "a", "--coordinator", "x", "--", "true"), 2, "--coordinator 'x'"),
        (("--job", "a", "--lease", "soon", "--", "true"), 2, "is not a duration"),
        (("--job", "a", "--static-digest", "5", "--", "true"), 2, "goes with --policy fixed"),
        (("--job", "a", "--controller", "x", "--", "true"), 2, "is not HOST:PORT"),
        (("--job", "a", "--coordinator-options", "'", "--", "true"), 2, "No closing quotation"),
    ],
)
def test_bad_input_starts_nothing(
    words: tuple[str, ...], status: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringstep.cli.run.Session", None)
    for name in [name for name in os.environ if name.startswith(("RINGSTEP_", "SLURM_"))]:
        monkeypatch.delenv(name)
    app = typer.Typer()
    app.command("run", context_settings=CONTEXT_SETTINGS)(run)
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert (ran.exit_code, ran.stdout) == (status, ""), ran.output
    assert text in ran.stderr


def test_the_coordinators_complaint_is_handed_on_whole(launch: Launch) -> None:
    ran = launch(*ALONE, "--coordinator-options", "--warm-up few", "--", "true", fake=None)
    assert ran.wait() == 0
    assert "Invalid value for '--warm-up'" in ran.stderr


def test_a_token_of_the_users_own_has_to_be_one(launch: Launch) -> None:
    ran = launch(*ALONE, "--", "true", RINGSTEP_SHM_TOKEN="0")
    assert ran.wait() == 2
    assert "RINGSTEP_SHM_TOKEN '0': 1 to 16 hexadecimal digits" in ran.stderr


# -- what would be done ----------------------------------------------------------------------


def test_a_dry_run_tells_environment_and_steps_and_does_nothing(
    launch: Launch, tmp_path: Path
) -> None:
    ran = launch(
        "--job", "a", "--hosts", "h1,h2", "--node-rank", "0", "--policy", "autoccl", "--dry-run",
        "--json", "--", "touch", str(tmp_path / "ran"), RINGSTEP_CONTROLLER="127.0.0.1:1",
        NCCL_PROFILER_PLUGIN="mine",
    )  # fmt: skip
    assert (ran.wait(), ran.stderr) == (0, "")
    told = json.loads(ran.stdout)
    assert (told["job"], told["nodes"], told["node_rank"]) == ("a", 2, 0)
    assert told["environment"]["RINGSTEP_JOB"] == "a"
    assert told["environment"]["RINGSTEP_JOB_ID"] == "(from the controller)"
    assert "NCCL_PROFILER_PLUGIN" in told["kept"]
    steps = " / ".join(told["steps"])
    assert "register a at 127.0.0.1:1, ring h1 → h2, lease 60 s" in steps
    assert "--listen h1:9571" in steps
    assert not (tmp_path / "ran").exists()
    assert not ran.shm.exists()


def test_a_dry_run_without_json_is_a_table(launch: Launch) -> None:
    ran = launch(*ALONE, "--dry-run", "--", "true")
    assert ran.wait() == 0
    assert "RINGSTEP_SHM_TOKEN" in ran.stdout
    assert "2. run " in ran.stdout


def test_what_the_launcher_knows_without_loading_the_host_library_is_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says these itself, so as not to load numpy."""
    monkeypatch.delenv("RINGSTEP_SHM_DIR", raising=False)
    assert names() == POLICIES
    assert default_folder() == default_path("any").parent
