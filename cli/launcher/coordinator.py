"""The coordinator of this node, as a child that is started again when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from ringstep.cli.launcher import early
from ringstep.cli.launcher.child import Child
from ringstep.cli.launcher.plan import Plan
from ringstep.cli.launcher.say import Say

READY_S: Final = 10.0
_STOP_S: Final = 3.0
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Before it is started again; after the last one it is left alone."""
_STEADY_S: Final = 60.0
"""A coordinator that lived this long has its restarts back."""
_REMEMBERED: Final = 20
_GRAVE: Final = ("WARNING", "ERROR", "CRITICAL", "error:", "Traceback")
"""Words in lines of its log that are handed on in any case."""


def coordinator_arguments(plan: Plan) -> tuple[str, ...]:
    """Return the module and arguments of the coordinator, without the descriptor for readiness."""
    assert plan.tuner is not None
    place, tuner = plan.place, plan.tuner
    words = [
        "ringstep.cli", "tuner", "coordinator", "--job", plan.job, "--shm", str(tuner.folder),
        "--policy", tuner.policy,
    ]  # fmt: skip
    if tuner.digest:
        words.append("--static")
    if place.nodes > 1:
        # Names have to differ, also where nodes are namespaces of one machine.
        words += ["--node", f"{socket.gethostname()}-{place.node_rank}"]
        if place.node_rank:
            words += ["--skeleton", tuner.meeting]
        else:
            words += ["--listen", tuner.meeting, "--nodes", str(place.nodes)]
    return (*words, *tuner.options)


def spawn_tethered(
    module: Sequence[str], env: Mapping[str, str], fds: Sequence[int] = (), *, log: int
) -> Child:
    """Start a Python module that dies with this process; its output goes to descriptor ``log``."""
    words, actions = early.tethered(module, fds, log)
    return Child.spawn(sys.executable, words, env, actions=actions, own_session=True)


class Lines:
    """Reads a pipe by lines in the background, keeps the last ones, and hands on if asked to.

    ``read``: its reading end; without one the pipe is made, with ``write_fd`` for a child.
    """

    def __init__(self, read: int | None = None) -> None:
        self.write_fd = -1
        if read is None:
            read, self.write_fd = os.pipe()
        self._read = read
        self._buffer = b""
        self._closed = asyncio.Event()
        self.last: deque[str] = deque(maxlen=_REMEMBERED)
        self.hand_on: Say | None = None
        os.set_blocking(self._read, False)
        asyncio.get_running_loop().add_reader(self._read, self._ready)

    def started(self) -> None:
        """Close our copy of the writing end: the child has its own."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    async def ended(self, within_s: float) -> None:
        """Wait until the other side has closed."""
        try:
            async with asyncio.timeout(within_s):
                await self._closed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Stop to read."""
        self.started()
        if self._read >= 0:
            asyncio.get_running_loop().remove_reader(self._read)
            os.close(self._read)
            self._read = -1
            self._closed.set()

    def _ready(self) -> None:
        try:
            data = os.read(self._read, 65536)
        except BlockingIOError:
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if not data:
            lines, self._buffer = [self._buffer], b""
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                self.last.append(text)
                if self.hand_on is not None:
                    grave = any(word in text for word in _GRAVE)
                    (self.hand_on.line if grave else self.hand_on.note)(f"coordinator: {text}")
        if not data:
            self.close()


def last_words(log: Lines) -> str:
    """Return the last line that says something: frames around a message do not."""
    for line in reversed(log.last):
        text = line.strip(" │")
        if any(map(str.isalnum, text)):
            return text
    return ""


