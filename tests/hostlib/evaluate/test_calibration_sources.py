"""Where calls come from: a running job that is waited for, and the engine."""

from __future__ import annotations

from typing import Any

import pytest

from ringstep.hostlib.dynamic.actions import Key
from ringstep.hostlib.evaluate.calibration import NotClean, Series
from ringstep.hostlib.evaluate.calibration.clean import judge
from ringstep.hostlib.evaluate.calibration.engine import on_engine
from ringstep.hostlib.evaluate.calibration.sources import SourceError, of_job, wait_for_calls
from ringstep.hostlib.evaluate.engine.environment import EngineEnvironment
from ringstep.hostlib.native.build import missing_tools
from ringstep.hostlib.nethosts import NetHostsError, missing
from ringstep.hostlib.shm_layout import Collective
from ringstep.hostlib.traces import scenarios as sc


class Job:
    """A coordinator whose job makes five large collectives a look, and few small ones."""

    def __init__(self) -> None:
        self.looks, self.now = 0, 0.0
        self.told: list[tuple[int, int]] = []

    def ask(self) -> dict[str, Any]:
        self.looks += 1
        return {
            "format": "ringstep-calls-1",
            "kinds": [self.kind(1 << 22, 5 * self.looks, 400.0), self.kind(8, self.looks, 5.0)],
        }

    def kind(self, n_bytes: int, n: int, us: float) -> dict[str, Any]:
        call = {"start_ns": 1, "us": us, "decided": False, "ran": ["ring", "ll", 2], "missing": []}
        return {
            "communicator": "c", "collective": "all_reduce", "bytes": n_bytes, "ranks": 4,
            "nodes": 2, "seen": n, "calls": [call] * n,
        }  # fmt: skip

    def wait(self, calls: int, wait_s: float) -> Any:
        def sleep(seconds: float) -> None:
            self.now += seconds

        return wait_for_calls(
            self.ask, "job", calls, wait_s, lambda *told: self.told.append(told),
            lambda: self.now, sleep,
        )  # fmt: skip


def test_a_job_is_waited_for_until_what_takes_its_time_was_seen() -> None:
    job = Job()
    found = of_job(job.wait(40, 300.0), "job", 40)
    assert job.looks == 9  # 45 calls, the cold ones left out
    assert job.told[-1] == (40, 40)
    assert [len(one.latency_us) for one in found.series] == [40]
    assert "of 8 bytes" in found.left_out[0]
    assert found.series[0].key == Key.of(4, 2, Collective.ALL_REDUCE, 1 << 22)


def test_waiting_ends_when_time_is_up() -> None:
    job = Job()
    job.wait(250, 2.0)
    assert job.looks == 5
    job = Job()
    job.wait(250, 0.0)
    assert job.looks == 1


@pytest.mark.parametrize(
    "data", [None, [], {}, {"format": "x"}, {"format": "ringstep-calls-1", "kinds": [3]},
             {"format": "ringstep-calls-1", "kinds": [{"bytes": 1}]}],
)  # fmt: skip
def test_what_is_no_call_log_is_refused(data: Any) -> None:
    with pytest.raises(SourceError, match=r"not calls of a job|kinds\[0\]"):
        of_job(data, "log", 40)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_what_the_engine_cannot_run_is_said() -> None:
    for names, sizes, why in (
        (["dance"], ["1MiB"], "--collective dance"),
        (["all_reduce"], ["big"], "--bytes 'big'"),
        (["all_reduce"], ["1"], "n_bytes"),
    ):
        with pytest.raises(SourceError, match=why):
            on_engine(names, sizes, 2, 200e6, 20, lambda what, done, of: None)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_engine_is_measured() -> None:
    if (why := missing_tools("C++")) is not None:
        pytest.skip(why)
    told: list[tuple[int, int]] = []
    try:
        found = on_engine(
            ["all_reduce"], ["512KiB", "1MiB"], 2, 200e6, 24,
            lambda what, done, of: told.append((done, of)),
        )  # fmt: skip
    except SourceError as error:
        pytest.skip(str(error))
    assert [one.n_bytes for one in found] == [1 << 19, 1 << 20]
    assert all(one.key.n_nodes == 2 and len(one.latency_us) == 21 for one in found)
    assert all(one.config is not None and one.config.n_channels > 0 for one in found)
    assert told[-1] == (48, 48)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_rival_flows_on_real_links_are_refused() -> None:
    if (why := missing_tools("C++")) is not None:
        pytest.skip(why)
    try:
        with EngineEnvironment(Collective.ALL_REDUCE, 1 << 20, 2, 200e6, settle_s=0.1) as env:
            env.start(sc.sustained(32, 0.8, 12), 0)
            ran = [env.run(None) for _ in range(32)][3:]
    except NetHostsError as error:
        pytest.skip(f"no namespaces here: {error}")
    series = Series(env.name, env.key, env.n_bytes, ran[0].config, [r.latency_us for r in ran])
    with pytest.raises(NotClean, match=r"load|spikes|differ"):
        judge(series)
