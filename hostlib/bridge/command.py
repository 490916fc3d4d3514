"""``ringstep tuner bridge``: the software RNIC that engines on this host send through."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from ringstep.hostlib.bridge.attach import attach
from ringstep.hostlib.bridge.service import Bridge, BridgeConfig
from ringstep.hostlib.cli_options import fail
from ringstep.hostlib.dcqcn import PRESETS, DcqcnParams, preset
from ringstep.hostlib.tagging import PortPerStep, QpPool, StepTagger
from ringstep.protocol.tag import TagLayout

__all__ = ["app", "bridge", "main"]

_PUBLISHED_BPS: Final = 10e9
"""The slowest link that the DCQCN presets were published for."""
_STATS_EVERY_S: Final = 1.0


def bridge(
    socket: Annotated[
        Path, typer.Option("--socket", metavar="PATH", help="Unix socket that engines open.")
    ],
    wire: Annotated[
        str,
        typer.Option(
            "--wire",
            metavar="WIRE",
            help="udp:HOST:PORT (straight to the other bridges), udp:HOST:PORT,PEERHOST:PEERPORT "
            "(a cable to a switch's port) or packet:INTERFACE (needs CAP_NET_RAW).",
        ),
    ],
    address: Annotated[
        str | None,
        typer.Option(
            help="IP address of the NIC (default: the interface's, or one made of HOST and PORT). "
            "On an interface take one that its kernel does not own: it answers for its own."
        ),
    ] = None,
    mac: Annotated[
        str | None,
        typer.Option(help="MAC address of the NIC (default: the interface's, or of the IP)."),
    ] = None,
    gateway_mac: Annotated[
        str | None,
        typer.Option(help="MAC address of the first router (default: none; straight to peers)."),
    ] = None,
    mtu: Annotated[
        int | None,
        typer.Option(help="Payload of a full packet, bytes (default: the largest that fits)."),
    ] = None,
    tag_layout: Annotated[
        str | None,
        typer.Option(
            metavar="J:S",
            help="Job and step bits of the source port (default: 0:14, or what the pool needs).",
        ),
    ] = None,
    job_tag: Annotated[int, typer.Option(help="The job's J bits.")] = 0,
    tagger: Annotated[
        str,
        typer.Option(metavar="port_per_step|qp_pool:K", help="How steps get their ports."),
    ] = "port_per_step",
    dscp: Annotated[int, typer.Option(min=0, max=63, help="DSCP of data packets.")] = 0,
    psn: Annotated[
        int, typer.Option(min=0, max=(1 << 24) - 1, help="First PSN of every queue pair.")
    ] = 0,
    dcqcn: Annotated[
        str | None,
        typer.Option(metavar="PRESET", help=f"Rate control: {', '.join(sorted(PRESETS))}."),
    ] = None,
    rate: Annotated[float, typer.Option(help="Speed of the line, Gb/s.")] = 100.0,
    ring: Annotated[
        int,
        typer.Option(help="Bytes of a connection that may be on their way; a power of two."),
    ] = 4 << 20,
    window: Annotated[int, typer.Option(min=1, help="Bytes in flight of a queue pair.")] = 256
    << 10,
    rto_ms: Annotated[float, typer.Option(help="Retransmission timeout.")] = 100.0,
    peer_timeout: Annotated[
        float, typer.Option(help="Give a peer up after this many seconds of silence.")
    ] = 30.0,
    stats: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write counters here as JSON, every second."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: a line when ready, the counters at the end."),
    ] = False,
) -> None:
    """Carry the collective engine's messages as tagged RoCEv2 packets, until ctrl-C or SIGTERM.

    One bridge serves all ranks of a host. What passes its socket is in rnic_bridge.h
    (hostlib/native/engine).

    Example: ringstep tuner bridge --socket /tmp/a.sock --wire udp:127.0.0.1:9001 --tagger qp_pool:8
    """
    out = Console(emoji=False, highlight=False, soft_wrap=True)
    try:
        way = _tagger(tagger, tag_layout)
        if ring < 1 or ring & (ring - 1):
            raise ValueError(f"--ring {ring} is not a power of two")
        config = BridgeConfig(
            tagger=way,
            job_tag=job_tag,
            dcqcn=_dcqcn(dcqcn, rate * 1e9),
            line_rate_bps=rate * 1e9,
            gateway_mac=_mac("--gateway-mac", gateway_mac),
            initial_psn=psn,
            dscp=dscp,
            ring_log2=ring.bit_length() - 1,
            window_bytes=window,
            rto_us=rto_ms * 1e3,
            peer_timeout_us=peer_timeout * 1e6,
        )
        if mtu is not None and (not 256 <= mtu <= 4096 or mtu & (mtu - 1)):
            raise ValueError(f"--mtu {mtu} is not an InfiniBand MTU: 256, 512, 1024, 2048 or 4096")
        if stats is not None and not stats.parent.is_dir():
            raise ValueError(f"--stats {stats}: no folder {stats.parent}")
        ip = None if address is None else ip_address(address)
        place = attach(wire, ip=ip, mac=_mac("--mac", mac), mtu=mtu)
        try:
            server = Bridge(socket, place, config, log=_log)
        except BaseException:
            place.wire.close()
            raise
    except (ValueError, OSError) as error:
        said = isinstance(error, OSError) and error.filename is None and error.strerror
        fail(said or str(error))
    with server:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
        _ready(out, server, as_json)
        if stats is not None:
            write = _Writer(stats, server)
            write()
            server.call_every(_STATS_EVERY_S, write)
        server.run()
        if stats is not None:
            write()
        if as_json:
            out.print(json.dumps({"event": "ended", **server.stats()}), markup=False)


def _ready(out: Console, server: Bridge, as_json: bool) -> None:
    place = server.attachment
    if as_json:
        text = json.dumps(
            {
                "event": "ready", "socket": str(server.path), "wire": place.text,
                "ip": str(place.ip), "mac": place.mac.to_bytes(6, "big").hex(":"),
                "mtu": place.mtu, "queue_pairs": server.tagger.qps,
                "job_bits": server.tagger.layout.job_bits,
                "step_bits": server.tagger.layout.step_bits, "job_tag": server.job_tag,
                "max_skew": server.tagger.max_skew,
            }
        )  # fmt: skip
    else:
        text = (
            f"ready at {server.path}: NIC {place.ip} on {place.text}, MTU {place.mtu}, "
            f"{server.tagger.qps} queue pair(s) for data a connection, "
            f"tag J={server.tagger.layout.job_bits} S={server.tagger.layout.step_bits}"
        )
    out.print(text, markup=False)
    sys.stdout.flush()


class _Writer:
    """Replaces a file by the bridge's counters, never leaving half of them."""

    def __init__(self, path: Path, server: Bridge) -> None:
        self._path = path
        self._server = server
        self._failed = False

    def __call__(self) -> None:
        text = json.dumps(self._server.stats(), indent=2) + "\n"
        try:
            number, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
            with os.fdopen(number, "w") as file:
                file.write(text)
            Path(name).replace(self._path)
        except OSError as error:
            if not self._failed:
                _log(f"cannot write {self._path}: {error.strerror}")
            self._failed = True


