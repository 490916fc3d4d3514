"""`ringstep softswitch`: run a switch, look into a compiled program."""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ringstep.protocol.limits import CPU_PORT
from ringstep.softswitch.codegen import Generator
from ringstep.softswitch.engine import MAX_PORT, Switch
from ringstep.softswitch.errors import PipelineError
from ringstep.softswitch.model import Program, load_program
from ringstep.softswitch.queueing import QueueConfig
from ringstep.softswitch.runtime import Runtime, stopped_by_signals, write_json_atomically
from ringstep.softswitch.wires import Wire, WireError, parse_wire

if TYPE_CHECKING:
    from grpc import ServerCredentials

app = typer.Typer(
    help="The software switch: P4Runtime in front of p4c's BMv2 JSON.", no_args_is_help=True
)

BAD_INPUT = 2
MAX_DEVICE_ID = (1 << 64) - 1
"""P4Runtime device ids have 64 bits."""


def _fail(message: str) -> NoReturn:
    typer.echo(f"ringstep softswitch: {message}", err=True)
    raise typer.Exit(BAD_INPUT)


def _numbered(option: str, text: str) -> tuple[int, str]:
    number, equals, rest = text.partition("=")
    if not equals or not number.isdecimal() or int(number) > MAX_PORT:
        _fail(f"{option} {text!r} does not start with NUMBER=, a port in 0..{MAX_PORT}")
    return int(number), rest


def parse_queue(text: str) -> QueueConfig:
    """`rate_bps:N,rate_pps:N,capacity:N,overhead_bytes:N`, in any order. Raises ValueError."""
    makers: dict[str, Callable[[str], float]] = {
        "rate_bps": float,
        "rate_pps": float,
        "capacity": int,
        "overhead_bytes": int,
    }
    values: dict[str, float] = {}
    for item in text.split(","):
        key, colon, value = item.partition(":")
        if not colon or key not in makers:
            raise ValueError(f"{item!r} is not one of {', '.join(f'{k}:NUMBER' for k in makers)}")
        if key in values:
            raise ValueError(f"{key} is given twice")
        try:
            values[key] = makers[key](value)
        except ValueError:
            kind = "whole number" if makers[key] is int else "number"
            raise ValueError(f"{item!r}: {value!r} is not a {kind}") from None
    return QueueConfig(**values)  # type: ignore[arg-type]


def _ports(specs: list[str], cpu_port: int) -> dict[int, Wire]:
    wires: dict[int, Wire] = {}
    ends: dict[str, int] = {}
    try:
        for spec in specs:
            number, rest = _numbered("--port", spec)
            if number in wires:
                raise WireError(f"port {number} was given before")
            if number == cpu_port:
                raise WireError(
                    f"port {number} is the CPU port, whose packets go to the controller; use "
                    "another port, or another --cpu-port"
                )
            wires[number] = parse_wire(rest)
            other = ends.setdefault(wires[number].describe(), number)
            if other != number:
                raise WireError(f"port {other} ends at {wires[number].describe()} already")
    except WireError as error:
        for wire in wires.values():
            wire.close()
        _fail(f"--port {spec!r}: {error}")
    return wires


def _queues(specs: list[str]) -> dict[int, QueueConfig]:
    queues: dict[int, QueueConfig] = {}
    for spec in specs:
        number, rest = _numbered("--queue", spec)
        if number in queues:
            _fail(f"--queue {spec!r}: port {number} was given before")
        try:
            queues[number] = parse_queue(rest)
        except ValueError as error:
            _fail(f"--queue {spec!r}: {error}")
    return queues


