"""Bring a running job from its old paths to new ones, in an order in which no packet is lost.

First what is new stands on every switch, then the rules turn packets to it, then what nobody needs
any more goes. Where the old path still works, the rules turn when the ring goes on to its next
step, so that no step's packets overtake each other (DESIGN section 5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ringstep.controller.entries import EntryKey, EntryValue
from ringstep.controller.live import LiveJob
from ringstep.controller.moves import Writes, plan_move
from ringstep.controller.programmer import Phase
from ringstep.controller.states import Reader
from ringstep.controller.switchboard import Switchboard

LOGGER = logging.getLogger(__name__)
_POLL_S = 0.01


class Mover:
    """Moves jobs. ``boundary_s``: how long to wait for a step to end; ``settle_s``: for switches.

    ``done`` hears of a job whose move is over.
    """

    def __init__(
        self,
        switchboard: Switchboard,
        done: Callable[[LiveJob], None],
        *,
        boundary_s: float,
        settle_s: float,
    ) -> None:
        self._switchboard = switchboard
        self._done = done
        self._boundary_s = boundary_s
        self._settle_s = settle_s
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, job: LiveJob, why: str, *, at_boundary: bool) -> None:
        """Begin to bring the switches to what the job's entries are now."""
        self.stop(job)
        job.moving = why
        job.move = asyncio.create_task(self._move(job, at_boundary=at_boundary))
        self._tasks.add(job.move)
        job.move.add_done_callback(partial(self._ended, job))

    def _ended(self, job: LiveJob, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        LOGGER.error("job %s (%d): its move failed", job.name, job.id, exc_info=error)
        if job.move is task:
            # Better in the wrong order than not at all.
            job.move, job.moving = None, ""
            self._switchboard.hold(job, job.entries)
            self._done(job)

    def stop(self, job: LiveJob) -> None:
        """Leave a move where it is; who calls says what the switches should hold now."""
        if job.move is not None:
            job.move.cancel()
        job.move, job.moving = None, ""

    async def close(self) -> None:
        """Leave all moves where they are: the next controller goes on from what is stored."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _move(self, job: LiveJob, *, at_boundary: bool) -> None:
        move = plan_move(job.held, job.entries)
        staged = _with(job.held, move.adds)
        self._switchboard.hold(job, staged)
        if move.flips:
            await self._settled(job)
            if at_boundary:
                await self._boundary(job, move.flips)
            self._switchboard.hold(job, _with(staged, move.flips))
            await self._settled(job)
        self._switchboard.hold(job, job.entries)
        job.move, job.moving = None, ""
        self._done(job)

    async def _settled(self, job: LiveJob) -> None:
        """Wait until the switches hold what they were told, or for as long as that may take.

        One that cannot be reached is not waited for: packets do not pass it either.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settle_s
        while loop.time() < end and any(
            self._switchboard.phase(name) is not Phase.CONNECTING
            for name in self._switchboard.late(job)
        ):
            await asyncio.sleep(_POLL_S)

    async def _boundary(self, job: LiveJob, switches: Iterable[str]) -> None:
        """Return when the ring goes on to its next step, seen at one of the switches that turn."""
        reader = Reader(job, self._switchboard.programmers, self._switchboard.pipelines)
        waits = [
            asyncio.create_task(reader.next_step(switch, self._boundary_s))
            for switch in switches
            if switch in job.stored.blocks
        ]
        if not waits:
            return
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


def _with(
    held: Mapping[str, Mapping[EntryKey, EntryValue]], writes: Writes
) -> dict[str, dict[EntryKey, EntryValue]]:
    """Return what switches hold once some entries were written."""
    return {
        switch: {**held.get(switch, {}), **writes.get(switch, {})} for switch in {*held, *writes}
    }