class Coordinator:
    """Keeps ``python -m`` ``module`` running until it is stopped.

    ``module`` gets ``--ready-fd N``, and says by a line on it that it is ready. ``ready_s`` bounds
    the wait for that.
    """

    def __init__(
        self,
        module: Sequence[str],
        env: Mapping[str, str],
        say: Say,
        *,
        ready_s: float = READY_S,
        pauses_s: Sequence[float] = _PAUSES_S,
    ) -> None:
        self._module = tuple(module)
        self._env = dict(env)
        self._say = say
        self._ready_s = ready_s
        self._pauses_s = tuple(pauses_s)
        self._child: Child | None = None
        self._log: Lines | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Number of the running process; None where there is none."""
        return None if self._child is None else self._child.pid

    async def start(self) -> str:
        """Start it and return once it is ready: "", or why it is not; then nothing runs."""
        try:
            why = await self._once()
        except asyncio.CancelledError:
            await self._end()
            raise
        if why:
            await self._end()
            return why
        self._task = asyncio.create_task(self._keep())
        return ""

    async def stop(self) -> None:
        """End it: asked to first, then without asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._end()

    async def _once(self) -> str:
        """Start it once; returns why it did not become ready, "" where it did."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        try:
            child, log, ready = self._spawn()
        except OSError as error:
            return f"it cannot be started ({error.strerror})"
        self._child, self._log = child, log

        def heard() -> None:
            loop.remove_reader(ready)
            if not told.done():
                told.set_result(os.read(ready, 4096))

        try:
            loop.add_reader(ready, heard)
            await asyncio.wait(
                {told, child.exited}, timeout=self._ready_s, return_when=asyncio.FIRST_COMPLETED
            )
            if told.done() and told.result():
                log.hand_on = self._say
                return ""
            if not told.done() and not child.exited.done():
                return f"it is not ready after {self._ready_s:g} s{_last(log)}"
            await asyncio.wait({child.exited}, timeout=_STOP_S)
            await log.ended(_STOP_S)
            return f"it ended at once{_last(log)}"
        finally:
            loop.remove_reader(ready)
            os.close(ready)
            told.cancel()

    def _spawn(self) -> tuple[Child, Lines, int]:
        """Start it; returns it, its log, and the descriptor that its readiness comes by."""
        waiting = early.take()
        if waiting is not None:
            try:
                waiting.tell([*self._module, "--ready-fd", str(waiting.ready_write)], self._env)
                return Child(waiting.pid), Lines(waiting.log), waiting.ready
            except OSError:
                Child(waiting.pid)  # It has ended; the next one may not.
                os.close(waiting.log)
                os.close(waiting.ready)
        ready, ready_write = os.pipe()
        log = Lines()
        try:
            words = [*self._module, "--ready-fd", str(ready_write)]
            child = spawn_tethered(words, self._env, [ready_write], log=log.write_fd)
        except OSError:
            os.close(ready)
            log.close()
            raise
        finally:
            os.close(ready_write)
            log.started()
        return child, log, ready

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        pauses = list(self._pauses_s)
        while True:
            since = clock()
            assert self._child is not None
            code = await asyncio.shield(self._child.exited)
            if clock() - since >= _STEADY_S:
                pauses = list(self._pauses_s)
            why = f"it ended with {_ending(code)}"
            while True:
                await self._end()
                if not pauses:
                    self._say.warn(
                        f"tuner: the coordinator is left alone ({why}); decisions that are in "
                        "force stay"
                    )
                    return
                pause_s = pauses.pop(0)
                self._say.line(
                    f"warning: tuner: the coordinator is started again in {pause_s:g} s: {why}"
                )
                await asyncio.sleep(pause_s)
                why = await self._once()
                if not why:
                    break

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None and not child.exited.done():
            child.send_group(signal.SIGTERM)
            await asyncio.wait({child.exited}, timeout=_STOP_S)
            if not child.exited.done():
                child.send_group(signal.SIGKILL)
                await asyncio.wait({child.exited})
        if self._log is not None:
            self._log.close()
            self._log = None


def _last(log: Lines) -> str:
    text = last_words(log)
    return f": {text}" if text else ""


def _ending(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