def _credentials(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> ServerCredentials | None:
    if cert is None and key is None:
        if client_ca is not None:
            _fail("--grpc-tls-client-ca needs --grpc-tls-cert and --grpc-tls-key beside it")
        return None
    if cert is None or key is None:
        _fail("--grpc-tls-cert and --grpc-tls-key belong together; give both")
    pair = _pem("--grpc-tls-cert", cert), _pem("--grpc-tls-key", key)
    _check_pair(cert, key)
    # Only a server needs gRPC: importing it would slow every other command down.
    from grpc import ssl_server_credentials

    return ssl_server_credentials(
        [(pair[1], pair[0])],
        root_certificates=_pem("--grpc-tls-client-ca", client_ca) if client_ca else None,
        require_client_auth=client_ca is not None,
    )


def _pem(option: str, path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        _fail(f"{option} {str(path)!r}: cannot be read ({error.strerror})")
    if b"-----BEGIN" not in data:
        _fail(f"{option} {str(path)!r}: is not a PEM file")
    return data


def _check_pair(cert: Path, key: Path) -> None:
    """Refuse what gRPC would take without a word and then fail every handshake with."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except ssl.SSLError as error:
        _fail(
            f"--grpc-tls-cert {str(cert)!r} and --grpc-tls-key {str(key)!r} do not go together "
            f"({error.reason or error})"
        )


def _write(option: str, path: Path, document: object) -> None:
    try:
        write_json_atomically(path, document)
    except OSError as error:
        _fail(
            f"{option} {str(path)!r}: cannot be written ({error.strerror}); give the path of a file"
        )


@app.command()
def run(
    device_id: Annotated[
        int, typer.Option(help="P4Runtime device id, above 0.", min=1, max=MAX_DEVICE_ID)
    ] = 1,
    grpc: Annotated[
        str, typer.Option(help="Where P4Runtime listens; port 0 picks a free one.")
    ] = "127.0.0.1:9559",
    port: Annotated[
        list[str] | None,
        typer.Option(
            help="NUMBER=udp:HOST:PORT,PEERHOST:PEERPORT | NUMBER=afpacket:INTERFACE | "
            "NUMBER=pcap:IN,OUT. A peer port of 0 is whoever sent last. Repeatable."
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            help="NUMBER=rate_bps:N,rate_pps:N,capacity:N: pace and depth of an egress queue. "
            "Without one a port is unlimited. Repeatable."
        ),
    ] = None,
    cpu_port: Annotated[
        int, typer.Option(help="Port of packet-ins and packet-outs.", min=1, max=MAX_PORT)
    ] = CPU_PORT,
    seed: Annotated[int, typer.Option(help="Seed of the program's random().")] = 0,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written, as one line of JSON, once the switch serves.")
    ] = None,
    stats_file: Annotated[
        Path | None, typer.Option(help="Written with all counts, as JSON, when the switch ends.")
    ] = None,
    grpc_tls_cert: Annotated[
        Path | None,
        typer.Option(help="PEM file: certificate of the P4Runtime server; turns TLS on."),
    ] = None,
    grpc_tls_key: Annotated[
        Path | None, typer.Option(help="PEM file: private key of --grpc-tls-cert.")
    ] = None,
    grpc_tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            help="PEM file: only clients with a certificate of this authority may connect."
        ),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Run one switch until SIGINT or SIGTERM."""
    level = logging.getLevelName(log_level.upper())
    if not isinstance(level, int):
        _fail(f"--log-level {log_level!r} is not debug, info, warning or error")
    logging.basicConfig(level=level, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    # Only `run` needs the server: importing gRPC would slow every other command down.
    from ringstep.softswitch.p4rt.server import serve

    queues = _queues(queue or [])
    for option, path in (("--ready-file", ready_file), ("--stats-file", stats_file)):
        if path is not None and not path.parent.is_dir():
            _fail(f"{option} {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")
    credentials = _credentials(grpc_tls_cert, grpc_tls_key, grpc_tls_client_ca)
    wires = _ports(port or [], cpu_port)
    switch = Switch(device_id, seed=seed, cpu_port=cpu_port, queues=queues)
    runtime = Runtime(switch, wires)
    try:
        with stopped_by_signals(runtime):
            try:
                server = serve(
                    switch,
                    grpc,
                    packet_out=runtime.submit_packet_out,
                    credentials=credentials,
                )
            except OSError as error:
                _fail(f"--grpc {grpc!r}: {error}")
            try:
                runtime.packet_in = server.packet_in
                runtime.digest = server.digest
                if ready_file is not None:
                    _write(
                        "--ready-file",
                        ready_file,
                        {
                            "grpc": server.address,
                            "ports": {str(n): w.describe() for n, w in wires.items()},
                            "pid": os.getpid(),
                        },
                    )
                runtime.run()
            finally:
                server.stop()
        if stats_file is not None:
            _write("--stats-file", stats_file, runtime.statistics())
    finally:
        runtime.close()


@app.command()
def inspect(
    json_file: Annotated[Path, typer.Argument(help="p4c-bm2-ss output.")],
    source: Annotated[bool, typer.Option(help="Print the generated Python instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Show what a compiled program uses and whether this switch can execute it."""
    try:
        text = json_file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        _fail(f"cannot read {json_file}: {error}")
    try:
        program = load_program(text)
        generated = Generator(program).generate()
    except PipelineError as error:
        if as_json:
            typer.echo(json.dumps({"loads": False, "reason": str(error)}))
        else:
            typer.echo(f"{json_file} does not load: {error}")
        raise typer.Exit(1) from None
    if source:
        typer.echo(generated.source)
        return
    facts = _facts(program)
    if as_json:
        typer.echo(json.dumps({"loads": True, **facts}))
        return
    for key, value in facts.items():
        typer.echo(f"{key + ':':<14}{_readable(value)}")
    typer.echo(f"{'generated:':<14}{len(generated.source.splitlines())} lines of Python")
    typer.echo("loads:        yes")


def _facts(program: Program) -> dict[str, object]:
    from ringstep.softswitch.model import Call, If, Statement

    primitives: Counter[str] = Counter()

    def count(body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, If):
                primitives["if"] += 1
                count(statement.then)
                count(statement.otherwise)
            elif isinstance(statement, Call):
                primitives[statement.op] += 1

    for action in program.actions.values():
        count(action.body)
    kinds = Counter(k.match_type for t in program.tables() for k in t.keys)
    return {
        "headers": sum(not h.metadata for h in program.headers.values()),
        "parser states": len(program.states),
        "tables": sum(bool(t.keys) for t in program.tables()),
        "inlined": sum(not t.keys and t.default_is_const for t in program.tables()),
        "actions": len(program.actions),
        "match fields": dict(kinds.most_common()),
        "primitives": dict(primitives.most_common()),
        "counters": len(program.counters),
        "registers": len(program.registers),
        "checksums": len(program.checksums),
        "selectors": sum(p.algorithm is not None for p in program.profiles.values()),
    }


def _readable(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items()) or "none"
    return str(value)
