"""What was measured for operators: what planned paths and marking change, place by place.

The table is ``guidance.json`` beside this module. ``bench/guidance.py`` makes it from the runs of a
sweep; nothing in it is typed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any, Final

from ringstep.protocol.marker import MarkerParams, k_fixed

FILE: Final = "guidance.json"
BASELINE: Final = "baseline"
"""Variant that changes are relative to: DCQCN, RED and ECMP alone."""
GATED: Final = "gated"
PLANNED: Final = "planned"
OURS: Final = "ours"
"""``gated``: ECMP and the default marker; ``planned``: planned paths alone; ``ours``: both."""


class TableError(ValueError):
    """A table of measurements that cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of the CCT in percent, negative is shorter: mean and 95 % interval over seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting of paths and marker.

    ``params`` is None without marking. Of it, ``k``, ``tau``, ``t_win``, ``n_sample``, ``n_warmup``
    and ``q_gate`` say what was measured; mode and generation do not belong to a variant.
    """

    name: str
    planned: bool
    params: MarkerParams | None


@dataclass(frozen=True, slots=True)
class Site:
    """A fabric and a collective on it.

    ``rtt_ns`` is that of an empty fabric between racks; ``step_bytes`` what a rank sends per ring
    step; ``oversubscription`` the rate of a ToR's hosts over that of its uplinks; ``ring`` the
    hosts of one ring; ``tenants`` the load of other traffic, as a share of each host's line rate;
    ``red_k_min`` RED's lower threshold in packets.
    """

    name: str
    rate_bps: int
    rtt_ns: int
    step_bytes: int
    mtu: int
    oversubscription: float
    ring: int
    tenants: float
    red_k_min: int

    @property
    def step_ns(self) -> float:
        """Time of a step's bytes at line rate."""
        return self.step_bytes * 8e9 / self.rate_bps


@dataclass(frozen=True, slots=True)
class Held:
    """The variant that did best, judged fairly.

    For each seed the best one on the *other* seeds is taken, so the changes (against baseline, and
    against ``ours``) do not profit from having been chosen. ``harm`` is the upper end of the change
    that the marking alone makes, paths being equal.
    """

    variant: str
    change: Change
    over_ours: Change
    harm: float


@dataclass(frozen=True)
class Cell:
    """What was measured at a site for one sender model and DCQCN preset.

    ``changes`` are against baseline, by variant; ``harm`` holds for each variant that marks the
    upper end of what its marking alone changes, paths being equal.
    """

    site: Site
    sender: str
    preset: str
    baseline_ms: float
    changes: Mapping[str, Change]
    harm: Mapping[str, float]
    best: Held


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What a variant changes against ``ours``, over all cells of a sender model and preset."""

    sender: str
    preset: str
    variant: str
    change: Change


@dataclass(frozen=True)
class GuidanceTable:
    """All cells; ``made`` tells the command, versions, seeds and number of runs."""

    made: Mapping[str, Any]
    variants: Mapping[str, Variant]
    cells: tuple[Cell, ...]
    sensitivities: tuple[Sensitivity, ...]

    @property
    def senders(self) -> tuple[str, ...]:
        """Sender models that were measured."""
        return tuple(dict.fromkeys(cell.sender for cell in self.cells))

    @property
    def presets(self) -> tuple[str, ...]:
        """DCQCN presets that were measured."""
        return tuple(dict.fromkeys(cell.preset for cell in self.cells))


@cache
def load_table() -> GuidanceTable:
    """Return the table that comes with this package."""
    text = (files("ringstep.fabric") / FILE).read_text(encoding="utf-8")
    return parse_table(text, FILE)


def parse_table(text: str, source: str = FILE) -> GuidanceTable:
    """Return the table of a JSON text; ``source`` names it in messages.

    Raises:
        TableError: not JSON, or something is missing or does not fit.
    """
    try:
        data = json.loads(text)
        variants = {each["name"]: _variant(each) for each in data["variants"]}
        sites = {each["name"]: Site(**each) for each in data["sites"]}
        cells = tuple(_cell(row, sites, tuple(variants)) for row in data["cells"])
        sensitivities = tuple(
            Sensitivity(row["sender"], row["preset"], name, Change(*change))
            for row in data["sensitivities"]
            for name, change in row["changes"].items()
        )
    except (ValueError, KeyError, TypeError) as error:
        what = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise TableError(
            f"{source}: {what}; make it again with: python bench/guidance.py RESULTS"
        ) from None
    return GuidanceTable(data["made"], variants, cells, sensitivities)


def _variant(data: Mapping[str, Any]) -> Variant:
    marker = data["marker"]
    if marker is None:
        return Variant(data["name"], data["planned"], None)
    tau = Fraction(marker["tau"])
    params = MarkerParams(
        k=k_fixed(marker["k"]),
        tau_num=tau.numerator,
        tau_den=tau.denominator,
        t_win=marker["t_win_us"],
        n_sample=marker["n_sample"],
        n_warmup=marker["n_warmup"],
        alpha_max=marker["alpha_max"],
        q_gate=marker["q_gate"],
    )
    return Variant(data["name"], data["planned"], params)


def _cell(row: Mapping[str, Any], sites: Mapping[str, Site], names: Sequence[str]) -> Cell:
    variant, change, over_ours, best_harm = row["best"]
    changes = zip(names, row["changes"], strict=True)
    harm = zip(names, row["harm"], strict=True)
    return Cell(
        sites[row["site"]],
        row["sender"],
        row["preset"],
        row["baseline_ms"],
        {name: Change(*change) for name, change in changes if change is not None},
        {name: value for name, value in harm if value is not None},
        Held(variant, Change(*change), Change(*over_ours), best_harm),
    )