def _tagger(text: str, layout: str | None) -> StepTagger:
    split: TagLayout | None = None
    if layout is not None:
        job, colon, step = layout.partition(":")
        if not (colon and job.isdecimal() and step.isdecimal()):
            raise ValueError(f"--tag-layout {layout!r} is not J:S, for example 6:8")
        split = TagLayout(int(job), int(step))
    if text == "port_per_step":
        return PortPerStep(split)
    way, _, count = text.partition(":")
    if way != "qp_pool" or not count.isdecimal():
        raise ValueError(f"--tagger {text!r} is neither port_per_step nor qp_pool:K")
    return QpPool.of(int(count)) if split is None else QpPool(split, int(count))


def _dcqcn(name: str | None, rate_bps: float) -> DcqcnParams | None:
    if rate_bps <= 0:
        raise ValueError(f"--rate {rate_bps / 1e9:g} must be above 0")
    if name is None:
        return None
    if rate_bps >= _PUBLISHED_BPS:
        return preset(name, rate_bps)
    factor = _PUBLISHED_BPS / rate_bps
    return preset(name, _PUBLISHED_BPS).scaled(factor, 1 / factor)


def _mac(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    parts = text.split(":")
    try:
        octets = bytes(int(part, 16) for part in parts)
    except ValueError:
        octets = b""
    if len(octets) != 6:
        raise ValueError(f"{option} {text!r} is not like 02:00:00:00:00:01")
    return int.from_bytes(octets, "big")


def _log(text: str) -> None:
    Console(emoji=False, stderr=True, highlight=False, soft_wrap=True).print(text, markup=False)


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
"""The command alone, for ``python -m ringstep.hostlib.bridge``."""
app.command("bridge")(bridge)


def main() -> None:
    """Run the command by itself."""
    app(prog_name="python -m ringstep.hostlib.bridge")
