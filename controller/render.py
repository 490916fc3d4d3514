"""What the CLI prints: plain dictionaries with stable keys for scripts, tables for people.

Reasons are sentences, often long; they stand in lines of their own below a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ringstep.controller.client import Q_GATE_OFF, phase_text
from ringstep.controller.v1 import jobs_pb2, switches_pb2


def _enum(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()


def switch_dict(switch: switches_pb2.Switch) -> dict[str, Any]:
    """Return a switch as JSON shows it."""
    status = switch.status
    return {
        "name": switch.name,
        "role": switch.role,
        "device_id": switch.device_id,
        "address": switch.address,
        "phase": phase_text(status.phase),
        "detail": status.detail,
        "desired_entries": status.desired_entries,
        "updates_written": status.updates_written,
        "foreign_removed": status.foreign_removed,
        "sessions": status.sessions,
        "pending": status.pending,
        "drift": {
            "missing": status.drift_missing,
            "changed": status.drift_changed,
            "foreign": status.drift_foreign,
        },
        "drifts": status.drifts,
        "audited_unix_ms": status.audited_unix_ms,
        "foreign_kept": status.foreign_kept,
        "refused": list(status.refused),
        "refused_count": status.refused_count,
        "drained": switch.drained,
        "down_ports": list(switch.down_ports),
    }


def job_dict(job: jobs_pb2.Job) -> dict[str, Any]:
    """Return a job as JSON shows it."""
    spec, params = job.spec, job.parameters
    return {
        "id": job.id,
        "name": spec.name,
        "generation": job.generation,
        "tenant": spec.tenant,
        "owner": job.owner,
        "rings": [list(ring.hosts) for ring in spec.rings],
        "channels": [ring.channels or 1 for ring in spec.rings],
        "rails": [ring.rail for ring in spec.rings],
        "queue_pairs": [
            {"src": pair.src, "dst": pair.dst, "dest_qp": pair.dest_qp} for pair in spec.queue_pairs
        ],
        "match": _match_text(spec),
        "tag": _tag_dict(spec),
        "uec_job_ids": list(spec.uec_job_ids),
        "profile": spec.profile or "ringstep",
        "parameters": {
            "k": params.k,
            "tau": f"{params.tau.num}/{params.tau.den}",
            "t_win_us": params.t_win_us,
            "n_sample": params.n_sample,
            "n_warmup": params.n_warmup,
            "alpha_max": params.alpha_max,
            "q_gate": None if params.q_gate == Q_GATE_OFF else params.q_gate,
            "step_bits": params.step_bits,
            "job_bits": params.job_bits,
            "mode": _enum(jobs_pb2.ProgressMode.Name(params.mode), "PROGRESS_MODE_"),
            "packets_per_step": params.packets_per_step,
            "enabled": params.enabled,
            "scope": _enum(jobs_pb2.Scope.Name(params.scope), "SCOPE_"),
        },
        "marking": _marking_dict(params),
        "lease_s": job.lease_s,
        "lease_remaining_ms": job.lease_remaining_ms,
        "followers": _followers_text(spec),
        "paths_choice": _paths_text(job),
        "paths": [path_dict(path) for path in job.paths],
        "moving": job.moving,
        "programming": [
            {
                "switch": item.switch,
                "phase": phase_text(item.phase),
                "detail": item.detail,
                "cannot": item.cannot,
            }
            for item in job.programming
        ],
        "created_unix_ms": job.created_unix_ms,
        "problem": job.problem,
        "request_id": job.request_id,
    }


def _followers_text(spec: jobs_pb2.JobSpec) -> str:
    tor = spec.followers == jobs_pb2.FOLLOWERS_TOR
    return "tor" if tor else "everywhere"


def _paths_text(job: jobs_pb2.Job) -> str:
    choice = _enum(jobs_pb2.PathsChoice.Name(job.paths_choice), "PATHS_CHOICE_")
    return "unknown" if choice == "unspecified" else choice


def path_dict(path: jobs_pb2.PlannedPath) -> dict[str, Any]:
    """Return a planned path as JSON shows it."""
    return {
        "src": path.src,
        "dst": path.dst,
        "dest_qp": path.dest_qp,
        "hops": [{"switch": hop.switch, "port": hop.port} for hop in path.hops],
    }


def seconds_text(seconds: float) -> str:
    """Return a time as people read it, such as ``9m 58s``."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    shown = [f"{number}{unit}" for number, unit in parts if number]
    return " ".join(shown[:2]) or "0s"


