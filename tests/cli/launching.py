"""A running ``ringstep run`` and what a test asks of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PATIENCE_S = 240.0
"""Until a test that waits for something gives up; not what anything should take."""
DRIVER = """
import sys
import ringstep.cli.launcher.session as session
module = sys.argv.pop(1)
if module != "-":
    session.coordinator_arguments = lambda plan: (
        "fake_coordinator", str(plan.tuner.file(plan.job)), module, *real(plan)[1:]
    )
from ringstep.cli.launcher.coordinator import coordinator_arguments as real
from ringstep.cli.main import main
if module == "mute":
    session.Coordinator.__init__.__kwdefaults__["ready_s"] = 1
if module == "hasty":
    session.Coordinator.__init__.__kwdefaults__["pauses_s"] = (0.1, 0.1)
main()
"""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


class Launcher:
    """One ``ringstep run``; ``fake`` says how the fake coordinator behaves, None is the real one.

    In front of the command's words there is all but the executable: ``--job a -- true``.
    """

    def __init__(
        self, folder: Path, words: Sequence[str], env: dict[str, str], fake: str | None
    ) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.err = folder / "err"
        self.shm = Path(env["RINGSTEP_SHM_DIR"])
        path = os.pathsep.join(filter(None, (str(HERE), env.get("PYTHONPATH", ""))))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", DRIVER, fake or "-", "run", *words],
                env={**env, "PYTHONPATH": path, "FAKE_FOLDER": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def wait(self) -> int:
        """Return the exit status."""
        return self.process.wait(timeout=PATIENCE_S)

    @property
    def stdout(self) -> str:
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        return self.err.read_text()

    @property
    def environment(self) -> dict[str, str]:
        """What a command ``env`` printed."""
        return dict(line.split("=", 1) for line in self.stdout.splitlines() if "=" in line)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def says(self, text: str) -> None:
        """Wait until stdout holds a text."""
        until(lambda: text in self.stdout, f"{text!r} in {self.stdout!r}; {self.stderr}")

    def warns(self, text: str) -> None:
        """Wait until stderr holds a text."""
        until(lambda: text in self.stderr, f"{text!r} in {self.stderr!r}")

    @property
    def coordinators(self) -> list[int]:
        """Processes that the fake coordinator has been, oldest first."""
        path = self.folder / "coordinators"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def close(self) -> None:
        if self.process.poll() is None:
            # Asked first: what it runs would be left behind.
            self.process.terminate()
            try:
                self.process.wait(timeout=PATIENCE_S / 4)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        pids = self.folder / "command.pid"
        for pid in (
            *self.coordinators,
            *(map(int, pids.read_text().split()) if pids.exists() else ()),
        ):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
