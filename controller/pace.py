"""Lets long work on the event loop give way to calls that somebody waits for.

Programming switches takes far more time than registering jobs does, and both share one loop. While
jobs come, the steps of programming, of all switches together, follow one another with a rest
between them, so that they take a part of the time; programming catches up afterwards, and never
stops.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

_RECENT_S: Final = 0.1
_REST_S: Final = 0.03
"""Between two steps while calls come; a step takes some 3 ms."""


class Pace:
    """Shared by those who work for a long time and those who must not wait for it."""

    def __init__(self) -> None:
        self._last_call = -_RECENT_S
        self._next = asyncio.Lock()

    def called(self) -> None:
        """Note that a call is being answered that somebody waits for."""
        self._last_call = time.monotonic()

    async def turn(self) -> None:
        """Give others their turn, before a step of long work."""
        await asyncio.sleep(0)
        if not self._calls_come():
            return
        async with self._next:
            if self._calls_come():
                await asyncio.sleep(_REST_S)

    def _calls_come(self) -> bool:
        return time.monotonic() - self._last_call < _RECENT_S