def _lease_text(view: dict[str, Any]) -> str:
    if not view["lease_s"]:
        return "none"
    left = seconds_text(view["lease_remaining_ms"] / 1000)
    return f"{seconds_text(view['lease_s'])}, {left} left"


def _marking_dict(params: jobs_pb2.MarkerParameters) -> dict[str, Any]:
    decision = params.marking
    choice = _enum(jobs_pb2.MarkingChoice.Name(decision.choice), "MARKING_CHOICE_")
    return {
        "on": params.enabled,
        "choice": "unknown" if choice == "unspecified" else choice,
        "reason": decision.reason,
        "confidence": decision.confidence or None,
        "closed_loop": decision.closed_loop,
    }


def marking_line(job: jobs_pb2.Job) -> Text:
    """Return in one line whether a job is marked, and why."""
    view = _marking_dict(job.parameters)
    state = "on" if view["on"] else "off"
    how = f", {view['choice']}" if view["choice"] == "auto" else ""
    how += f", {view['confidence']}" if view["confidence"] not in {None, "none"} else ""
    reason = f": {view['reason']}" if view["reason"] else ""
    return Text(f"marking {state}{how}{reason}", overflow="fold")


def _match_text(spec: jobs_pb2.JobSpec) -> str:
    if spec.match != jobs_pb2.MATCH_KIND_UNSPECIFIED:
        return _enum(jobs_pb2.MatchKind.Name(spec.match), "MATCH_KIND_")
    if spec.HasField("tag"):
        return "tag"
    if spec.uec_job_ids:
        return "uec"
    return "dst_qp" if spec.queue_pairs else "pair"


def _tag_dict(spec: jobs_pb2.JobSpec) -> dict[str, Any] | None:
    if not spec.HasField("tag"):
        return None
    carrier = _enum(jobs_pb2.TagCarrier.Name(spec.tag.carrier), "TAG_CARRIER_")
    return {"carrier": carrier, "value": spec.tag.value}


def state_dict(state: jobs_pb2.StateResponse) -> list[dict[str, Any]]:
    """Return what the switches say about a job as JSON shows it."""
    return [
        {
            "switch": switch.switch,
            "error": switch.error,
            "counters": _counters(switch),
            "blocks": [
                {
                    "block": block.block,
                    "egress_ports": list(block.egress_ports),
                    "error": block.error,
                    "generation": block.generation,
                    "step_min": block.step_min,
                    "psn_rec": block.psn_rec,
                    "alpha": block.alpha,
                    "cnt_total": block.cnt_total,
                    "cnt_op": block.cnt_op,
                    "win_start_us": block.win_start_us,
                    "now_us": block.now_us,
                }
                for block in switch.blocks
            ],
        }
        for switch in state.switches
    ]


def _counters(switch: jobs_pb2.SwitchJobState) -> dict[str, int] | None:
    if not switch.HasField("counters"):
        return None
    counters = switch.counters
    return {
        "data": counters.data,
        "marks": counters.marks,
        "red_marks": counters.red_marks,
        "corrections": counters.corrections,
        "advances": counters.advances,
    }


_PHASE_STYLE = {"in sync": "green", "error": "red", "unmanaged": "dim"}


def _phase_markup(phase: str) -> str:
    return f"[{_PHASE_STYLE.get(phase, 'yellow')}]{phase}[/]"


