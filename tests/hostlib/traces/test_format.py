from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringstep.hostlib.traces.format import COLUMNS, TraceError, Traces, load, save
from ringstep.hostlib.traces.generate import FluidOracle, generate


@pytest.fixture
def traces() -> Traces:
    return generate(3, 4, 32)


def broken(traces: Traces, name: str, at: int, value: Any) -> Traces:
    columns = {n: c.copy() for n, c in traces.columns.items()}
    columns[name][at] = value
    return Traces(columns, traces.header)


def test_files_come_back_as_they_were(tmp_path: Path, traces: Traces) -> None:
    save(tmp_path / "t.npz", traces)
    found = load(tmp_path / "t.npz")
    for name in COLUMNS:
        np.testing.assert_array_equal(found.columns[name], traces.columns[name])
    assert found.header["seed"] == 3
    assert found.digest == traces.digest
    assert [len(t["call"]) for t in found.each()] == [32] * 4


def test_the_same_seed_gives_the_same_traces(traces: Traces) -> None:
    assert generate(3, 4, 32).digest == traces.digest
    assert generate(4, 4, 32).digest != traces.digest


def test_a_longer_run_begins_with_the_shorter_one(traces: Traces) -> None:
    longer = generate(3, 6, 32)
    for name in COLUMNS:
        np.testing.assert_array_equal(longer.columns[name][:128], traces.columns[name])


@pytest.mark.parametrize(
    ("name", "at", "value", "why"),
    [
        ("latency_us", 5, np.nan, "call 5: latency_us is not a number"),
        ("latency_us", 5, np.inf, "not a number"),
        ("latency_us", 40, -1.0, "trace 1 call 8: latency_us is not above 0"),
        ("latency_us", 0, 0.0, "not above 0"),
        ("latency_us", 0, 1e12, "a clock stepped"),
        ("time_ns", 10, 5, "call 10: time_ns is before"),
        ("call", 10, 12, "a gap"),
        ("call", 32, 1, "starts with call 0"),
        ("trace", 127, 0, "not in order"),
        ("collective", 3, 9, "none of NCCL's five"),
        ("algo", 3, 9, "algo"),
        ("proto", 3, -1, "proto"),
        ("channels", 3, 0, "channels"),
        ("label", 3, 7, "label"),
        ("ranks", 3, 1, "ranks below 2"),
        ("nodes", 3, 1000, "more nodes than ranks"),
        ("bytes", 3, 0, "bytes"),
        ("clean_us", 3, -1.0, "clean_us"),
    ],
)
def test_what_no_measurement_can_be_is_refused(
    tmp_path: Path, traces: Traces, name: str, at: int, value: Any, why: str
) -> None:
    with pytest.raises(TraceError, match=why):
        save(tmp_path / "t.npz", broken(traces, name, at, value))
    assert not list(tmp_path.iterdir())


def test_missing_unknown_and_wrong_columns_are_refused(tmp_path: Path, traces: Traces) -> None:
    columns = dict(traces.columns)
    del columns["bytes"]
    with pytest.raises(TraceError, match="'bytes' is missing"):
        save(tmp_path / "t.npz", Traces(columns, {}))
    with pytest.raises(TraceError, match="not known"):
        save(tmp_path / "t.npz", Traces({**traces.columns, "more": columns["call"]}, {}))
    columns["bytes"] = traces.columns["bytes"].astype(np.int32)
    with pytest.raises(TraceError, match="must be int64"):
        save(tmp_path / "t.npz", Traces(columns, {}))


@pytest.mark.parametrize("cut", [0, 10, 1000, -20])
def test_damaged_files_are_refused(tmp_path: Path, traces: Traces, cut: int) -> None:
    path = tmp_path / "t.npz"
    save(path, traces)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(TraceError, match=r"t\.npz: not a trace file"):
        load(path)


def test_edited_files_are_found(tmp_path: Path, traces: Traces) -> None:
    path = tmp_path / "t.npz"
    save(path, traces)
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    columns["latency_us"] = columns["latency_us"] * 2
    np.savez(path, **columns)
    with pytest.raises(TraceError, match="not those that were written"):
        load(path)


def test_missing_files_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(TraceError, match="format"):
        load(tmp_path / "other.npz")


def test_the_oracle_knows_what_would_have_run(traces: Traces) -> None:
    oracle = FluidOracle(generate(3, 4, 32, reconfigured=0.0))
    times = oracle.latencies_us(2, 9)
    assert times.shape == (96,)
    known = times[~np.isnan(times)]
    assert len(known) in (48, 96)
    assert (known > 0).all()
    assert known.min() <= traces.columns["best_us"][64] * 40


def test_only_generated_traces_have_an_oracle(traces: Traces) -> None:
    with pytest.raises(ValueError, match="only the fluid model"):
        FluidOracle(Traces(traces.columns, {"source": "engine"}))
