"""``ringstep job recommend``: what to set for a job, from measurements; it asks no controller."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringstep.controller.jobs import PERSISTENT
from ringstep.fabric.facts import (
    UNKNOWN,
    FabricFacts,
    FactError,
    JobFacts,
    fabric_facts,
    leaves_its_rack,
)
from ringstep.fabric.guidance import BASELINE, Change, TableError, load_table
from ringstep.fabric.recommend import Confidence, Recommendation, packets_per_step, recommend
from ringstep.fabric.tomlfile import FileError
from ringstep.fabric.topology import load_topology
from ringstep.fabric.units import format_rate, parse_delay_ns, parse_rate_bps, parse_size_bytes
from ringstep.protocol.marker import PROFILES, MarkerParams

BAD_INPUT = 2
_T = TypeVar("_T")
_MEANING = {
    Confidence.MEASURED: "measured at this point",
    Confidence.INTERPOLATED: "interpolated between measured points",
    Confidence.EXTRAPOLATED: "extrapolated: outside what was measured",
    Confidence.NONE: "no evidence: the safe default",
}


def _fail(text: str) -> NoReturn:
    for line in text.splitlines():
        print(f"error: {line}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)


def _parsed(option: str, parse: Callable[[object], _T], text: str) -> _T:
    try:
        return parse(int(text) if text.isdecimal() else text)
    except ValueError as error:
        _fail(f"{option}: {error}")


def _oversubscription(text: object) -> float:
    over, colon, under = str(text).partition(":")
    try:
        value = float(over) / (float(under) if colon else 1.0)
    except (ValueError, ZeroDivisionError):
        value = 0.0
    if not value > 0:
        raise ValueError(f"{text!r} is no oversubscription; write 2:1 or 2")
    return value


def job_recommend(
    chunk: Annotated[
        str,
        typer.Option("--chunk", metavar="SIZE", help="Bytes that a rank sends per ring step."),
    ],
    topology: Annotated[
        Path | None,
        typer.Option("--topology", help="Topology file: rate, RTT, oversubscription, RED."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="RATE", help="Rate of host links, such as 100G.")
    ] = None,
    rtt: Annotated[
        str | None,
        typer.Option("--rtt", metavar="TIME", help="RTT between racks, empty, such as 8us."),
    ] = None,
    oversubscription: Annotated[
        str | None,
        typer.Option(
            "--oversubscription", metavar="A:B", help="Hosts' rate over uplinks' rate. [1:1]"
        ),
    ] = None,
    ring: Annotated[
        str | None,
        typer.Option("--ring", metavar="H1,H2,...", help="Hosts in ring order, with --topology."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="Ranks of one ring, in place of --ring.")
    ] = None,
    sender: Annotated[
        str,
        typer.Option("--sender", help="persistent (NCCL), qp_per_step, or unknown."),
    ] = UNKNOWN,
    preset: Annotated[
        str, typer.Option("--preset", help="DCQCN parameters, such as connectx, or unknown.")
    ] = UNKNOWN,
    form: Annotated[
        Literal["ring", "ring_2d"], typer.Option("--form", help="Form of the ring.")
    ] = "ring",
    planning: Annotated[
        bool, typer.Option("--planning/--no-planning", help="Whether paths can be pinned.")
    ] = True,
    mtu: Annotated[int, typer.Option("--mtu", help="Payload of a packet, bytes.")] = 4096,
    tenants: Annotated[
        bool, typer.Option("--tenants/--no-tenants", help="Others use the fabric too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
) -> None:
    """Recommend paths, marking and its parameters for a job, and say how sure that is.

    Exit status: 0, or 2 for facts that make no sense.

    Example: ringstep job recommend --rate 100G --rtt 8us --chunk 1MiB --ranks 32
    --sender persistent --preset connectx
    """
    hosts = [host.strip() for host in ring.split(",")] if ring else []
    step_bytes = _parsed("--chunk", parse_size_bytes, chunk)
    try:
        table = load_table()
        for option, value, known in (
            ("--sender", sender, table.senders),
            ("--preset", preset, table.presets),
        ):
            if value != UNKNOWN and not value.replace("_", "").isalnum():
                _fail(f"{option}: {value!r} is not a name; measured are {', '.join(known)}")
        fabric, crossing = _fabric(topology, rate, rtt, oversubscription, hosts, mtu, tenants)
        if not hosts and ranks is None:
            _fail("no ring; give --ranks 64, or --topology with --ring h1,h2,h3")
        if hosts and ranks is not None and ranks != len(hosts):
            _fail(f"--ranks {ranks}, but --ring names {len(hosts)} hosts; give one of the two")
        job = JobFacts(step_bytes, ranks or len(hosts), sender, preset, form, crossing, planning)
        found = recommend(fabric, job, table)
    except (FactError, FileError, TableError, ValueError) as error:
        _fail(str(error))
    if as_json:
        print(json.dumps(as_dict(found, fabric, job), indent=2))
    else:
        _show(found, fabric, job)


def _fabric(
    topology: Path | None,
    rate: str | None,
    rtt: str | None,
    oversubscription: str | None,
    hosts: list[str],
    mtu: int,
    tenants: bool,
) -> tuple[FabricFacts, bool]:
    """Return the facts, and whether any ring edge leaves its rack."""
    rtt_ns = None if rtt is None else _parsed("--rtt", parse_delay_ns, rtt)
    over = (
        None
        if oversubscription is None
        else _parsed("--oversubscription", _oversubscription, oversubscription)
    )
    rate_bps = None if rate is None else _parsed("--rate", parse_rate_bps, rate)
    if topology is None:
        if hosts:
            _fail("--ring names hosts of a topology file; give --topology, or --ranks instead")
        if rate_bps is None or rtt_ns is None:
            _fail("no fabric; give --rate 100G --rtt 8us, or --topology fabric.toml")
        return FabricFacts(rate_bps, rtt_ns, over or 1.0, mtu, None, tenants), True
    loaded = load_topology(topology)
    facts = fabric_facts(loaded, hosts, rtt_ns=rtt_ns, mtu=mtu)
    crossing = leaves_its_rack(loaded, hosts) if hosts else True
    return (
        FabricFacts(
            rate_bps or facts.rate_bps,
            facts.rtt_ns,
            over or facts.oversubscription,
            mtu,
            facts.red_q_min,
            tenants,
        ),
        crossing,
    )


def register_flags(found: Recommendation, job: JobFacts) -> list[str]:
    """Return the options of ``ringstep job register`` that set what is recommended."""
    params, usual = found.params, PROFILES["ringstep"].params
    flags = ["--profile", "ringstep"]
    for flag, value, default in (
        ("--k", _k(params), _k(usual)),
        ("--tau", _tau(params), _tau(usual)),
        ("--t-win-us", str(params.t_win), str(usual.t_win)),
        ("--n-sample", str(params.n_sample), str(usual.n_sample)),
        ("--n-warmup", str(params.n_warmup), str(usual.n_warmup)),
        ("--q-gate", _gate(params), _gate(usual)),
    ):
        if value != default:
            flags += [flag, value]
    if job.sender == PERSISTENT:
        flags += ["--mode", "anchored"]
    return [*flags, "--marking", "on" if found.marking else "off"]


def _k(params: MarkerParams) -> str:
    return f"{round(params.k / 65536, 4):g}"


def _tau(params: MarkerParams) -> str:
    return f"{params.tau_num}/{params.tau_den}"


def _gate(params: MarkerParams) -> str:
    return "off" if params.q_gate is None else str(params.q_gate)


def _change(change: Change | None) -> dict[str, float] | None:
    return None if change is None else {"mean": change.mean, "low": change.low, "high": change.high}


def as_dict(found: Recommendation, fabric: FabricFacts, job: JobFacts) -> dict[str, Any]:
    """Return a recommendation as JSON shows it; changes are percent of CCT, negative is shorter."""
    params = found.params
    return {
        "fabric": {
            "rate_bps": fabric.rate_bps,
            "rtt_ns": fabric.rtt_ns,
            "oversubscription": fabric.oversubscription,
            "mtu": fabric.mtu,
            "red_q_min": fabric.red_q_min,
            "tenants": fabric.tenants,
        },
        "job": {
            "sender": job.sender,
            "preset": job.preset,
            "step_bytes": job.step_bytes,
            "packets_per_step": packets_per_step(fabric, job),
            "ring": job.ring,
            "form": job.form,
            "plannable": job.plannable,
        },
        "paths": found.paths,
        "marking": found.marking,
        "closed_loop": found.closed_loop,
        "parameters": {
            "k": round(params.k / 65536, 6),
            "tau": _tau(params),
            "t_win_us": params.t_win,
            "n_sample": params.n_sample,
            "n_warmup": params.n_warmup,
            "q_gate": params.q_gate,
        },
        "confidence": found.confidence.value,
        "expected_cct_change_percent": _change(found.expected),
        "marking_harm_percent": found.marking_harm,
        "reasons": list(found.reasons),
        "evidence": [
            {
                "site": cell.site.name,
                "sender": cell.sender,
                "preset": cell.preset,
                "baseline_ms": cell.baseline_ms,
                "changes": {name: _change(change) for name, change in cell.changes.items()},
            }
            for cell in found.evidence
        ],
        "rules_of_thumb": [
            {"parameter": r.parameter, "value": r.value, "rule": r.rule, "why": r.why}
            for r in found.rules
        ],
        "register_flags": register_flags(found, job),
    }


def _show(found: Recommendation, fabric: FabricFacts, job: JobFacts) -> None:
    console = Console(emoji=False, soft_wrap=True)
    console.print(
        f"{format_rate(fabric.rate_bps)}, RTT {fabric.rtt_ns / 1000:g} µs, "
        f"{fabric.oversubscription:g}:1, ring of {job.ring}, "
        f"{packets_per_step(fabric, job)} packets "
        f"({job.step_bytes * 8e6 / fabric.rate_bps:.3g} µs) per step, {job.sender} sender, "
        f"{job.preset}"
        f"{', other tenants' if fabric.tenants else ''}"
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("paths", found.paths)
    table.add_row("marking", "on" if found.marking else "off")
    table.add_row("closed loop", "yes" if found.closed_loop else "not needed")
    expected = found.expected
    table.add_row(
        "CCT against DCQCN + ECMP",
        "not known"
        if expected is None
        else "as it is"
        if not any((expected.mean, expected.low, expected.high))
        else f"{expected.mean:+.1f} % ({expected.low:+.1f} to {expected.high:+.1f})",
    )
    table.add_row("how sure", _MEANING[found.confidence])
    console.print(table)
    for reason in found.reasons:
        console.print(f"  - {reason}", highlight=False)
    rules = Table("parameter", "set", "rule of thumb", "which is", box=None, pad_edge=False)
    values = {
        "k": _k(found.params),
        "tau": _tau(found.params),
        "t_win": f"{found.params.t_win} µs",
        "q_gate": _gate(found.params),
        "n_sample": str(found.params.n_sample),
        "n_warmup": str(found.params.n_warmup),
    }
    for rule in found.rules:
        rules.add_row(rule.parameter, values[rule.parameter], rule.value, rule.rule)
    console.print()
    console.print(rules)
    console.print()
    if found.evidence:
        names = ", ".join(dict.fromkeys(cell.site.name for cell in found.evidence))
        console.print(f"evidence: {names} (variants against {BASELINE}: --json)", highlight=False)
    flags = shlex.join(register_flags(found, job))
    console.print(Text(f"ringstep job register --name NAME --ring H1,H2,... {flags}"))
    if job.sender == PERSISTENT:
        console.print(
            "where a step is several messages (NCCL slices) add --packets-per-step "
            f"{packets_per_step(fabric, job)}",
            highlight=False,
        )
