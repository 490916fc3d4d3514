"""The reaction point of the core against the golden rate traces, and its use in a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringstep_ns3 import _core as core

FILES = sorted((Path(__file__).resolve().parents[2] / "vectors" / "dcqcn").glob("*.json"))


def times(entries: list[Any]) -> Iterator[tuple[float, int]]:
    for entry in entries:
        if isinstance(entry, dict):
            count = int((entry["last_us"] - entry["first_us"]) / entry["every_us"] + 1e-6) + 1
            for index in range(count):
                yield round(entry["first_us"] + index * entry["every_us"], 3), entry.get("bytes", 0)
        else:
            yield entry, 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_trace(path: Path) -> None:
    vector = json.loads(path.read_text())
    line = vector["link_rate_mbps"] * 1e6
    params = core.dcqcn_preset(vector["preset"], line)
    for name, value in vector["overrides"].items():
        setattr(params, name, value)
    rp = core.ReactionPoint(params, line)
    script = [(at, 0, size) for at, size in times(vector["sent"])]
    script += [(at, 1, 0) for at, _ in times(vector["cnps_us"])]
    script += [(row["t_us"], 2, index) for index, row in enumerate(vector["expect"])]
    for at, what, value in sorted(script):
        if what == 0:
            rp.on_sent(value, at)
        elif what == 1:
            rp.on_cnp(at)
        else:
            row = vector["expect"][value]
            rp.advance(at)
            assert rp.rate_bps / 1e6 == pytest.approx(row["rate_mbps"], rel=1e-6), at
            assert rp.target_bps / 1e6 == pytest.approx(row["target_mbps"], rel=1e-6), at
            assert rp.alpha == pytest.approx(row["alpha"], rel=1e-6, abs=1e-8), at


def test_the_traces_are_there() -> None:
    assert len(FILES) >= 11


@pytest.mark.parametrize(
    ("preset", "known"),
    [
        ("hpcc_run", [(16.001, 1.0), (340.001, 5.5), (640.001, 7.75), (1540.001, 9.71875)]),
        ("hpcc_config", [(28.001, 0.1), (640, 0.1), (940.001, 5.05), (2000, 7.525)]),
    ],
)
def test_forty_microseconds_of_marks_at_10g(preset: str, known: list[tuple[float, float]]) -> None:
    rp = core.ReactionPoint(core.dcqcn_preset(preset, 10e9), 10e9)
    for index in range(49):
        at = round(index * 0.829, 3)
        rp.on_cnp(at)
        if at > known[0][0]:
            assert rp.rate_bps == known[0][1] * 1e9
    for at, gbps in known:
        if at > 40:
            assert rp.advance(at) / 1e9 == pytest.approx(gbps, rel=1e-9)


@pytest.mark.parametrize("name", core.dcqcn_preset_names())
@pytest.mark.parametrize("seed", [1, 2])
def test_calling_at_any_time_in_between_changes_nothing(name: str, seed: int) -> None:
    # Lazy evaluation: whoever asks, and however often, sees the same rates.
    draw = np.random.default_rng(seed)
    asked = core.ReactionPoint(core.dcqcn_preset(name, 10e9), 10e9)
    left = core.ReactionPoint(core.dcqcn_preset(name, 10e9), 10e9)
    at = 0.0
    for _ in range(500):
        at = round(at + float(draw.exponential(20)) + 0.001, 3)
        what = draw.integers(3)
        if what == 0:
            asked.advance(at)
            continue
        for rp in (asked, left):
            if what == 1:
                rp.on_cnp(at)
            else:
                rp.on_sent(1048, at)
    at += 1
    assert asked.advance(at) == pytest.approx(left.advance(at), rel=1e-9)
    assert asked.alpha == pytest.approx(left.alpha, rel=1e-9)


def test_a_lone_marked_flow_follows_the_rules_in_a_run(build: Any) -> None:
    # Two flows into one port: both are throttled, and no rate falls below the floor.
    fabric = build.star(3, red=[build.red()])
    sim = core.Simulation(fabric.net, build.transport("hpcc_run"))
    sim.trace_rate(1, 0)
    for src in (1, 2):
        sim.add_flow(core.FlowSpec(src=src, dst=0, bytes_=4_000_000))
    stats = sim.run()
    trace = sim.rate_trace()
    assert stats.marks_red > 0
    assert trace["rate_bps"].min() >= 1e9
    assert trace["rate_bps"].max() == 1e10
    assert (np.diff(trace["time_ns"]) >= 0).all()


@pytest.mark.parametrize("interval_us", [4.0, 50.0])
def test_cnps_as_packets_keep_their_interval(build: Any, interval_us: float) -> None:
    fabric = build.star(3, red=[build.red(low=5_000, high=20_000, p=1.0)])
    params = core.dcqcn_preset("hpcc_run", 10e9)
    params.cnp_interval_us = interval_us
    transport = build.transport(cc=core.CcConfig(preset="", dcqcn=params))
    sim = build.run(fabric, transport, flows=[(1, 0, 2_000_000), (2, 0, 2_000_000)])
    stats = sim.stats()
    assert 0 < stats.cnps <= 2 * (stats.sim_time_ns / 1000 / interval_us + 1)
    assert stats.cnps < stats.marks_red


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown DCQCN preset \"hpcc\".*hpcc_run"):
        core.dcqcn_preset("hpcc", 10e9)


def test_a_floor_above_the_line_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="min_rate_bps"):
        core.ReactionPoint(core.dcqcn_preset("hpcc_run", 10e9), 1e8)
