"""``ringstep top``: live jobs at all their switches, refreshed until q or ctrl-C."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import time
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import grpc
import typer
from rich.console import Console
from rich.live import Live

from ringstep.controller.client import ControllerClient, ControllerError
from ringstep.controller.completion import complete_job
from ringstep.controller.options import Connection, connected, seconds_option
from ringstep.controller.talk import ask, show_line
from ringstep.controller.topmodel import Row, SortKey, TopModel
from ringstep.controller.topview import Frame, render
from ringstep.controller.v1 import jobs_pb2

_LEAST_INTERVAL_S = 0.1
_ONCE_INTERVALS = 3.0
"""How many intervals one table waits for two readings of every job."""


@connected
def top(
    connection: Connection,
    job: Annotated[
        list[str] | None,
        typer.Option(
            "--job",
            metavar="NAME|ID",
            help="Only this job; may be given several times.",
            autocompletion=complete_job,
        ),
    ] = None,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Between two readings.")
    ] = "2s",
    sort: Annotated[
        SortKey, typer.Option("--sort", help="Numbers: the greatest first.")
    ] = SortKey.JOB,
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    tenant: Annotated[str, typer.Option("--tenant", help="Only jobs of this tenant.")] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Print one table, after two readings, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per reading, with its rows.")
    ] = False,
) -> None:
    """Show live jobs at their switches: how far the ring is, alpha, marks and packets per second.

    "step" and "psn" are those of the port that is furthest behind, "alpha" is the highest; "RED/s"
    counts marks by RED, "corr/s" how often the step went back. Keys: q quits, s sorts by the next
    column, r reverses, p pauses.

    Example: ringstep top --sort marks --interval 1s
    """
    view = _View(
        only=tuple(job or ()),
        interval_s=seconds_option("--interval", interval, least=_LEAST_INTERVAL_S),
        sort=sort,
        descending=reverse,
        tenant=tenant,
        source=",".join(connection.targets),
    )

    async def question(client: ControllerClient) -> None:
        if once or as_json or not sys.stdout.isatty():
            await _plain(client, view, once=once, as_json=as_json)
        else:
            await _live(client, view)

    ask(connection, question)


class _View:
    """What the user chose to see, and the model behind it."""

    def __init__(
        self,
        *,
        only: tuple[str, ...],
        interval_s: float,
        sort: SortKey,
        descending: bool,
        tenant: str,
        source: str,
    ) -> None:
        self.model = TopModel()
        self.only = only
        self.interval_s = interval_s
        self.sort = sort
        self.descending = descending
        self.tenant = tenant
        self.source = source
        self.paused = False
        self.quit = asyncio.Event()
        self.changed = asyncio.Event()

    def rows(self) -> list[Row]:
        return self.model.rows(
            time.monotonic(), self.sort, descending=self.descending, only=self.only
        )

    def frame(self, *, height: int | None = None, keys: bool = False) -> Frame:
        return Frame(
            rows=self.rows(),
            jobs=self.model.jobs,
            source=self.source,
            sort=self.sort,
            interval_s=self.interval_s,
            height=height,
            paused=self.paused,
            keys=keys,
        )

    def press(self, key: str) -> None:
        """Do what a key means; unknown ones mean nothing."""
        if key in ("q", "Q", "\x04"):
            self.quit.set()
        elif key == "s":
            keys = list(SortKey)
            self.sort = keys[(keys.index(self.sort) + 1) % len(keys)]
        elif key == "r":
            self.descending = not self.descending
        elif key == "p":
            self.paused = not self.paused
        self.changed.set()


async def _events(client: ControllerClient, view: _View) -> AsyncIterator[jobs_pb2.JobEvent]:
    """Yield what happens to jobs, with their state; by polling where that is all there is."""
    interval_ms = round(view.interval_s * 1000)
    try:
        async for event in client.watch(state_interval_ms=interval_ms, tenant=view.tenant):
            yield event
    except ControllerError as error:
        if error.code is not grpc.StatusCode.UNIMPLEMENTED:
            raise
    before: dict[int, jobs_pb2.Job] = {}
    while True:
        jobs = {job.id: job for job in await client.jobs(view.tenant)}
        for job_id in before.keys() - jobs.keys():
            yield jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_RELEASED, job=before[job_id])
        for job in jobs.values():
            yield jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SNAPSHOT, job=job)
        yield jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_SYNCED)
        for job_id in jobs:
            try:
                state = await client.state(job_id)
            except ControllerError as error:
                if error.code is grpc.StatusCode.NOT_FOUND:
                    continue  # Released in between.
                raise
            now_ms = time.time_ns() // 1_000_000
            for switch in state.switches:
                switch.read_unix_ms = switch.read_unix_ms or now_ms
            yield jobs_pb2.JobEvent(kind=jobs_pb2.JOB_EVENT_KIND_STATE, state=state)
        before = jobs
        await asyncio.sleep(view.interval_s)


async def _follow(client: ControllerClient, view: _View, news: asyncio.Event) -> None:
    async for event in _events(client, view):
        view.model.apply(event, time.monotonic())
        news.set()


@contextmanager
def _cancelled_at_the_end(task: asyncio.Task[None]) -> Iterator[None]:
    try:
        yield
    finally:
        task.cancel()


async def _plain(client: ControllerClient, view: _View, *, once: bool, as_json: bool) -> None:
    """Print tables or JSON lines, one per interval, or one in all."""
    news = asyncio.Event()
    task = asyncio.create_task(_follow(client, view, news))
    console = Console(emoji=False)
    with _cancelled_at_the_end(task):
        while True:
            await _until_read(view, task, news, once=once)
            if as_json:
                show_line(_reading(view))
            else:
                console.print(render(view.frame()))
            if once:
                return


async def _until_read(
    view: _View, task: asyncio.Task[None], news: asyncio.Event, *, once: bool
) -> None:
    """Wait for an interval; for one table, until every job was read twice, or should have been.

    Raises:
        ControllerError: the controller refuses, or is gone for good.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + view.interval_s * (_ONCE_INTERVALS if once else 1.0)
    while (left := end - loop.time()) > 0:
        if task.done():
            await task
            return
        if once and view.model.has_rates():
            return
        news.clear()
        waiter = asyncio.ensure_future(news.wait())
        try:
            await asyncio.wait({task, waiter}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
    if task.done():
        await task


def _reading(view: _View) -> dict[str, object]:
    return {
        "unix_ms": time.time_ns() // 1_000_000,
        "jobs": view.model.jobs,
        "rows": [row.to_json() for row in view.rows()],
    }


async def _live(client: ControllerClient, view: _View) -> None:
    """Fill the screen until a key or an error ends it."""
    console = Console(emoji=False)
    news = asyncio.Event()
    task = asyncio.create_task(_follow(client, view, news))
    with (
        _cancelled_at_the_end(task),
        _keys(view.press),
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not view.quit.is_set() and not task.done():
            if not view.paused or view.changed.is_set():
                view.changed.clear()
                # The size is asked for each time: the window may have changed.
                live.update(render(view.frame(height=console.size.height, keys=True)), refresh=True)
            waiters = {asyncio.ensure_future(view.changed.wait()), task}
            await asyncio.wait(
                waiters,
                timeout=min(view.interval_s, 1.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for waiter in waiters - {task}:
                waiter.cancel()
    if task.done() and not task.cancelled():
        await task


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Hand over single keys while it lasts; the terminal is as before afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(number, 64).decode("utf-8", "replace"):
            press(key)

    tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
