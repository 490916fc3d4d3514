"""However the program ends that made a cluster, its hosts, ranks and flows end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import sys
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces.fluid import Load
with EngineEnvironment(Collective.ALL_REDUCE, 1 << 20, 2, 20e6, settle_s=0.05) as env:
    env.call(None, Load(0.5))
    print("runs", flush=True)
    while sys.argv[1] == "busy":  # one call after another: ranks are inside a collective
        env.call(None, Load(0.5))
    sys.stdin.read()
"""


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below one, with when each began: ids are used again."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (row := stat_of(int(folder.name))):
            parents.setdefault(int(row[1]), []).append((int(folder.name), row[19]))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child, began in parents.get(waiting.pop(), []):
            found[child] = began
            waiting.append(child)
    return found


def stat_of(pid: int) -> list[str]:
    """Return a process' state, parent and so on; nothing where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int, began: str) -> bool:
    row = stat_of(pid)
    return bool(row) and row[0] != "Z" and row[19] == began


@pytest.mark.root
@pytest.mark.parametrize(
    ("how", "doing"),
    [(signal.SIGKILL, "busy"), (signal.SIGTERM, "idle"), (signal.SIGINT, "busy")],
)
def test_nothing_is_left_after_a_signal(links: None, how: signal.Signals, doing: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, doing],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == "runs\n"
        below = descendants(program.pid)
        assert len(below) >= 3 + 2 + 2 + 2  # switch and hosts, sinks, sources, ranks
        program.send_signal(how)
        program.wait(timeout=60)
        said = program.stderr.read()
    deadline = time.monotonic() + 30
    while any(alive(*each) for each in below.items()):
        assert time.monotonic() < deadline, {pid: stat_of(pid) for pid in below}
        time.sleep(0.01)
    assert said.count("Traceback") == (1 if how is signal.SIGINT else 0), said
