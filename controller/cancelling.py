"""Telling one's own cancellation from that of what is waited for."""

from __future__ import annotations

import asyncio


def being_cancelled() -> bool:
    """Say whether somebody asked the current task to end.

    A CancelledError that reaches a task of which that is not true comes from what it awaited: a
    call whose channel was closed, or another task. Let through, it would end the task as if it had
    been told to, and whoever waits for its answer gets none.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
