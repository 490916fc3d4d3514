"""One launch: prepare what there is, run the command, clean up, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from ringstep.cli.launcher import early
from ringstep.cli.launcher.child import Child, shell_status
from ringstep.cli.launcher.coordinator import Coordinator, coordinator_arguments
from ringstep.cli.launcher.environment import settings, shm_settings
from ringstep.cli.launcher.plan import NOT_EXECUTABLE, Part, Plan
from ringstep.cli.launcher.plugin import find_plugin
from ringstep.cli.launcher.registration import JobKeeper
from ringstep.cli.launcher.say import LaunchError, Say
from ringstep.cli.launcher.shmfile import is_of_run, remove_left_over
from ringstep.cli.launcher.signals import ENDING, Signals
from ringstep.cli.launcher.summary import Summary

_MEETING_S: Final = 15.0
"""For the shared-memory file that another launcher of this node has made."""
_LOOK_S: Final = 0.05

_A = TypeVar("_A")
_B = TypeVar("_B")
MakeCoordinator = Callable[[Plan, Mapping[str, str], Say], Coordinator]


def make_coordinator(plan: Plan, env: Mapping[str, str], say: Say) -> Coordinator:
    """Return the coordinator of ``ringstep tuner coordinator``."""
    return Coordinator(coordinator_arguments(plan), env, say)


class Session:
    """Runs a plan; :meth:`run` once, in the main thread."""

    def __init__(
        self,
        plan: Plan,
        env: Mapping[str, str],
        say: Say,
        signals: Signals,
        coordinator: MakeCoordinator = make_coordinator,
    ) -> None:
        self._plan = plan
        self._env = dict(env)
        self._say = say
        self._signals = signals
        self._make_coordinator = coordinator
        self._child: Child | None = None
        self._held: list[signal.Signals] = []
        self._ended_by: asyncio.Future[signal.Signals]
        self.summary = Summary(plan.job)
        """What there is to say at the end."""

    async def run(self) -> int:
        """Return the exit status: the command's, or 128 + N where signal N came before it.

        Raises:
            LaunchError: a part that is required is missing, or the command cannot be run.
        """
        self._ended_by = asyncio.get_running_loop().create_future()
        with self._signals.listening(self._received):
            async with AsyncExitStack() as stack:
                return await self._run(stack)

    # -- signals -----------------------------------------------------------------------------

    def _received(self, number: signal.Signals, by_kernel: bool) -> None:
        if self._child is not None:
            # The terminal tells the whole process group, so the command has it already.
            if not (by_kernel and self._child.shares_group()):
                self._child.send(number)
        elif number in ENDING:
            if not self._ended_by.done():
                self._ended_by.set_result(number)
        else:
            self._held.append(number)

    # -- steps -------------------------------------------------------------------------------

    async def _run(self, stack: AsyncExitStack) -> int:
        preparing = asyncio.create_task(self._prepare(stack))
        try:
            waited: set[asyncio.Future[Any]] = {preparing, self._ended_by}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not preparing.done():
                preparing.cancel()
                await asyncio.wait({preparing})
        if self._ended_by.done():
            if not preparing.cancelled():
                preparing.exception()
            return 128 + self._ended_by.result()
        env = preparing.result()
        try:
            child = Child.spawn(
                self._plan.program, self._plan.command, env, mask=self._signals.mask_before
            )
        except OSError as error:
            raise LaunchError(
                f"{self._plan.program}: cannot be run ({error.strerror})", NOT_EXECUTABLE
            ) from None
        self._child = child
        for number in self._held:
            child.send(number)
        return shell_status(await child.exited)

    async def _prepare(self, stack: AsyncExitStack) -> dict[str, str]:
        """Bring up what there is and return the command's environment."""
        job, plugin = await _both(self._registered(stack), self._tuned(stack))
        waiting = early.take()
        if waiting is not None:  # Nobody needed it.
            waiting.dismiss()
            Child(waiting.pid)
        found = settings(self._plan, self._env, job, plugin)
        for text in found.kept.values():
            self._say.line(text)
        return found.over(self._env)

    async def _registered(self, stack: AsyncExitStack) -> dict[str, str]:
        registration = self._plan.registration
        if registration is None:
            return {}
        try:
            keeper = JobKeeper(registration, self._say)
        except (ValueError, OSError) as error:
            raise LaunchError(str(error)) from None
        stack.push_async_callback(self._keeper_ends, keeper)
        why = await keeper.begin()
        if why:
            self._missing(Part.CONTROLLER, why, "the fabric does not know this job")
        return keeper.environment()

    async def _keeper_ends(self, keeper: JobKeeper) -> None:
        if keeper.job is not None:
            self.summary.job_id = keeper.job.id
        with self._harmless("controller"):
            await keeper.end()

    async def _tuned(self, stack: AsyncExitStack) -> Path | None:
        tuner = self._plan.tuner
        if tuner is None:
            return None
        plugin, why = await find_plugin(self._env, self._say)
        if plugin is not None:
            why = await self._coordinated(stack)
        if why:
            self._missing(Part.TUNER, why, "NCCL decides by itself")
            return None
        self.summary.policy = tuner.policy
        return plugin

    async def _coordinated(self, stack: AsyncExitStack) -> str:
        """Start this node's coordinator, or wait for it where another launcher starts it."""
        assert self._plan.tuner is not None
        if not self._plan.tuner.coordinates:
            return await self._met(self._plan.tuner.file(self._plan.job))
        if self._plan.place.nodes > 1 and not self._plan.tuner.meeting:
            return "nothing says where the coordinators meet; give --coordinator HOST:PORT"
        file = self._plan.tuner.file(self._plan.job)
        stack.callback(remove_left_over, file)
        remove_left_over(file)
        env = {**self._env, **shm_settings(self._plan)}
        coordinator = self._make_coordinator(self._plan, env, self._say)
        stack.push_async_callback(coordinator.stop)
        stack.callback(self._look)
        return await coordinator.start()

    async def _met(self, file: Path) -> str:
        """Wait until another launcher's coordinator has made the file."""
        assert self._plan.tuner is not None
        deadline = asyncio.get_running_loop().time() + _MEETING_S
        while not is_of_run(file, self._plan.tuner.token):
            if asyncio.get_running_loop().time() >= deadline:
                return f"{file}: not made within {_MEETING_S:g} s by this node's first launcher"
            await asyncio.sleep(_LOOK_S)
        return ""

    def _look(self) -> None:
        assert self._plan.tuner is not None
        with self._harmless("summary"):
            self.summary.add(self._plan.tuner.file(self._plan.job), self._plan.tuner.token)

    @contextlib.contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        """Let nothing that goes wrong at the end hide how the command ended."""
        try:
            yield
        except Exception as error:
            self._say.warn(f"{what}: {error!r}")

    def _missing(self, part: Part, why: str, meaning: str) -> None:
        if part in self._plan.required:
            raise LaunchError(f"--require {part}: {why}")
        self._say.warn(f"{part}: {why}; {meaning}, and training starts without it")


async def _both(
    one: Coroutine[object, object, _A], other: Coroutine[object, object, _B]
) -> tuple[_A, _B]:
    """Await both at once; where one fails the other is cancelled, and ended, first."""
    tasks = asyncio.create_task(one), asyncio.create_task(other)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
