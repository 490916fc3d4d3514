"""The controller process: puts configuration, store, switches and API together, and runs them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio

from ringstep.controller.channels import MAX_MESSAGE_BYTES, is_loopback
from ringstep.controller.config import ControllerConfig, ProgramConfig
from ringstep.controller.fleet import Fleet
from ringstep.controller.pipeline import Pipeline, load_pipeline
from ringstep.controller.service import JobsService, SwitchesService, read_stored_spec
from ringstep.controller.store import Store
from ringstep.controller.v1 import jobs_pb2_grpc, switches_pb2_grpc
from ringstep.fabric.topology import load_topology

LOGGER = logging.getLogger(__name__)
_GRACE_S = 1.0


class ListenError(Exception):
    """The controller cannot listen where it should."""


@asynccontextmanager
async def running(config: ControllerConfig) -> AsyncIterator[str]:
    """Run a controller inside the context; yields the ``HOST:PORT`` it listens on.

    Nothing is left when the context ends: no task, no port, no file but the store's.

    Raises:
        FileError: the topology file is not usable.
        PipelineError: the P4 program is not usable.
        StoreError: the store is not usable.
        ListenError: the address is taken or not ours.
        ValueError: topology and program do not fit together.
    """
    topology = load_topology(config.topology)
    pipeline = _load(config.pipeline)
    others = {name: _load(program) for name, program in config.pipeline.switch.items()}
    store = Store(config.store)
    try:
        fleet = Fleet(
            topology,
            store,
            pipeline,
            read_stored_spec,
            election_id=config.p4runtime.election_id,
            timing=config.p4runtime.timing,
            other_pipelines=others,
        )
        server, address = _bind(config.listen)
        jobs_pb2_grpc.add_JobsServicer_to_server(JobsService(fleet), server)
        switches_pb2_grpc.add_SwitchesServicer_to_server(SwitchesService(fleet), server)
        try:
            async with fleet:
                await server.start()
                LOGGER.info("listening on %s", address)
                try:
                    yield address
                finally:
                    await server.stop(_GRACE_S)
        finally:
            # A server that never started still holds its port.
            await server.stop(None)
    finally:
        store.close()


def _load(program: ProgramConfig) -> Pipeline:
    return load_pipeline(program.p4info, program.json_, uec=program.uec)


def _bind(listen: str) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server(
        options=[
            # Without this a second controller would bind the same port and share its calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
    )
    if not is_loopback(listen):
        LOGGER.warning("listening on %s without TLS: anyone who reaches it may command it", listen)
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError:
        port = 0
    if port == 0:
        raise ListenError(
            f"cannot listen on {listen}: the port is in use or the address is not of this machine; "
            "stop the other process, or give another --listen HOST:PORT (port 0 takes a free one)"
        )
    return server, f"{listen.rpartition(':')[0]}:{port}"


async def serve(config: ControllerConfig, ready_file: Path | None = None) -> None:
    """Run a controller until SIGINT or SIGTERM.

    ``ready_file`` gets one JSON line ``{"listen": "HOST:PORT", "pid": N}`` once calls are served.

    Raises:
        OSError: the ready file cannot be written.
        Others as :func:`running`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running(config) as address:
        if ready_file is not None:
            _write_ready(ready_file, address)
        await stop.wait()
        LOGGER.info("stopping")


def _write_ready(path: Path, address: str) -> None:
    # Written aside and moved: a reader never sees half a line.
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    line = json.dumps({"listen": address, "pid": os.getpid()}) + "\n"
    try:
        scratch.write_text(line, encoding="utf-8")
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
