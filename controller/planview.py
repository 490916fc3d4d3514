"""A plan as people see it: what it gains, bars per link, a leaf-spine matrix, a drawing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ringstep.controller.render import path_dict
from ringstep.controller.v1 import jobs_pb2
from ringstep.fabric.units import format_rate

_BAR = 24
_MOST_LINKS = 32
_MOST_COLUMNS = 16
_PLAN, _ECMP, _BOUND = "#1f77b4", "#c7c7c7", "#d62728"


class PlotError(Exception):
    """A plan that cannot be drawn, and what would help."""


def plan_dict(plan: jobs_pb2.PlanResponse) -> dict[str, Any]:
    """Return a plan as JSON shows it."""
    return {
        "inter_rack_edges": plan.inter_rack_edges,
        "intra_rack_edges": plan.intra_rack_edges,
        "max_load": plan.max_load,
        "bound": plan.bound,
        "ecmp_max_load": plan.ecmp_max_load,
        "gain": plan.gain,
        "moved_jobs": list(plan.moved_jobs),
        "reason": plan.reason,
        "paths": [path_dict(path) for path in plan.paths],
        "links": [
            {
                "src": link.src,
                "dst": link.dst,
                "rate_bps": link.rate_bps,
                "edges_before": link.edges_before,
                "edges_after": link.edges_after,
                "edges_ecmp": link.edges_ecmp,
                "load_after": link.load_after,
                "load_ecmp": link.load_ecmp,
            }
            for link in plan.links
        ],
    }


def plan_view(plan: jobs_pb2.PlanResponse, name: str) -> list[RenderableType]:
    """Return what a terminal shows of a plan."""
    shown: list[RenderableType] = [*_summary(plan, name)]
    if plan.links:
        shown.append(_bars(plan))
    matrix = _matrix(plan)
    if matrix is not None:
        shown.append(matrix)
    return shown


def _summary(plan: jobs_pb2.PlanResponse, name: str) -> list[Text]:
    lines = [
        f"job {name}: {plan.inter_rack_edges} edges between racks, {plan.intra_rack_edges} within"
    ]
    if plan.reason:
        lines.append(f"no plan: {plan.reason}")
    elif not plan.inter_rack_edges:
        lines.append("no edge leaves its rack: there is no path to choose")
    else:
        best = "the least that any plan can reach" if _optimal(plan) else f"bound {plan.bound:.4g}"
        lines.append(
            f"fullest link: {plan.max_load:.4g} ({best}); under ECMP {plan.ecmp_max_load:.4g} in "
            f"the mean: the plan's is {plan.gain:.3g} times emptier"
        )
    if plan.moved_jobs:
        lines.append(f"jobs that would move: {', '.join(plan.moved_jobs)}")
    return [Text(line) for line in lines]


def _optimal(plan: jobs_pb2.PlanResponse) -> bool:
    return plan.max_load <= plan.bound * (1 + 1e-9)


def busy_links(plan: jobs_pb2.PlanResponse) -> list[jobs_pb2.PlanLink]:
    """Return links that carry something before, after or under ECMP, the fullest first."""
    links = [
        link for link in plan.links if link.edges_before or link.edges_after or link.edges_ecmp
    ]
    return sorted(
        links, key=lambda link: (-max(link.load_after, link.load_ecmp), link.src, link.dst)
    )


def _bars(plan: jobs_pb2.PlanResponse) -> Table:
    links = busy_links(plan)
    most = max((max(link.load_after, link.load_ecmp) for link in links), default=0.0) or 1.0
    rates = len({link.rate_bps for link in plan.links}) > 1
    table = Table(title="Load per link: █ planned, │ ECMP", box=None, pad_edge=False)
    table.add_column("link", no_wrap=True)
    if rates:
        table.add_column("rate", justify="right")
    for heading in ("before", "after", "ECMP"):
        table.add_column(heading, justify="right")
    table.add_column("load", no_wrap=True)
    for link in links[:_MOST_LINKS]:
        cells = [f"{link.src} > {link.dst}"]
        if rates:
            cells.append(format_rate(link.rate_bps))
        cells += [str(link.edges_before), str(link.edges_after), f"{link.edges_ecmp:.3g}"]
        table.add_row(*cells, _bar(link.load_after / most, link.load_ecmp / most))
    if len(links) > _MOST_LINKS:
        table.add_row(f"... {len(links) - _MOST_LINKS} more: --json")
    return table


def _bar(plan: float, ecmp: float) -> Text:
    """Return a bar for shares of the fullest link, with ECMP's as a mark on its scale."""
    cells = ["█" if index < round(plan * _BAR) else " " for index in range(_BAR + 1)]
    cells[round(ecmp * _BAR)] = "│"
    return Text("".join(cells).rstrip(), style="cyan")


