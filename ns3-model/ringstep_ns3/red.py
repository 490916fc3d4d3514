"""Named RED thresholds per port rate, as the simulators that the paper builds on set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringstep.fabric.units import format_rate
from ringstep.protocol.red import MARK_GAP
from ringstep_ns3.scenario import RedTable, Scenario
from ringstep_ns3.tomldoc import Findings
from ringstep_ns3.topology import Graph

_G = 1_000_000_000
_KB = 1000
_TABLES: Final[Mapping[str, Mapping[int, tuple[int, int]]]] = {
    "hpcc_config": {25: (100, 400), 50: (200, 800), 100: (400, 1600)},
    "astra": {
        25: (100, 400),
        40: (200, 800),
        50: (200, 800),
        100: (400, 1600),
        200: (600, 2400),
        400: (800, 3200),
        2400: (800, 3200),
    },
}
"""Gbit/s -> (k_min, k_max) in KB; p_max 0.2. From HPCC's mix/config.txt and astra-sim's."""


@dataclass(frozen=True, slots=True)
class RedThresholds:
    """RED of egress ports of one rate, in bytes."""

    rate_bps: int
    k_min: int
    k_max: int
    p_max: float


def red_rows(table: RedTable, graph: Graph, findings: Findings) -> tuple[RedThresholds, ...]:
    """Return thresholds for every rate at which a switch sends, by rate; empty: RED is off."""
    if not table.enabled:
        return ()
    for i, row in enumerate(table.rate):
        if row.k_min > row.k_max:
            findings.add(
                ("switch", "red", "rate", i, "k_min"),
                "is above k_max; RED marks some packets from k_min on and all above k_max",
            )
    rows: dict[int, RedThresholds] = {}
    for rate, (nominal, cable) in sorted(_rates(graph).items()):
        found = _thresholds(table, nominal)
        if found is None:
            findings.add(
                ("switch", "red"),
                f"profile {table.profile!r} has no thresholds for {format_rate(nominal)}, the rate "
                f'of {cable}; add [[switch.red.rate]] with rate = "{format_rate(nominal)}", k_min, '
                "k_max and p_max, or take another profile",
            )
            continue
        rows[rate] = RedThresholds(rate, *found)
    return tuple(rows.values())


def mark_gap_us(scenario: Scenario, findings: Findings) -> int:
    """Return how far apart marks on packets of marked jobs are, in us; 0: they are not spaced."""
    switch = scenario.switch
    if switch.mark_gap == "off":
        return 0
    if switch.mark_gap == "auto":
        ours = switch.marking == "marker" and scenario.marker.profile == "ringstep"
        return MARK_GAP if ours and switch.red.enabled else 0
    if not switch.red.enabled:
        findings.add(
            ("switch", "mark_gap"),
            "needs RED, which tells when a queue is too deep for it, and RED is off; take it out",
        )
    return switch.mark_gap // 1000


def _rates(graph: Graph) -> dict[int, tuple[int, str]]:
    """Rate at which a switch sends -> the rate its thresholds go by, and a cable that has it."""
    switches = set(graph.switches)
    rates: dict[int, tuple[int, str]] = {}
    for cable in graph.cables:
        if cable.a in switches:
            rates.setdefault(cable.rate_bps, (cable.nominal_bps, cable.name))
        if cable.b in switches:
            rates.setdefault(cable.rate_back_bps, (cable.nominal_back_bps, cable.name))
    return rates


def _thresholds(table: RedTable, rate_bps: int) -> tuple[int, int, float] | None:
    for row in table.rate:
        if row.rate == rate_bps:
            return row.k_min, row.k_max, row.p_max
    gbps = rate_bps / _G
    if table.profile == "symphony":
        if rate_bps != 10 * _G and table.scaling == "none":
            return None
        return round(50 * _KB * gbps / 10), round(100 * _KB * gbps / 10), 0.2
    if table.profile == "hpcc_run":
        return round(100 * _KB * gbps / 25), round(400 * _KB * gbps / 25), 0.2
    if table.profile == "conweave":
        return 100 * _KB, 400 * _KB, 0.2
    if table.profile == "dctcp":
        return round(30 * _KB * gbps / 10), round(30 * _KB * gbps / 10), 1.0
    limits = _TABLES.get(table.profile, {}).get(int(gbps)) if gbps == int(gbps) else None
    return None if limits is None else (limits[0] * _KB, limits[1] * _KB, 0.2)
