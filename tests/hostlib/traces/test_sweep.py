from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ringstep.hostlib.dynamic.actions import Config, Key, encode
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.fluid import CLEAN, Load
from ringstep.hostlib.traces.format import COLUMNS, TraceError, load, save
from ringstep.hostlib.traces.generate import generate
from ringstep.hostlib.traces.mixed import merged, oracle_of, split
from ringstep.hostlib.traces.recorded import generate_recorded
from ringstep.hostlib.traces.sweep import Draws, Sweep, SweepError, load_sweeps, save_sweeps

SIZE = 1 << 20
USUAL = Config(Algo.RING, Proto.SIMPLE, 2)
WIDE = Config(Algo.RING, Proto.SIMPLE, 8)


def make(scale: float = 1.0) -> Sweep:
    def calls(*medians: float) -> tuple[tuple[float, ...], ...]:
        return tuple((0.9 * m * scale, m * scale, 1.2 * m * scale) for m in medians)

    return Sweep(
        "bench", Key.of(4, 4, Collective.ALL_REDUCE, SIZE), SIZE,
        (CLEAN, Load(0.5), Load(0.8)), USUAL, calls(100, 200, 400),
        {USUAL: calls(100, 200, 400), WIDE: calls(110, 150, 200)},
    )  # fmt: skip


def test_medians_and_the_best() -> None:
    found = make()
    assert found.clean_us == 100
    assert found.best(CLEAN) == USUAL
    assert found.best(Load(0.8)) == WIDE
    assert found.latencies_us[2, encode(WIDE)] == 200
    assert np.isnan(found.latencies_us[0, 0])
    assert found.table_us(0.65)[encode(WIDE)] == pytest.approx((150 * 200) ** 0.5)
    assert found.table_us(0.95)[encode(WIDE)] == pytest.approx(200)


def test_files_come_back(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    save_sweeps(path, [make(), make(3.3333333)])
    one, other = load_sweeps(path)
    assert one == make()
    assert other.clean_us == pytest.approx(333.33, rel=1e-4)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"loads": [[0.5, 0], [0.8, 0], [0.9, 0]]}, "clean load"),
        ({"loads": [[0, 0], [0.8, 0], [0.5, 0]]}, "ascending"),
        ({"usual_us": [[1.0], [2.0]]}, "calls of 3 loads"),
        ({"usual_us": [[1.0], [2.0], [-1.0]]}, "above 0"),
        ({"usual_us": [[1.0], [2.0], [float("nan")]]}, "above 0"),
        ({"configs": []}, "no configurations"),
        ({"usual": ["ring", "smiple", 2]}, "SMIPLE"),
        ({"collective": "all_together"}, "ALL_TOGETHER"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, change: dict[str, object], why: str) -> None:
    path = tmp_path / "s.json"
    save_sweeps(path, [make()])
    data = json.loads(path.read_text())
    data["sweeps"][0].update(change)
    path.write_text(json.dumps(data))
    with pytest.raises(SweepError, match=r"sweeps\[0\]") as error:
        load_sweeps(path)
    assert why in str(error.value)
    path.write_text("{}")
    with pytest.raises(SweepError, match="format"):
        load_sweeps(path)


def test_draws_stay_within_what_was_measured() -> None:
    draws = Draws(make())
    assert draws.latency_us(WIDE, Load(0.5), 0.0) == pytest.approx(135)
    assert draws.latency_us(WIDE, Load(0.5), 1.0) == pytest.approx(180)
    assert draws.latency_us(None, CLEAN, 0.5) == pytest.approx(100)
    assert draws.latency_us(None, Load(0.0, 0.0, 2.0), 0.5) == pytest.approx(200)
    with pytest.raises(KeyError):
        draws.latency_us(Config(Algo.TREE, Proto.LL, 1), CLEAN, 0.5)


def test_traces_from_sweeps_know_their_oracle(tmp_path: Path) -> None:
    traces = generate_recorded([make(), make(2.0)], 5, 8, 40)
    again = generate_recorded([make(), make(2.0)], 5, 8, 40)
    assert traces.digest == again.digest
    save(tmp_path / "t.npz", traces)
    back = load(tmp_path / "t.npz")
    oracle = oracle_of(back)
    assert oracle is not None
    at = int(np.flatnonzero((back.columns["trace"] == 3) & (back.columns["call"] == 20))[0])
    times = oracle.latencies_us(3, 20)
    assert times is not None
    expected = make(2.0).table_us(float(back.columns["level"][at]))
    np.testing.assert_allclose(times, expected, rtol=1e-4)


def test_sources_are_merged_and_taken_apart(tmp_path: Path) -> None:
    fluid, recorded = generate(3, 4, 40), generate_recorded([make()], 5, 3, 40)
    both = merged([fluid, recorded])
    save(tmp_path / "t.npz", both)
    back = load(tmp_path / "t.npz")
    assert np.unique(back.columns["trace"]).tolist() == list(range(7))
    (_, one), (first, other) = split(back)
    assert first == 4
    for name in COLUMNS:
        np.testing.assert_array_equal(one.columns[name], fluid.columns[name])
        np.testing.assert_array_equal(other.columns[name], recorded.columns[name])
    oracle, alone = oracle_of(back), oracle_of(recorded)
    assert oracle is not None
    assert alone is not None
    np.testing.assert_array_equal(oracle.latencies_us(5, 30), alone.latencies_us(1, 30))
    assert merged([fluid]) is fluid
    with pytest.raises(TraceError, match="already"):
        merged([both, fluid])
