"""``ringstep run`` and the controller: registered, renewed, released; or gone, late, refusing."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Controller
from free_ports import free_port
from launching import Launcher, until

Launch = Callable[..., Launcher]
RING = ("--job", "resnet", "--hosts", "h1,h2", "--no-tuner")
NODE0 = (*RING, "--node-rank", "0")
NODE1 = (*RING, "--node-rank", "1")
WAITS = ("--", "sh", "-c", "env; exec sleep 600")


def test_the_job_is_registered_while_the_command_runs(
    launch: Launch, controller: Controller
) -> None:
    ran = launch(
        *NODE0, "--sender", "persistent", "--tenant", "research", *WAITS,
        RINGSTEP_CONTROLLER=controller.target,
    )  # fmt: skip
    ran.says("RINGSTEP_JOB_ID")
    (job,) = controller.jobs()
    env = ran.environment
    assert env["RINGSTEP_JOB_ID"] == str(job["id"])
    assert env["RINGSTEP_GENERATION"] == str(job["generation"])
    assert (job["name"], job["lease_s"], job["tenant"]) == ("resnet", 60, "research")
    assert env["RINGSTEP_TAG_STEP_BITS"]
    assert env["RINGSTEP_CONTROLLER"] == controller.target
    ran.send(signal.SIGTERM)
    assert ran.wait() == 128 + signal.SIGTERM
    assert controller.jobs() == []
    assert f"job resnet, Job_ID {job['id']}, no tuner" in ran.stderr


def test_the_lease_outlives_the_time_it_was_given_for(
    launch: Launch, controller: Controller
) -> None:
    ran = launch(*NODE0, "--lease", "1s", "--", "sleep", "3", RINGSTEP_CONTROLLER=controller.target)
    assert ran.wait() == 0
    assert "gone" not in ran.stderr
    assert controller.jobs() == []


def test_nodes_other_than_the_first_only_read(launch: Launch, controller: Controller) -> None:
    second = launch(*NODE1, "--", "env", RINGSTEP_CONTROLLER=controller.target)
    first = launch(*NODE0, *WAITS, RINGSTEP_CONTROLLER=controller.target)
    assert second.wait() == 0, second.stderr
    (job,) = controller.jobs()
    assert second.environment["RINGSTEP_JOB_ID"] == str(job["id"])
    first.send(signal.SIGTERM)
    first.wait()


def test_a_job_that_a_scheduler_registered_is_used_and_left(
    launch: Launch, controller: Controller
) -> None:
    other = launch(*NODE0, *WAITS, RINGSTEP_CONTROLLER=controller.target)
    other.says("RINGSTEP_JOB_ID")
    ran = launch(
        "--job", "resnet", "--no-tuner", "--", "env", RINGSTEP_CONTROLLER=controller.target
    )
    assert ran.wait() == 0
    assert ran.environment["RINGSTEP_JOB_ID"] == other.environment["RINGSTEP_JOB_ID"]
    assert len(controller.jobs()) == 1


def test_controller_and_tuner_are_there_together(launch: Launch, controller: Controller) -> None:
    ran = launch(
        "--job", "resnet", "--hosts", "h1,h2", "--nodes", "1", "--require", "controller,tuner",
        "--", "env", fake=None, RINGSTEP_CONTROLLER=controller.target,
    )  # fmt: skip
    assert ran.wait() == 0, ran.stderr
    assert {"RINGSTEP_JOB_ID", "NCCL_TUNER_PLUGIN"} <= ran.environment.keys()
    assert "warning" not in ran.stderr


def test_training_runs_without_a_controller(launch: Launch) -> None:
    ran = launch(*NODE0, "--", "env", RINGSTEP_CONTROLLER=f"127.0.0.1:{free_port()}")
    assert ran.wait() == 0
    assert ran.stderr.count("warning: controller: no controller answers at") == 1
    assert "RINGSTEP_JOB_ID" not in ran.environment


def test_a_controller_that_comes_later_gets_the_job(
    launch: Launch, new_controller: Callable[..., Controller]
) -> None:
    target = f"127.0.0.1:{free_port()}"
    ran = launch(*NODE0, *WAITS, RINGSTEP_CONTROLLER=target)
    ran.warns("no controller answers")
    controller = new_controller(target)
    ran.warns("job resnet is registered now, as Job_ID")
    assert [job["name"] for job in controller.jobs()] == ["resnet"]
    ran.send(signal.SIGTERM)
    ran.wait()
    assert controller.jobs() == []


def test_training_goes_on_when_the_controller_is_killed_and_comes_back(
    launch: Launch, new_controller: Callable[..., Controller]
) -> None:
    controller = new_controller()
    ran = launch(*NODE0, "--lease", "1s", *WAITS, RINGSTEP_CONTROLLER=controller.target)
    ran.says("RINGSTEP_JOB_ID")
    controller.kill()
    ran.warns("the lease is not renewed")
    controller.start(controller.target)
    # Its lease starts anew with the controller, and is renewed from then on or registered anew.
    until(lambda: [job["name"] for job in controller.jobs()] == ["resnet"], "it has the job")
    assert ran.process.poll() is None
    ran.send(signal.SIGTERM)
    assert ran.wait() == 128 + signal.SIGTERM
    assert controller.jobs() == []


def test_a_name_that_is_taken_is_said_and_training_runs(
    launch: Launch, controller: Controller
) -> None:
    other = launch(*NODE0, *WAITS, RINGSTEP_CONTROLLER=controller.target)
    other.says("RINGSTEP_JOB_ID")
    ran = launch(*NODE0, "--", "env", RINGSTEP_CONTROLLER=controller.target)
    assert ran.wait() == 0
    assert "warning: controller: " in ran.stderr
    assert "RINGSTEP_JOB_ID" not in ran.environment
    assert len(controller.jobs()) == 1


def test_launchers_of_one_run_token_are_one_registration(
    launch: Launch, controller: Controller
) -> None:
    ring = (*NODE0, "--run-token", "attempt-1")
    other = launch(*ring, *WAITS, RINGSTEP_CONTROLLER=controller.target)
    other.says("RINGSTEP_JOB_ID")
    other.send(signal.SIGKILL)
    other.wait()
    ran = launch(*ring, "--", "env", RINGSTEP_CONTROLLER=controller.target)
    assert ran.wait() == 0
    assert ran.environment["RINGSTEP_JOB_ID"] == other.environment["RINGSTEP_JOB_ID"]
    assert controller.jobs() == []


def test_a_run_token_may_be_used_again(launch: Launch, controller: Controller) -> None:
    for _ in range(2):
        ran = launch(
            *NODE0, "--run-token", "attempt-2", "--", "env", RINGSTEP_CONTROLLER=controller.target
        )
        assert ran.wait() == 0
        assert "RINGSTEP_JOB_ID" in ran.environment, ran.stderr


def test_the_lease_ends_what_a_killed_launcher_left(launch: Launch, controller: Controller) -> None:
    ran = launch(*NODE0, "--lease", "1s", *WAITS, RINGSTEP_CONTROLLER=controller.target)
    ran.says("RINGSTEP_JOB_ID")
    ran.send(signal.SIGKILL)
    ran.wait()
    until(lambda: controller.jobs() == [], "the lease runs out")


def test_a_refused_job_is_said_and_training_runs(launch: Launch, controller: Controller) -> None:
    ran = launch(
        "--job", "a", "--no-tuner", "--hosts", "h1,h9", "--node-rank", "0", "--", "env",
        RINGSTEP_CONTROLLER=controller.target,
    )  # fmt: skip
    assert ran.wait() == 0
    assert "h9" in ran.stderr
    assert "RINGSTEP_JOB_ID" not in ran.environment


@pytest.mark.parametrize("hosts", ["h1,h9", "h1,h2"])
def test_a_required_controller_that_is_missing_starts_nothing(
    launch: Launch, controller: Controller, hosts: str, tmp_path: Path
) -> None:
    target = controller.target if "h9" in hosts else f"127.0.0.1:{free_port()}"
    ran = launch(
        "--job", "a", "--no-tuner", "--hosts", hosts, "--node-rank", "0", "--require",
        "controller", "--", "touch", str(tmp_path / "ran"), RINGSTEP_CONTROLLER=target,
    )  # fmt: skip
    assert ran.wait() == 2
    assert "error: --require controller: " in ran.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "status"), [("no-such-command", 127), ("#!/no/interpreter\n", 126)]
)
def test_nothing_stays_registered_where_the_command_cannot_run(
    launch: Launch, controller: Controller, text: str, status: int, tmp_path: Path
) -> None:
    command = text
    if text.startswith("#!"):
        command = str(tmp_path / "script")
        Path(command).write_text(text)
        Path(command).chmod(0o755)
    ran = launch(*NODE0, "--", command, RINGSTEP_CONTROLLER=controller.target)
    assert ran.wait() == status
    assert controller.jobs() == []


def test_rings_of_a_file_are_registered(
    launch: Launch, controller: Controller, tmp_path: Path
) -> None:
    rings = tmp_path / "rings"
    rings.write_text("# by rail\nh1 h2  # rail 0\n\n")
    ran = launch(
        "--job", "a", "--no-tuner", "--ring", str(rings), "--node-rank", "0", *WAITS,
        RINGSTEP_CONTROLLER=controller.target,
    )  # fmt: skip
    ran.says("RINGSTEP_JOB_ID")
    (job,) = controller.jobs()
    assert job["rings"] == [["h1", "h2"]]
    ran.send(signal.SIGTERM)
    ran.wait()


def test_a_signal_while_the_controller_does_not_answer_ends_the_launch(launch: Launch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ran = launch(
            *NODE0, "--", sys.executable, "-c", "print('ran')",
            RINGSTEP_CONTROLLER=f"127.0.0.1:{silent.getsockname()[1]}",
        )  # fmt: skip
        silent.accept()
        ran.send(signal.SIGINT)
        assert ran.wait() == 128 + signal.SIGINT
    assert ran.stdout == ""