def _sides(plan: jobs_pb2.PlanResponse) -> tuple[list[str], list[str]] | None:
    """Return leaves and spines, where links run between the two only."""
    near: dict[str, set[str]] = {}
    for link in plan.links:
        near.setdefault(link.src, set()).add(link.dst)
        near.setdefault(link.dst, set()).add(link.src)
    ends = {path.hops[at].switch for path in plan.paths if path.hops for at in (0, -1)}
    side: dict[str, bool] = {}
    for start in sorted(near, key=lambda name: (name not in ends, name)):
        if start in side:
            continue
        side[start] = True
        todo = [start]
        while todo:
            name = todo.pop()
            for other in near[name]:
                if other not in side:
                    side[other] = not side[name]
                    todo.append(other)
                elif side[other] == side[name]:
                    return None
    leaves = sorted(name for name, leaf in side.items() if leaf)
    spines = sorted(name for name, leaf in side.items() if not leaf)
    if not ends and len(leaves) < len(spines):
        # Nothing tells which is which; fabrics have more leaves than spines.
        leaves, spines = spines, leaves
    return leaves, spines


def _matrix(plan: jobs_pb2.PlanResponse) -> Table | None:
    sides = _sides(plan) if plan.links else None
    if sides is None or not sides[1] or len(sides[1]) > _MOST_COLUMNS:
        return None
    leaves, spines = sides
    edges: dict[tuple[str, str], int] = {}
    for link in plan.links:
        # Several links between two switches are one cell.
        edges[link.src, link.dst] = edges.get((link.src, link.dst), 0) + link.edges_after
    most = max(edges.values(), default=0)
    table = Table(title="Edges after, up/down", box=None, pad_edge=False)
    table.add_column("")
    for spine in spines:
        table.add_column(spine, justify="right")
    for leaf in leaves:
        cells = []
        for spine in spines:
            both = [edges.get((leaf, spine)), edges.get((spine, leaf))]
            if both == [None, None]:
                cells.append(Text("-", style="dim"))
                continue
            text = "/".join(str(count or 0) for count in both)
            cells.append(Text(text, style="bold" if most and most in both else ""))
        table.add_row(leaf, *cells)
    return table


def plot_plan(plan: jobs_pb2.PlanResponse, name: str, path: Path) -> None:
    """Draw the load per link, under the plan and under ECMP, into a file by its ending.

    Raises:
        PlotError: matplotlib is not installed, nothing to draw, or the file cannot be written.
    """
    links = busy_links(plan)[:_MOST_LINKS]
    if not links:
        raise PlotError(f"--plot: job {name} crosses no link between switches; nothing to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError("--plot needs matplotlib: pip install 'ringstep[report]'") from None
    figure = Figure(figsize=(8, 1.4 + 0.3 * len(links)), layout="constrained")
    axes = figure.add_subplot()
    rows: Sequence[int] = range(len(links))
    axes.barh(
        [row - 0.2 for row in rows],
        [link.load_after for link in links],
        height=0.4,
        color=_PLAN,
        label="planned",
    )
    axes.barh(
        [row + 0.2 for row in rows],
        [link.load_ecmp for link in links],
        height=0.4,
        color=_ECMP,
        label="ECMP",
    )
    if plan.bound:
        axes.axvline(plan.bound, color=_BOUND, linestyle="--", label="least of any plan")
    axes.set_yticks(list(rows), [f"{link.src} > {link.dst}" for link in links])
    axes.invert_yaxis()
    axes.set_xlabel("load (1 = heaviest edge on the fastest link)")
    axes.set_title(f"{name}: fullest link {plan.max_load:.4g}, ECMP {plan.ecmp_max_load:.4g}")
    axes.legend(loc="lower right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise PlotError(
            f"--plot {path}: cannot be written ({error.strerror or os.strerror(error.errno or 0)})"
        ) from None
