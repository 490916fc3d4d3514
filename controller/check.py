"""Everything that a controller needs, looked at before it starts, and changed nowhere."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ringstep.controller.channels import ChannelTls, is_loopback, open_channel
from ringstep.controller.config import ControllerConfig, ProgramConfig
from ringstep.controller.findings import Finding, ok, problem, warning
from ringstep.controller.p4rt import election_id_in
from ringstep.controller.pipeline import Pipeline, PipelineError, load_pipeline
from ringstep.controller.storecheck import StoreReport, check_store
from ringstep.controller.switchcheck import Explain, check_switch
from ringstep.controller.tlsfiles import (
    TlsFileError,
    certificates_in,
    read_server_files,
    refuse_untimely,
    shown,
    switch_tls,
)
from ringstep.controller.tokens import TokensError, load_tokens, utc_now
from ringstep.controller.x509 import CertificateFacts
from ringstep.fabric.model import Topology
from ringstep.fabric.tomlfile import FileError
from ringstep.fabric.topology import load_topology

EXPIRY_WARNING: Final = timedelta(days=14)
SWITCHES_AT_ONCE: Final = 16
_EARLIEST: Final = datetime(2024, 1, 1, tzinfo=UTC)
"""No clock that is right shows an earlier time."""
Progress = Callable[[int, int], None]


async def run_checks(
    config: ControllerConfig,
    *,
    timeout_s: float = 5.0,
    at_once: int = SWITCHES_AT_ONCE,
    progress: Progress | None = None,
    explain: Explain | None = None,
    now: Callable[[], datetime] = utc_now,
) -> list[Finding]:
    """Check all that a configuration names; what is wrong is in the findings, never raised.

    ``timeout_s``: for each switch and for the store. ``progress`` is told, after each switch, how
    many are done and how many there are.
    """
    moment = now()
    findings = [ok("configuration", "is valid"), *_clock(config, moment)]
    topology = _topology(config, findings)
    pipelines = _pipelines(config, topology, findings)
    findings += _server_tls(config, moment)
    findings += _tokens(config, moment)
    findings += _client_tls(config, moment)
    store = await asyncio.to_thread(check_store, config.store, timeout_s, time.time())
    findings += store.findings
    findings += [finding async for finding in _addresses(config, timeout_s)]
    if topology is not None and pipelines is not None:
        findings += await _switches(
            config, topology, pipelines, store, timeout_s, at_once, progress, explain
        )
    return findings


# -- files -------------------------------------------------------------------------------------


def _topology(config: ControllerConfig, findings: list[Finding]) -> Topology | None:
    try:
        topology = load_topology(config.topology)
    except FileError as error:
        findings += [problem("topology", line) for line in error.problems]
        return None
    findings.append(
        ok(
            "topology",
            f"{config.topology}: {len(topology.switches)} switches, {len(topology.hosts)} hosts, "
            f"{len(topology.links)} links",
        )
    )
    for table, named in (
        ("pipeline.switch", config.pipeline.switch),
        ("p4runtime.switch", config.p4runtime.switch),
    ):
        findings += [
            problem(
                "configuration",
                f"{table}.{name}: no switch of {config.topology}; known: "
                f"{', '.join(topology.switches)}",
            )
            for name in named
            if name not in topology.switches
        ]
    return topology


def _pipelines(
    config: ControllerConfig, topology: Topology | None, findings: list[Finding]
) -> dict[str, Pipeline] | None:
    """Return the program of each switch, or None where one cannot be used."""
    failed = False
    programs: dict[str, ProgramConfig] = {"": config.pipeline, **config.pipeline.switch}
    loaded: dict[str, Pipeline] = {}
    for name, program in programs.items():
        where = f"pipeline.switch.{name}" if name else "pipeline"
        try:
            loaded[name] = load_pipeline(program.p4info, program.json_, uec=program.uec)
        except PipelineError as error:
            findings.append(problem("program", f"{where}: {error}"))
            failed = True
        else:
            cookie = loaded[name].cookie
            findings.append(ok("program", f"{where}: usable (cookie {cookie:#018x})"))
    if failed or topology is None:
        return None
    return {name: loaded.get(name, loaded[""]) for name in topology.switches}


def _server_tls(config: ControllerConfig, now: datetime) -> Iterator[Finding]:
    if config.tls is None:
        yield ok("tls", f"none: {config.listen} is served in plaintext")
        return
    try:
        facts, *_ = read_server_files(config.tls, now)
    except TlsFileError as error:
        yield problem("tls", str(error))
        return
    yield _lifetime("tls", config.tls.cert, facts, now)
    if config.tls.client_ca is not None:
        for each in certificates_in(config.tls.client_ca, "the clients' authority"):
            yield _lifetime("tls", config.tls.client_ca, each, now)
    host = (config.advertise or config.listen).rpartition(":")[0].strip("[]")
    if host not in {*facts.names, "0.0.0.0", "::"}:
        yield warning(
            "tls",
            f"{config.tls.cert}: names {', '.join(facts.names)}, not {host!r}, where clients are "
            "told to go; they must give --server-name, or set advertise to a name that it has",
        )


def _lifetime(part: str, path: Path, facts: CertificateFacts, now: datetime) -> Finding:
    end = f"{facts.not_after:%Y-%m-%d %H:%M} UTC"
    if facts.not_after - now < EXPIRY_WARNING:
        days = (facts.not_after - now).days
        return warning(part, f"{path}: expires in {days} days, on {end}; renew it")
    return ok(part, f"{path}: certificate of {shown(facts)}, until {end}")


def _tokens(config: ControllerConfig, now: datetime) -> Iterator[Finding]:
    if config.auth is None:
        yield ok("tokens", "none: nobody is asked who calls")
        return
    try:
        tokens = load_tokens(config.auth.tokens)
    except TokensError as error:
        yield from (problem("tokens", line) for line in error.problems)
        return
    yield ok("tokens", f"{config.auth.tokens}: {len(tokens.entries)} callers")
    yield from (warning("tokens", text) for text in tokens.warnings)
    if expired := tokens.expired(now):
        yield warning("tokens", f"expired: {', '.join(expired)}; take them out, or renew them")
    for entry in tokens.entries:
        if entry.tenant is not None and not config.knows_tenant(entry.tenant):
            yield problem(
                "tokens",
                f"{entry.name!r} is for tenant {entry.tenant!r}, which [tenants] does not list; "
                f"add [tenants.{entry.tenant}], or mend the token",
            )


def _client_tls(config: ControllerConfig, now: datetime) -> Iterator[Finding]:
    tls = config.p4runtime.tls
    if tls is None:
        return
    try:
        switch_tls(tls)
        for path in filter(None, (tls.ca, tls.cert)):
            for facts in certificates_in(path, "a certificate"):
                refuse_untimely(path, facts, now)
                yield _lifetime("p4runtime.tls", path, facts, now)
    except TlsFileError as error:
        yield problem("p4runtime.tls", str(error))


def _clock(config: ControllerConfig, now: datetime) -> Iterator[Finding]:
    if now < _EARLIEST:
        yield problem("clock", f"shows {now:%Y-%m-%d %H:%M} UTC, which is over; set it, by NTP")
        return
    for path in (config.topology, Path(config.store.removeprefix("sqlite:///"))):
        try:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except (OSError, ValueError):
            continue
        if written - now > timedelta(minutes=1):
            yield warning(
                "clock",
                f"shows {now:%Y-%m-%d %H:%M} UTC, but {path} was written on "
                f"{written:%Y-%m-%d %H:%M}; set it, by NTP",
            )
            return
    yield ok("clock", f"shows {now:%Y-%m-%d %H:%M} UTC")


# -- addresses ---------------------------------------------------------------------------------


async def _addresses(config: ControllerConfig, timeout_s: float) -> AsyncIterator[Finding]:
    if (reason := _taken(config.listen)) is None:
        yield ok("listen", f"{config.listen} is free")
    elif await _serves(config, timeout_s):
        yield warning(
            "listen", f"{config.listen} is in use by a controller that runs; stop it before a start"
        )
    else:
        yield problem("listen", f"{config.listen}: {reason}; give another address, or stop what "
                      "listens there")  # fmt: skip
    if config.metrics.listen is not None:
        metrics = config.metrics.listen
        if (reason := _taken(metrics)) is None:
            yield ok("metrics", f"{metrics} is free")
            if not is_loopback(metrics):
                yield warning(
                    "metrics",
                    f"{metrics} is not loopback: whoever reaches it reads the names of tenants and "
                    "switches; keep it on a network of your own",
                )
        else:
            yield warning("metrics", f"{metrics}: {reason}; is a controller running already?")


def _taken(listen: str) -> str | None:
    """Return why an address cannot be listened on, or None where it can."""
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # Connections that ended a moment ago do not count; a listener does.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "the port is in use"
        if error.errno == errno.EADDRNOTAVAIL:
            return "the address is not of this machine"
        return error.strerror or str(error)
    return None


async def _serves(config: ControllerConfig, timeout_s: float) -> bool:
    """Say whether a gRPC server with a health service answers there."""
    tls = None
    if config.tls is not None:
        tls = ChannelTls(config.tls.cert.read_bytes())
    try:
        async with open_channel(config.listen, tls) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        return error.code() in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    return True


# -- switches ----------------------------------------------------------------------------------


async def _switches(
    config: ControllerConfig,
    topology: Topology,
    pipelines: dict[str, Pipeline],
    store: StoreReport,
    timeout_s: float,
    at_once: int,
    progress: Progress | None,
    explain: Explain | None,
) -> list[Finding]:
    kept: dict[str, tuple[str, int]] = {}
    for switch in topology.switches.values():
        if switch.p4runtime is not None and switch.name not in store.removed:
            kept[switch.name] = (switch.p4runtime, switch.device_id)
    kept |= {name: where for name, where in store.switches.items() if name in topology.switches}
    turns = asyncio.Semaphore(at_once)
    done = 0

    async def one(name: str) -> Finding:
        nonlocal done
        address, device_id = kept[name]
        async with turns:
            try:
                tls = switch_tls(config.p4runtime.tls_of(name))
            except TlsFileError:
                return warning(f"switch {name}", "not asked: p4runtime.tls cannot be used")
            options = {} if explain is None else {"explain": explain}
            finding = await check_switch(
                name,
                address,
                device_id,
                pipelines[name].cookie,
                tls,
                # The one that a controller started now would have.
                election_id=election_id_in(store.term + 1, config.p4runtime.election_id),
                timeout_s=timeout_s,
                **options,
            )
        done += 1
        if progress is not None:
            progress(done, len(kept))
        return finding

    findings = await asyncio.gather(*(one(name) for name in topology.switches if name in kept))
    unkept = [name for name in topology.switches if name not in kept]
    if unkept:
        findings.append(
            warning(
                "switches",
                f"without a P4Runtime address: {', '.join(unkept)}; give p4runtime in the "
                "topology, or 'ringstep switch add'",
            )
        )
    return findings
