"""What the switches say about a job: its state blocks and counters, read through the data plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final

from ringstep.controller.desired import ALL_PORTS
from ringstep.controller.live import LiveJob
from ringstep.controller.p4rt import SessionError
from ringstep.controller.pipeline import Pipeline
from ringstep.controller.programmer import Programmer
from ringstep.protocol.inband import StateReply

_READS_AT_ONCE: Final = 8
_STEP_POLL_S: Final = 0.005
_IDLE_S: Final = 0.2
"""A ring that moves nothing for so long is between steps."""


@dataclass(frozen=True, slots=True)
class BlockReading:
    """One block as read from a switch; ``error`` instead of ``state`` where that failed.

    On a switch with several pipes a block that serves ports of several is read from each: they are
    as many states.
    """

    block: int
    ports: tuple[int, ...]
    state: StateReply | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """What one switch says about a job; ``error`` where it could not be asked at all."""

    switch: str
    blocks: tuple[BlockReading, ...]
    counters: Mapping[str, int] | None
    error: str = ""
    read_unix_ms: int = 0


class Reader:
    """Reads the state of one job."""

    def __init__(
        self,
        job: LiveJob,
        programmers: Mapping[str, Programmer],
        pipelines: Mapping[str, Pipeline],
    ) -> None:
        self._job = job
        self._programmers = programmers
        self._pipelines = pipelines

    async def read(self) -> list[SwitchReading]:
        """Read blocks and counters from all switches that follow the job, at once."""
        job = self._job
        readings = await asyncio.gather(*(self._switch(switch) for switch in job.stored.blocks))
        unable = (SwitchReading(switch, (), None, why) for switch, why in job.cannot.items())
        return sorted([*readings, *unable], key=lambda reading: reading.switch)

    async def _switch(self, switch: str) -> SwitchReading:
        programmer = self._programmers.get(switch)
        if programmer is None:
            why = "has no P4Runtime address; add it with 'ringstep switch add'"
            return SwitchReading(switch, (), None, why)
        try:
            counters = await programmer.read_job_counters(self._job.id)
        except SessionError as error:
            return SwitchReading(switch, (), None, str(error))
        read_at = time.time_ns() // 1_000_000
        gate = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(block: int, ports: tuple[int, ...], port: int) -> BlockReading:
            try:
                async with gate:
                    state = await programmer.read_state(self._job.id, block, port)
                    return BlockReading(block, ports, state)
            except SessionError as error:
                return BlockReading(block, ports, None, str(error))

        reads: list[Awaitable[BlockReading]] = [
            read(block, ports, port) for block, ports, port in self._blocks(switch)
        ]
        return SwitchReading(
            switch, tuple(await asyncio.gather(*reads)), counters, read_unix_ms=read_at
        )

    def _blocks(self, switch: str) -> list[tuple[int, tuple[int, ...], int]]:
        """Return (block, its egress ports, the port to ask at) of every state of a switch."""
        job, pipeline = self._job, self._pipelines[switch]
        found: list[tuple[int, tuple[int, ...], int]] = []
        for key, block in sorted(job.stored.blocks[switch].items()):
            of_pipe: dict[int, list[int]] = {}
            ports = job.ports.get(switch, frozenset()) if key == ALL_PORTS else (key,)
            for egress_port in sorted(ports):
                of_pipe.setdefault(pipeline.state_port(egress_port), []).append(egress_port)
            found += [(block, tuple(ports), port) for port, ports in of_pipe.items()]
        return found

    async def next_step(self, switch: str, limit_s: float) -> bool:
        """Return when the job goes on to its next step at a switch, or moves nothing any more.

        Returns False where neither was seen within ``limit_s``, or the switch cannot be asked.
        """
        programmer = self._programmers.get(switch)
        blocks = self._blocks(switch)
        if programmer is None or not blocks:
            return False
        block, _, port = blocks[0]
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        first: StateReply | None = None
        still_since, last = loop.time(), (0, 0)
        while loop.time() < end:
            try:
                state = await programmer.read_state(self._job.id, block, port)
            except SessionError:
                return False
            if first is None:
                first = state
            elif state.step_min != first.step_min:
                return True
            if (state.step_min, state.psn_rec) != last:
                still_since, last = loop.time(), (state.step_min, state.psn_rec)
            elif loop.time() - still_since >= _IDLE_S:
                return True
            await asyncio.sleep(_STEP_POLL_S)
        return False
