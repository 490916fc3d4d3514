"""What a lab leaves in the system while it runs, and how to take it away when its owner is gone.

Everything that a lab starts carries its mark: processes the environment variable
``RINGSTEP_LAB``, interfaces of the root namespace an alias. Between its making and its marking an
interface is known by the name that the lab's state file foretold. Nothing else is ever touched, so
cleaning up does no harm to other users of Mininet.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MARK: Final = "RINGSTEP_LAB"
ALIAS: Final = "ringstep-lab"
STATE_ENV: Final = "RINGSTEP_LAB_STATE"
STATE_FILE: Final = Path("/run/ringstep/lab.json")
OWNER_STOP_S: Final = 30.0
_GRACE_S: Final = 3.0


def state_path() -> Path:
    """Return where the running lab describes itself."""
    return Path(os.environ.get(STATE_ENV, STATE_FILE))


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that runs a lab. A process id alone may have been handed out again."""

    pid: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        """Return this process."""
        return cls(os.getpid(), _start_time(os.getpid()) or 0)

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return _start_time(self.pid) == self.started


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def read_state() -> dict[str, Any] | None:
    """Return what the running lab wrote about itself; None where none runs."""
    try:
        state: dict[str, Any] = json.loads(state_path().read_text())
        owner = Owner(**state["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return state if owner.alive else None


def marked_processes() -> list[int]:
    """Return the processes that some lab started, this process and its parents left out."""
    key = f"{MARK}=".encode()
    spared = set(_ancestors(os.getpid()))
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid in spared or _start_time(pid) is None:
            continue
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if any(variable.startswith(key) for variable in variables):
                found.append(pid)
    return sorted(found)


def _ancestors(pid: int) -> Iterable[int]:
    while pid > 0:
        yield pid
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])


def marked_interfaces() -> list[str]:
    """Return the interfaces of this namespace that some lab made."""
    found = []
    for entry in Path("/sys/class/net").iterdir():
        with contextlib.suppress(OSError):
            if (entry / "ifalias").read_text().startswith(ALIAS):
                found.append(entry.name)
    return sorted(found)


def announced_interfaces() -> list[str]:
    """Return the interfaces that there are of those that the state file foretold."""
    try:
        names = json.loads(state_path().read_text())["interfaces"]
        return present_interfaces(names)
    except (OSError, ValueError, KeyError, TypeError):
        return []


def present_interfaces(names: Iterable[str]) -> list[str]:
    """Return those of some interfaces that this namespace has."""
    return [name for name in names if Path("/sys/class/net", name).exists()]


def remove_leftovers() -> tuple[int, int]:
    """End marked processes and delete the lab's interfaces; return how many of each there were.

    The network namespaces of Mininet's hosts have no names: they end with their last process.
    """
    processes = marked_processes()
    _signal(processes, signal.SIGTERM)
    # Interactive shells ignore SIGTERM.
    _signal(processes, signal.SIGHUP)
    deadline = time.monotonic() + _GRACE_S
    while (left := marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal(left, signal.SIGKILL)
    interfaces = sorted({*marked_interfaces(), *announced_interfaces()})
    for name in interfaces:
        # Deleting one end of a pair deletes the other.
        subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)
    return len(processes), len(interfaces)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def stop_owner() -> int | None:
    """End the process that runs a lab, in order; return its id, or None where none runs."""
    state = read_state()
    if state is None:
        return None
    owner = Owner(**state["owner"])
    if owner.pid in _ancestors(os.getpid()):
        return None
    _signal([owner.pid], signal.SIGTERM)
    deadline = time.monotonic() + OWNER_STOP_S
    while owner.alive and time.monotonic() < deadline:
        time.sleep(0.1)
    if owner.alive:
        _signal([owner.pid], signal.SIGKILL)
    return owner.pid


def remove_state() -> None:
    """Take the lab's description away."""
    state_path().unlink(missing_ok=True)
