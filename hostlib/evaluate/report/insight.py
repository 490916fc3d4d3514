"""Sections on the networks: training (Figures 8 and 9) and what decisions hang on (Figure 18)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringstep.hostlib.evaluate.report.chart import Bars, Line, bars, lines
from ringstep.hostlib.evaluate.report.doc import (
    Grid,
    Section,
    Text,
    charts,
    comparison,
    grids,
    of,
    panels,
)
from ringstep.hostlib.evaluate.report.frame import Frame, Style, Value
from ringstep.hostlib.evaluate.report.paper import NUMBERS
from ringstep.hostlib.evaluate.report.read import Measured
from ringstep.hostlib.evaluate.report.shape import Metrics
from ringstep.hostlib.evaluate.report.words import SERIES, percent, plain, whole_percent


def detector_training(measured: Sequence[Measured]) -> Section:
    """Return the section on the detector's training (Figure 8)."""
    section = Section("training-detector", "Training of the detector", "Fig. 8, 4.3.1")
    section.blocks = [
        Text("By call, on traces that were held out. The paper counts episodes."),
        comparison("The detector on held-out traces", measured, of("training/detector")),
        *panels(measured, "training", lambda e, s: _curves(
            _metrics(e, "detector"), f"Loss of the detector by epoch{s}",
            (("training", 0), ("held out", 1)), "binary cross-entropy")),
        *grids(measured, "training", lambda e, s: _rows(
            _metrics(e, "detector"), f"The detector's curve{s}",
            ("training loss", "held-out loss"))),
    ]  # fmt: skip
    return section


def selector_training(measured: Sequence[Measured]) -> Section:
    """Return the section on the selector's training (Figure 9)."""
    section = Section("training-selector", "Training of the selector", "Fig. 9, 4.3.2")
    section.blocks = [
        Text("Regret: how much longer the chosen configuration takes than the best one, on "
             "held-out states. The paper shows 20 training runs, in plots without numbers."),
        comparison("The selector on held-out states", measured, of("training/selector")),
        *panels(measured, "training", lambda e, s: _curves(
            _metrics(e, "selector"), f"Loss of the selector by epoch{s}",
            (("training", 0),), "loss")),
        *charts(measured, "training", lambda e, s: _curves(
            _metrics(e, "selector"), f"Regret of the selector by epoch{s}",
            (("held out", 1),), "mean time beyond the best")),
        *grids(measured, "training", lambda e, s: _rows(
            _metrics(e, "selector"), f"The selector's curve{s}",
            ("training loss", "held-out regret"))),
    ]  # fmt: skip
    return section


def _metrics(e: Measured, network: str) -> Metrics:
    training = e.data["training"]
    card = training.get("detector") if network == "detector" else training.get("selector")
    return {} if card is None else card["metrics"]


def _curves(metrics: Metrics, title: str, columns: Sequence[tuple[str, int]], y: str) -> str | None:
    curve = metrics.get("curve", [])
    if not curve:
        return None
    epochs = [float(i + 1) for i in range(len(curve))]
    series = [
        Line(name, SERIES[column], epochs, [row[column] for row in curve])
        for name, column in columns
    ]
    frame = Frame(title, f"Lines of {y} by epoch; the numbers are in the table.", "epoch", y,
                  show=plain)  # fmt: skip
    return lines(frame, series)


def _rows(metrics: Metrics, caption: str, names: Sequence[str]) -> Grid | None:
    curve = metrics.get("curve", [])
    if not curve:
        return None
    rows = [
        [str(i + 1), *("" if v is None else plain(v) for v in row[:2])]
        for i, row in enumerate(curve)
    ]  # fmt: skip
    return Grid(caption, ["epoch", *names], rows, folded=True)


def attribution(measured: Sequence[Measured]) -> Section:
    """Return the section on what the selector's decisions hang on (Figure 18)."""
    section = Section("attribution", "What decisions hang on", "Fig. 18, 5.4")
    section.blocks = [
        Text("A group of inputs is permuted among realistic states: how many decisions change, and "
             "how far values move as a share of their spread. Gradient: norm over a group of "
             "inputs, over the square root of its size. The history is the detector's state, of "
             "128 inputs."),
        comparison("Beside the paper", measured, of("attribution")),
        *panels(measured, "attribution", _behaviour),
        *charts(measured, "attribution", _gradients),
        *grids(measured, "attribution", _importances),
    ]  # fmt: skip
    return section


def _behaviour(e: Measured, suffix: str) -> str:
    groups = e.data["attribution"]
    frame = Frame(
        f"Permuting a group of inputs{suffix}",
        "Bars by group of inputs: share of decisions that change, and displacement of the values; "
        "diamonds: decisions changed in the paper. The numbers are in the table.",
        "group of inputs", "share", show=whole_percent,
    )  # fmt: skip
    return bars(frame, list(groups), [
        Bars("decisions changed", Style(0), [Value(g["flipped"]) for g in groups.values()]),
        Bars("values displaced", Style(1, hollow=True),
             [Value(g["displaced"]) for g in groups.values()]),
    ], _marks("flipped", groups))  # fmt: skip


def _marks(what: str, groups: Iterable[str]) -> list[float | None]:
    return [p.value if (p := NUMBERS.get(f"attribution/{what}/{n}")) else None for n in groups]


def _gradients(e: Measured, suffix: str) -> str:
    groups = e.data["attribution"]
    frame = Frame(
        f"Gradient of the values by one input{suffix}",
        "Bars by group of inputs: gradient per input; diamonds: the paper. The numbers are in the "
        "table.",
        "group of inputs", "gradient per input", show=plain,
    )  # fmt: skip
    return bars(
        frame, list(groups),
        [Bars("gradient", Style(0), [Value(g["gradient"]) for g in groups.values()])],
        _marks("gradient", groups),
    )  # fmt: skip


def _importances(e: Measured, suffix: str) -> Grid:
    rows = [
        [n, percent(g["flipped"]), percent(g["displaced"]), plain(g["gradient"])]
        for n, g in e.data["attribution"].items()
    ]
    head = ["group", "decisions changed %", "values displaced %", "gradient per input"]
    return Grid(f"By group of inputs{suffix}", head, rows)