def switch_table(switches: Iterable[switches_pb2.Switch]) -> Table:
    """Return all switches as a table for people."""
    table = Table(title="Switches")
    for heading in (
        "name", "role", "device", "address", "state", "entries", "pending", "drift"
    ):  # fmt: skip
        table.add_column(heading, overflow="fold")
    for switch in switches:
        view = switch_dict(switch)
        table.add_row(
            view["name"],
            view["role"],
            str(view["device_id"]),
            view["address"] or "-",
            _phase_markup(view["phase"]) + (" [yellow](drained)[/]" if view["drained"] else ""),
            str(view["desired_entries"]),
            str(view["pending"] or "-"),
            _drift_text(view),
        )
    return table


def _drift_text(view: dict[str, Any]) -> str:
    """What the last full read found: entries missing, changed, and put there by others."""
    drift = view["drift"]
    signs = (("missing", "-"), ("changed", "~"), ("foreign", "+"))
    return " ".join(f"{sign}{drift[key]}" for key, sign in signs if drift[key]) or "-"


def switch_details(switch: switches_pb2.Switch) -> Table:
    """Return all that is known of a switch as a table for people."""
    view = switch_dict(switch)
    drift = view["drift"]
    audited = view["audited_unix_ms"]
    table = Table(title=f"Switch {view['name']}", show_header=False)
    table.add_row("role", view["role"])
    table.add_row("device id", str(view["device_id"]))
    table.add_row("address", view["address"] or "-")
    table.add_row("state", _phase_markup(view["phase"]))
    table.add_row("drained", "yes" if view["drained"] else "no")
    table.add_row("links down", " ".join(str(port) for port in view["down_ports"]) or "none")
    table.add_row("entries it should hold", str(view["desired_entries"]))
    table.add_row("updates to be written", str(view["pending"]))
    table.add_row("updates written", str(view["updates_written"]))
    table.add_row("updates refused", str(view["refused_count"]))
    table.add_row(
        "last full read",
        datetime.fromtimestamp(audited / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        if audited
        else "none yet",
    )
    table.add_row(
        "it found",
        f"{drift['missing']} missing, {drift['changed']} changed, {drift['foreign']} foreign",
    )
    table.add_row("reads that found drift", str(view["drifts"]))
    table.add_row("foreign entries removed", str(view["foreign_removed"]))
    table.add_row("foreign entries kept", str(view["foreign_kept"]))
    table.add_row("sessions", str(view["sessions"]))
    return table


def refused_notes(switch: switches_pb2.Switch) -> list[Text]:
    """Return the updates that a switch refuses, each with its reason, for people."""
    status = switch.status
    notes = [_note(f"{switch.name} refuses", reason) for reason in status.refused]
    more = status.refused_count - len(status.refused)
    return [*notes, _note(switch.name, f"and {more} more")] if more > 0 else notes


def switch_notes(switches: Iterable[switches_pb2.Switch]) -> list[Text]:
    """Return why switches are not in sync, for people."""
    return [_note(switch.name, switch.status.detail) for switch in switches if switch.status.detail]


def _note(name: str, reason: str) -> Text:
    # Not markup: a switch's own words may hold brackets.
    return Text(f"{name}: {reason}", overflow="fold")


def job_table(jobs: Iterable[jobs_pb2.Job]) -> Table:
    """Return jobs as a table for people."""
    table = Table(title="Jobs")
    for heading in ("id", "name", "tenant", "ring", "match", "k", "paths", "lease", "switches"):
        table.add_column(heading, overflow="fold")
    for job in jobs:
        view = job_dict(job)
        params = view["parameters"]
        table.add_row(
            str(view["id"]),
            view["name"],
            view["tenant"] or "-",
            "; ".join(" ".join(ring) for ring in view["rings"])
            or f"{len(view['queue_pairs'])} queue pairs",
            view["match"],
            f"{params['k']:.4g}" + ("" if params["enabled"] else " (not marking)"),
            view["paths_choice"],
            _lease_text(view),
            _programming_text(view),
        )
    return table


def job_notes(jobs: Iterable[jobs_pb2.Job]) -> list[Text]:
    """Return why jobs have no rules, or not everywhere, for people."""
    notes = []
    for job in jobs:
        name = f"job {job.spec.name}"
        if job.problem:
            notes.append(_note(name, job.problem))
        if job.moving:
            notes.append(_note(f"{name} is moving", job.moving))
        for item in job.programming:
            if item.cannot:
                notes.append(_note(f"{name} is not followed by {item.switch}", item.detail))
    return notes


def _programming_text(view: dict[str, Any]) -> str:
    if view["problem"]:
        return "[red]has no rules[/]"
    unable = [item["switch"] for item in view["programming"] if item["cannot"]]
    text = _phases_text([item for item in view["programming"] if not item["cannot"]])
    return f"{text}; [red]not on {', '.join(unable)}[/]" if unable else text


def _phases_text(items: list[dict[str, Any]]) -> str:
    late = [item for item in items if item["phase"] != "in sync"]
    if not late:
        return f"[green]{len(items)} in sync[/]"
    names = ", ".join(f"{item['switch']} {_phase_markup(item['phase'])}" for item in late)
    return f"{len(items) - len(late)} of {len(items)} in sync; {names}"


def parameter_table(job: jobs_pb2.Job) -> Table:
    """Return one job's parameters as a table for people."""
    view = job_dict(job)
    table = Table(title=f"Job {view['id']} {view['name']}", show_header=False)
    table.add_row("generation", str(view["generation"]))
    table.add_row("tenant", view["tenant"] or "-")
    if view["owner"]:
        table.add_row("registered by", view["owner"])
    table.add_row("lease", _lease_text(view))
    for ring, channels, rail in zip(view["rings"], view["channels"], view["rails"], strict=True):
        which = f"ring, rail {rail}" if rail else "ring"
        many = f" ({channels} channels)" if channels > 1 else ""
        table.add_row(which, " -> ".join([*ring, ring[0]]) + many)
    if view["queue_pairs"]:
        table.add_row(
            "queue pairs",
            " ".join(f"{qp['src']}:{qp['dst']}:{qp['dest_qp']}" for qp in view["queue_pairs"]),
        )
    tag = view["tag"]
    table.add_row("match", view["match"] + (f" {tag['carrier']}={tag['value']}" if tag else ""))
    if view["uec_job_ids"]:
        table.add_row("UEC JobIDs", " ".join(f"{value:#x}" for value in view["uec_job_ids"]))
    table.add_row("profile", view["profile"])
    for key, value in view["parameters"].items():
        table.add_row(key, "off" if value is None else f"{value:.4g}" if key == "k" else str(value))
    table.add_row("marking", Text(marking_line(job).plain.removeprefix("marking ")))
    table.add_row("followed by", "ToR switches" if view["followers"] == "tor" else "all switches")
    table.add_row("paths", view["paths_choice"])
    table.add_row("switches", _programming_text(view))
    return table


def path_table(job: jobs_pb2.Job) -> list[RenderableType]:
    """Return the planned paths of a job as a table for people; nothing without any."""
    if not job.paths:
        return []
    table = Table(title="Planned paths: each switch with the port out")
    for heading in ("from", "to", "QP", "by"):
        table.add_column(heading, overflow="fold")
    for path in job.paths:
        hops = " ".join(f"{hop.switch}:{hop.port}" for hop in path.hops)
        table.add_row(path.src, path.dst, str(path.dest_qp or "-"), hops)
    return [table]


def state_table(state: jobs_pb2.StateResponse) -> Table:
    """Return the state blocks of a job as a table for people."""
    table = Table(title="State, read through the data plane")
    table.add_column("switch", overflow="fold")
    for heading in ("ports", "block", "step_min", "psn_rec", "alpha", "ahead"):
        table.add_column(heading, justify="right")
    table.add_column("why", overflow="fold")
    for switch in state_dict(state):
        if switch["error"]:
            table.add_row(switch["switch"], *["-"] * 6, "[red]error[/]")
        for block in switch["blocks"]:
            ports = " ".join(str(port) for port in block["egress_ports"])
            cells, why = _block_cells(block, state.job.generation)
            table.add_row(switch["switch"], ports, str(block["block"]), *cells, why)
    return table


def _block_cells(block: dict[str, Any], generation: int) -> tuple[list[str], str]:
    if block["error"]:
        return ["-"] * 4, "[red]error[/]"
    if block["generation"] != generation:
        return ["-"] * 4, "[dim]no packet yet[/]"
    return [
        str(block["step_min"]),
        str(block["psn_rec"]),
        str(block["alpha"]),
        f"{block['cnt_op']}/{block['cnt_total']}",
    ], ""


def state_notes(state: jobs_pb2.StateResponse) -> list[Text]:
    """Return why switches or blocks could not be read, for people."""
    notes = []
    for switch in state.switches:
        if switch.error:
            notes.append(_note(switch.switch, switch.error))
        notes += [
            _note(f"{switch.switch} block {block.block}", block.error)
            for block in switch.blocks
            if block.error
        ]
    return notes


def counter_table(state: jobs_pb2.StateResponse) -> Table:
    """Return the packet counters of a job as a table for people."""
    table = Table(title="Packets")
    table.add_column("switch", overflow="fold")
    for heading in ("data", "marks", "RED marks", "corrections", "advances"):
        table.add_column(heading, justify="right")
    for switch in state_dict(state):
        counters = switch["counters"] or {}
        keys = ("data", "marks", "red_marks", "corrections", "advances")
        table.add_row(switch["switch"], *(str(counters.get(key, "-")) for key in keys))
    return table


def switch_line(switch: switches_pb2.Switch) -> str:
    """Return in one line how far a switch is."""
    view = switch_dict(switch)
    facts = [view["phase"], f"{view['desired_entries']} entries"]
    if view["pending"]:
        facts.append(f"{view['pending']} to be written")
    if view["drained"]:
        facts.append("drained")
    if view["refused_count"]:
        facts.append(f"{view['refused_count']} refused")
    detail = f": {view['detail']}" if view["detail"] else ""
    return f"{view['name']} {', '.join(facts)}{detail}"


_EVENT = "JOB_EVENT_KIND_"


def event_dict(event: jobs_pb2.JobEvent) -> dict[str, Any]:
    """Return what happened to a job as JSON shows it."""
    return {
        "kind": _enum(jobs_pb2.JobEventKind.Name(event.kind), _EVENT),
        "job": job_dict(event.job) if event.HasField("job") else None,
        "state": state_dict(event.state) if event.HasField("state") else None,
    }


def event_lines(event: jobs_pb2.JobEvent) -> list[str]:
    """Return what happened to a job, for people; one line, or one per switch for its state."""
    kind = _enum(jobs_pb2.JobEventKind.Name(event.kind), _EVENT)
    if kind == "state":
        # An event may leave the job to its state.
        job = event.job if event.HasField("job") else event.state.job
        return [_state_line(job, switch) for switch in event.state.switches]
    if not event.HasField("job"):
        return []
    job = event.job
    items = [item for item in job.programming if not item.cannot]
    in_sync = sum(item.phase == switches_pb2.SWITCH_PHASE_IN_SYNC for item in items)
    facts = [f"{in_sync} of {len(items)} in sync"]
    if job.lease_s:
        facts.append(f"lease {seconds_text(job.lease_remaining_ms / 1000)}")
    facts += [text for text in (job.moving and f"moving: {job.moving}", job.problem) if text]
    return [f"{kind} {job.spec.name} ({job.id}): {', '.join(facts)}"]


def _state_line(job: jobs_pb2.Job, switch: jobs_pb2.SwitchJobState) -> str:
    head = f"state {job.spec.name} ({job.id}) {switch.switch}:"
    if switch.error:
        return f"{head} {switch.error}"
    live = [block for block in switch.blocks if block.generation == job.generation]
    parts = [
        f"block {block.block} step_min {block.step_min} psn_rec {block.psn_rec} alpha {block.alpha}"
        for block in live
    ] or ["no packet yet"]
    counters = _counters(switch)
    if counters is not None:
        parts.append(" ".join(f"{name} {value}" for name, value in counters.items()))
    return f"{head} {'; '.join(parts)}"
