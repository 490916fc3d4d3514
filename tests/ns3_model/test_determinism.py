"""The same seed gives the same bytes; another seed gives other paths and other jitter."""

import os
import subprocess
import sys

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, prepare, run
from ringstep_ns3.results import TIMING
from ringstep_ns3.streams import Stream

RINGSTEP_SIM = [sys.executable, "-m", "ringstep_ns3"]
FROZEN = [897, 3, 4, 2, 0, 1]
BUSY = """
[[job]]
name = "other"
ranks = 4
copies = 3
chunk = "16KiB"
placement = "random"
arrivals = "poisson"
interval = "50us"
jitter = "5us"
[[background]]
kind = "poisson"
load = 0.2
stop = "500us"
[switch]
marking = "marker"
lb = "spray"
[output]
alpha = "50us"
sample = "50us"
"""


def files(text: str, seed: int) -> dict[str, bytes]:
    found = run(Scenario.parse(text), seed).files()
    found.pop(TIMING)
    return found


def test_a_seed_gives_the_same_bytes_again(ring: str) -> None:
    assert files(ring + BUSY, 4) == files(ring + BUSY, 4)


def test_a_seed_gives_the_same_bytes_in_another_process(ring: str, tmp_path) -> None:
    (tmp_path / "s.toml").write_text(ring + BUSY)
    for name, hash_seed in (("a", "1"), ("b", "2")):
        subprocess.run(
            [*RINGSTEP_SIM, "run", "s.toml", "--seed", "4", "-q", "--out", name],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
    first, second = tmp_path / "a", tmp_path / "b"
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    for name in names:
        if name != TIMING:
            assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_another_seed_gives_another_run(ring: str) -> None:
    first, second = files(ring + BUSY, 4), files(ring + BUSY, 5)
    for name in ("flows.parquet", "ranks.parquet", "jobs.parquet", "links.parquet"):
        assert first[name] != second[name], name


def test_another_seed_gives_other_ecmp_paths(ring: str) -> None:
    loads = {
        tuple(run(Scenario.parse(ring), seed).links["data_packets"].to_pylist())
        for seed in (1, 2, 3)
    }
    assert len(loads) == 3


def test_the_ns3_hash_takes_no_seed(ring: str) -> None:
    text = ring + '[switch]\necmp_hash = "ns3_compat"\n[switch.red]\nenabled = false\n'
    loads = {
        tuple(run(Scenario.parse(text), seed).links["data_packets"].to_pylist()) for seed in (1, 2)
    }
    assert len(loads) == 1


def test_a_stream_belongs_to_its_purpose() -> None:
    draws = [Stream(1, purpose).uniform() for purpose in ("a", "b")]
    assert draws[0] != draws[1]
    assert Stream(1, "a").uniform() == draws[0]
    assert Stream(2, "a").uniform() != draws[0]
    # Frozen: numpy promises the bits of PCG64, and everything else is computed here.
    assert [Stream(1, "test").below(1000), *Stream(1, "test").permutation(5)] == FROZEN


def test_adding_a_job_does_not_move_the_others(ring: str) -> None:
    text = ring + BUSY
    more = text + '[[job]]\nname = "late"\nranks = 2\nchunk = "1KiB"\nstart = "1s"\n'
    before, after = prepare(Scenario.parse(text)).jobs, prepare(Scenario.parse(more)).jobs
    assert before == after[: len(before)]
