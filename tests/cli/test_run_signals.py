"""Signals, terminals and sudden ends: who gets what, and what is left."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import PATIENCE_S, Launcher, alive, until

Launch = Callable[..., Launcher]
ALONE = ("--job", "train-7", "--no-controller")
BARE = (*ALONE, "--no-tuner")
COUNTS = """
import os, signal, sys
open(os.environ["FAKE_FOLDER"] + "/command.pid", "w").write(str(os.getpid()))
def told(number, _):
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(5)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2,
               signal.SIGCONT):
    signal.signal(number, told)
print("up", os.getpid(), flush=True)
while True:
    signal.pause()
"""


def counting(launch: Launch, *words: str, **options: str) -> Launcher:
    ran = launch(*words, "--", sys.executable, "-c", COUNTS, **options)
    ran.says("up ")
    return ran


def command_pid(ran: Launcher) -> int:
    return int((ran.folder / "command.pid").read_text())


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_to_the_launcher_are_passed_on_once(launch: Launch, name: str) -> None:
    ran = counting(launch, *BARE)
    ran.send(signal.Signals[name])
    ran.says(f"got {name}")
    ran.send(signal.SIGTERM)
    assert ran.wait() == 5
    assert ran.stdout.count("got") == 2


def test_a_signal_cleans_up_like_any_other_end(launch: Launch) -> None:
    ran = counting(launch, *ALONE)
    ran.send(signal.SIGTERM)
    assert ran.wait() == 5
    assert not any(map(alive, ran.coordinators))
    assert not (ran.shm / "train-7.shm").exists()


def test_a_signal_before_the_command_starts_ends_the_launch(launch: Launch) -> None:
    ran = launch(*ALONE, "--", "echo", "ran", fake="stuck")
    until(lambda: ran.coordinators, "the coordinator is started")
    ran.send(signal.SIGTERM)
    assert ran.wait() == 128 + signal.SIGTERM
    assert ran.stdout == ""
    assert not any(map(alive, ran.coordinators))


def test_signals_that_were_ignored_stay_ignored() -> None:
    text = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    done = subprocess.run(
        ["nohup", sys.executable, "-m", "ringstep.cli", "run", *BARE, "--", sys.executable, "-c",
         text],
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"


def test_an_exit_status_is_not_lost_where_the_parent_ignores_its_children() -> None:
    text = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, '-m', 'ringstep.cli', *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, "run", *BARE, "--", "sh", "-c", "exit 6"],
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 6


def test_no_signal_is_blocked_in_the_command(launch: Launch) -> None:
    ran = launch(*BARE, "--", "grep", "-e", "SigBlk", "-e", "SigIgn", "/proc/self/status")
    assert ran.wait() == 0
    found = dict(line.split(":\t") for line in ran.stdout.splitlines())
    assert int(found["SigBlk"], 16) == 0
    assert not int(found["SigIgn"], 16) & (1 << signal.SIGPIPE - 1)


class Terminal:
    """A shell with job control at a terminal of its own."""

    def __init__(self) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="next? ", TERM="dumb", HISTFILE="", INPUTRC="/dev/null")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def shows(self, text: str, times: int = 1, after: str = "") -> None:
        """Wait until a text was shown so often, since ``after`` was shown last."""
        deadline = time.monotonic() + PATIENCE_S
        while (
            self.seen.rpartition(after)[2].count(text) < times
            if after
            else (self.seen.count(text) < times)
        ):
            left_s = deadline - time.monotonic()
            assert left_s > 0, self.seen
            assert select.select([self.fd], [], [], left_s)[0], self.seen
            self.seen += os.read(self.fd, 4096).decode(errors="replace")

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def test_the_terminal_treats_launcher_and_command_as_one_job(tmp_path: Path) -> None:
    terminal = Terminal()
    try:
        terminal.type(f"export FAKE_FOLDER={tmp_path} COUNTS='{COUNTS}'\n")
        terminal.type(
            f"{sys.executable} -m ringstep.cli run {' '.join(BARE)} -- "
            f'{sys.executable} -c "$COUNTS"\n'
        )
        terminal.shows("up ")
        terminal.type("\x03")
        terminal.shows("got SIGINT")
        terminal.type("\x1a")
        terminal.shows("Stopped")
        terminal.shows("next? ", after="Stopped")
        terminal.type("fg; echo status=$?\n")
        terminal.shows("got SIGCONT")
        terminal.type("\x03")
        # Once each time: the launcher must not add its own.
        terminal.shows("got SIGINT", times=2)
        command = int((tmp_path / "command.pid").read_text())
        launcher = int(Path(f"/proc/{command}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(launcher, signal.SIGTERM)
        terminal.shows("status=5")
        assert terminal.seen.count("got SIGINT") == 2
    finally:
        terminal.close()


def test_a_coordinator_that_dies_is_started_again(launch: Launch) -> None:
    ran = counting(launch, *ALONE)
    os.kill(ran.coordinators[0], signal.SIGKILL)
    ran.warns("the coordinator is started again in 0.5 s: it ended with SIGKILL")
    until(lambda: len(ran.coordinators) == 2, "there is another coordinator")
    until(lambda: alive(ran.coordinators[1]), "it lives")
    ran.send(signal.SIGTERM)
    assert ran.wait() == 5
    assert not any(map(alive, ran.coordinators))


def test_a_coordinator_that_keeps_dying_is_left_alone(launch: Launch) -> None:
    ran = counting(launch, *ALONE, fake="hasty")
    (ran.folder / "die").touch()
    ran.warns("the coordinator is left alone (it ended with status 7)")
    assert alive(command_pid(ran))
    ran.send(signal.SIGTERM)
    assert ran.wait() == 5
    assert len(ran.coordinators) == 3


def test_the_coordinator_dies_with_the_launcher_and_training_goes_on(launch: Launch) -> None:
    ran = counting(launch, *ALONE)
    (coordinator,) = ran.coordinators
    ran.send(signal.SIGKILL)
    ran.wait()
    until(lambda: not alive(coordinator), "the coordinator is gone")
    assert alive(command_pid(ran))


def test_what_a_killed_launcher_left_is_taken_as_stale(launch: Launch, tmp_path: Path) -> None:
    shm = {"RINGSTEP_SHM_DIR": f"{tmp_path}/shm"}
    ran = counting(launch, *ALONE, **shm)
    ran.send(signal.SIGKILL)
    ran.wait()
    until(lambda: not alive(ran.coordinators[0]), "the coordinator is gone")
    assert (ran.shm / "train-7.shm").exists()
    again = launch(*ALONE, "--require", "tuner", "--", "true", **shm)
    assert again.wait() == 0, again.stderr
    assert not (ran.shm / "train-7.shm").exists()
