"""The controller process: puts configuration, store, switches and API together, and runs them.

Several controllers may share a store. One leads, the others stand by: they answer every call with
who leads, and take over when it goes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio

import ringstep
from ringstep.controller import kinds  # noqa: F401 - gives exceptions their meaning to callers
from ringstep.controller.channels import MAX_MESSAGE_BYTES
from ringstep.controller.config import ControllerConfig, ProgramConfig, refuse_exposure
from ringstep.controller.facts import Quotas, StoreError
from ringstep.controller.fleet import Fleet, FleetSettings
from ringstep.controller.fleetfacts import StageFacts
from ringstep.controller.health import HealthSwitch, add_health_and_reflection
from ringstep.controller.leader import Term, leading
from ringstep.controller.metrics import Metrics
from ringstep.controller.metricsserver import serving_metrics
from ringstep.controller.pipeline import Pipeline, load_pipeline
from ringstep.controller.problems import NotLeaderError
from ringstep.controller.programmer import ForeignPolicy
from ringstep.controller.security import Authenticator, AuthInterceptor, reload_on_hangup
from ringstep.controller.service import JobsService, SwitchesService
from ringstep.controller.stage import Stage
from ringstep.controller.store import Store
from ringstep.controller.switchboard import SessionSettings
from ringstep.controller.tlsfiles import ServerTls, switch_tls
from ringstep.controller.v1 import jobs_pb2_grpc, switches_pb2_grpc
from ringstep.fabric.model import Topology
from ringstep.fabric.topology import load_topology

LOGGER = logging.getLogger(__name__)
_GRACE_S: Final = 1.0
_RETRY_S: Final = 1.0
_UP_AFTER_S: Final = 30.0
"""A controller that neither leads by then nor knows who does is up all the same: it stands by."""
MAX_REQUEST_BYTES: Final = 4 << 20


class ListenError(Exception):
    """The controller cannot listen where it should."""


@dataclass(slots=True)
class _Program:
    """What runs: everything that a controller needs to lead, checked once at the start."""

    config: ControllerConfig
    topology: Topology
    pipeline: Pipeline
    others: dict[str, Pipeline]
    settings: FleetSettings
    store: Store
    stage: Stage
    metrics: Metrics
    reloads: list[Callable[[], None]] = field(default_factory=list)
    spare: Fleet | None = None

    def check(self) -> None:
        """Make the first fleet before anybody is told that there is a controller.

        Raises:
            ValueError: topology and program do not fit together.
        """
        self.spare = self._new_fleet()

    def fleet_of(self, term: Term) -> Fleet:
        """Return the fleet of one term, on the topology file as it is now.

        Another controller may have led, and read it again, since this one did. One that cannot be
        used is logged, and what was read before stays.
        """
        fleet, self.spare = self.spare, None
        before = self.topology
        try:
            self.read_topology()
            if fleet is None or fleet.topology != self.topology:
                fleet = self._new_fleet()
        except (ValueError, OSError) as error:
            LOGGER.error("the topology was not read again, the old one stays in force: %s", error)
            self.topology = before
            if fleet is None or fleet.topology is not before:
                fleet = self._new_fleet()
        fleet.lead_in(term.epoch, term.holds)
        return fleet

    def _new_fleet(self) -> Fleet:
        return Fleet(
            self.topology,
            self.store,
            self.pipeline,
            settings=self.settings,
            other_pipelines=self.others,
            reload=self.read_topology,
            metrics=self.metrics,
        )

    def read_topology(self) -> Topology:
        """Read the topology file again; what is read is what the next term starts with.

        Raises:
            FileError: it cannot be used.
        """
        self.topology = load_topology(self.config.topology)
        return self.topology


@asynccontextmanager
async def running(config: ControllerConfig) -> AsyncIterator[str]:
    """Run a controller inside the context; yields the ``HOST:PORT`` it listens on.

    Nothing is left when the context ends: no task, no port, no file but the store's.

    Raises:
        ConfigError: the API would be open to everybody beyond loopback, without that being asked.
        FileError: the topology or tokens file is not usable.
        TlsFileError: a certificate or key is not usable.
        PipelineError: the P4 program is not usable.
        StoreError: the store is not usable.
        ListenError, MetricsListenError: an address is taken or not ours.
        ValueError: topology and program do not fit together.
    """
    async with _running(config, asyncio.Event()) as (address, _):
        yield address


@asynccontextmanager
async def _running(
    config: ControllerConfig, stop: asyncio.Event
) -> AsyncIterator[tuple[str, _Program]]:
    """Run a controller inside the context, entered once it is up, or told to ``stop``."""
    refuse_exposure(config)
    topology = load_topology(config.topology)
    pipeline = _load(config.pipeline)
    others = {name: _load(program) for name, program in config.pipeline.switch.items()}
    authenticator = Authenticator(None if config.auth is None else config.auth.tokens)
    tls = None if config.tls is None else ServerTls(config.tls)
    settings = fleet_settings(config, topology)
    stage = Stage()
    metrics = Metrics(StageFacts(stage), version=ringstep.__version__)
    async with AsyncExitStack() as stack:
        store = Store(config.store)
        stack.callback(store.close)
        program = _Program(
            config, topology, pipeline, others, settings, store, stage, metrics,
            [authenticator.reload, *([] if tls is None else [tls.reload])],
        )  # fmt: skip
        program.check()
        server, address = _bind(config.listen, tls, metrics, authenticator)
        # A server that never started still holds its port.
        stack.push_async_callback(server.stop, None)
        jobs_pb2_grpc.add_JobsServicer_to_server(JobsService(stage), server)
        switches_pb2_grpc.add_SwitchesServicer_to_server(SwitchesService(stage), server)
        health = await add_health_and_reflection(server)
        if config.metrics.listen is not None:
            where = await stack.enter_async_context(
                serving_metrics(
                    metrics, config.metrics.listen, state=lambda: {"leading": stage.leads}
                )
            )
            LOGGER.info("metrics at http://%s/metrics", where)
        await server.start()
        LOGGER.info("listening on %s", address)
        is_up = asyncio.Event()
        work = asyncio.create_task(
            _take_turns(program, config.advertise or address, health, is_up),
            name="controller",
        )
        try:
            events = [asyncio.create_task(event.wait()) for event in (is_up, stop)]
            await asyncio.wait(
                {work, *events}, timeout=_UP_AFTER_S, return_when=asyncio.FIRST_COMPLETED
            )
            for event in events:
                event.cancel()
            if work.done():
                await work
            # From here on no failure of the store makes it end.
            is_up.set()
            yield address, program
        finally:
            await health.shut_down()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await server.stop(_GRACE_S)


async def _take_turns(
    program: _Program, address: str, health: HealthSwitch, is_up: asyncio.Event
) -> None:
    """Wait to lead, lead, and wait again, for ever; ``is_up`` is set once it does either.

    Raises:
        StoreError, ValueError: leading is not possible, and this controller was not up before.
    """
    stage, store = program.stage, program.store

    def on_wait(why: str) -> None:
        LOGGER.info("%s", why)
        is_up.set()

    while True:
        try:
            async with leading(store, address, on_wait=on_wait, on_leader=stage.leave) as term:
                await _lead(program, term, health, is_up)
        except StoreError as error:
            if not is_up.is_set():
                raise
            LOGGER.error("%s; trying again", error)
        except Exception:
            if not is_up.is_set():
                raise
            # Standing by for ever without a word would be worse than to try again.
            LOGGER.exception("leading failed unexpectedly; trying again")
        stage.leave()
        await asyncio.sleep(_RETRY_S)


async def _lead(program: _Program, term: Term, health: HealthSwitch, is_up: asyncio.Event) -> None:
    async with program.fleet_of(term) as fleet:
        LOGGER.info("leads, in term %d", term.epoch)
        program.stage.enter(fleet, term)
        await health.set(True)
        is_up.set()
        ends = [asyncio.create_task(event.wait()) for event in (term.lost, fleet.deposed)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            LOGGER.warning("leads no more (term %d)", term.epoch)
        finally:
            for end in ends:
                end.cancel()
            program.stage.leave()
            await health.set(False)


def fleet_settings(config: ControllerConfig, topology: Topology) -> FleetSettings:
    """Return what a configuration says about jobs and sessions.

    Raises:
        TlsFileError: a certificate or key for switches is not usable.
        ValueError: a switch is configured that the topology does not have.
    """
    p4runtime = config.p4runtime
    for name in p4runtime.switch.keys() - topology.switches.keys():
        raise ValueError(
            f"p4runtime.switch.{name}: not in the topology {topology.source}; known switches: "
            f"{', '.join(topology.switches)}"
        )
    return FleetSettings(
        sessions=SessionSettings(
            election_id=p4runtime.election_id,
            timing=p4runtime.timing,
            default_tls=switch_tls(p4runtime.tls),
            tls={name: switch_tls(p4runtime.tls_of(name)) for name in p4runtime.switch},
            default_foreign=ForeignPolicy(p4runtime.foreign),
            foreign={name: ForeignPolicy(p4runtime.foreign_of(name)) for name in p4runtime.switch},
        ),
        lease_s=config.jobs.lease_s,
        max_lease_s=config.jobs.max_lease_s,
        quarantine_s=config.jobs.quarantine_s,
        quotas=Quotas(
            config.jobs.quota.default, {name: config.max_jobs(name) for name in config.tenants}
        ),
        tenants=frozenset(config.tenants) if config.tenants else None,
    )


def _load(program: ProgramConfig) -> Pipeline:
    return load_pipeline(program.p4info, program.json_, uec=program.uec)


def _bind(
    listen: str, tls: ServerTls | None, metrics: Metrics, authenticator: Authenticator
) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(
        interceptors=(metrics.interceptor(), AuthInterceptor(authenticator)),
        options=[
            # Without this a second controller would bind the same port and share its calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            # Clients that look after their connections are not taken for a flood.
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ("grpc.keepalive_permit_without_calls", 1),
        ],
    )
    try:
        if tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, tls.credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise ListenError(
            f"cannot listen on {listen}: the port is in use or the address is not of this machine; "
            "stop the other process, or give another --listen HOST:PORT (port 0 takes a free one)"
        )
    return server, f"{listen.rpartition(':')[0]}:{port}"


async def serve(config: ControllerConfig, ready_file: Path | None = None) -> None:
    """Run a controller until SIGINT or SIGTERM; SIGHUP reads topology, tokens and TLS files again.

    ``ready_file`` gets one JSON line ``{"listen": "HOST:PORT", "pid": N, "leading": BOOL}`` once
    calls are answered.

    Raises:
        OSError: the ready file cannot be written.
        Others as :func:`running`.
    """
    _calm_garbage_collection()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # Until it is up there is nothing to read again, and nothing to end for.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    async with _running(config, stop) as (address, program):
        reloading: set[asyncio.Task[None]] = set()

        def reload_topology() -> None:
            task = asyncio.create_task(_reload_topology(program))
            reloading.add(task)
            task.add_done_callback(reloading.discard)

        reload_on_hangup(loop, [*program.reloads, reload_topology])
        if ready_file is not None:
            _write_ready(ready_file, address, leading=program.stage.leads)
        await stop.wait()
        LOGGER.info("stopping")


def _calm_garbage_collection() -> None:
    """Look through what lives long less often.

    A controller holds a million objects that stay; a full collection stops it for 50 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def _reload_topology(program: _Program) -> None:
    """Follow the topology file; one that cannot be used is logged, and the old one stays."""
    if not program.stage.leads:
        return
    try:
        followed = await program.stage.fleet.reload_topology()
    except (ValueError, StoreError, NotLeaderError) as error:
        LOGGER.error("the topology was not read again, the old one stays in force: %s", error)
    else:
        LOGGER.info(
            "read again; jobs moved: %s; jobs without rules: %s",
            " ".join(followed.moved) or "none",
            " ".join(followed.broken) or "none",
        )


def _write_ready(path: Path, address: str, *, leading: bool) -> None:
    # Written aside and moved: a reader never sees half a line.
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    line = json.dumps({"listen": address, "pid": os.getpid(), "leading": leading}) + "\n"
    try:
        scratch.write_text(line, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
