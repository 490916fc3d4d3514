"""Where calls come from: a job's own run, recorded traces, sweeps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringstep.hostlib.coordinator.calls import CALLS_FORMAT
from ringstep.hostlib.dynamic.actions import Config, Key
from ringstep.hostlib.evaluate.calibration.clean import LEAST, NotClean, Series
from ringstep.hostlib.evaluate.calibration.live import COLD
from ringstep.hostlib.shm_layout import Algo, Collective, Proto
from ringstep.hostlib.traces.format import Traces
from ringstep.hostlib.traces.scenarios import Label

COVERED: Final = 0.95
"""Share of a job's time in collectives that the kinds measured must make up."""
POLL_S: Final = 0.5


class SourceError(ValueError):
    """Calls that cannot be read; the message says where and why."""


@dataclass(frozen=True)
class Collected:
    """What a source had.

    Attributes:
        series: calls in NCCL's own configuration, by kind.
        left_out: what was passed over, in words.
    """

    series: tuple[Series, ...]
    left_out: tuple[str, ...] = ()


# --- a job's own run ---


@dataclass(frozen=True)
class _Kind:
    """One kind of a call log, its cold calls left out."""

    series: Series
    decided: int
    total_us: float


def _kinds(data: Any, where: str) -> list[_Kind]:
    if not isinstance(data, Mapping) or data.get("format") != CALLS_FORMAT:
        raise SourceError(f"{where}: not calls of a job ('format' must be {CALLS_FORMAT!r})")
    found = []
    for at, row in enumerate(data.get("kinds", [])):
        try:
            found.append(_kind(row, where))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SourceError(f"{where}: kinds[{at}]: {error!r}") from None
    return found


def _kind(row: Mapping[str, Any], where: str) -> _Kind:
    collective, n_bytes = Collective[str(row["collective"]).upper()], int(row["bytes"])
    n_ranks, n_nodes = int(row["ranks"]), int(row["nodes"])
    if not 1 <= n_nodes <= n_ranks:
        raise ValueError(f"{n_nodes} nodes, {n_ranks} ranks")
    calls = row["calls"]
    cold = max(COLD - (int(row["seen"]) - len(calls)), 0)
    times: list[float] = []
    missed: dict[int, int] = {}
    decided, config = 0, None
    for call in calls[cold:]:
        if call["decided"]:
            decided += 1
            continue
        for rank in call["missing"]:
            missed[int(rank)] = missed.get(int(rank), 0) + 1
        if call["missing"]:
            continue
        us = float(call["us"])
        if us == 0:  # nobody measured it
            continue
        times.append(us)
        algo, proto, channels = call["ran"]
        if algo is not None and proto is not None and int(channels) > 0:
            config = Config(Algo[str(algo).upper()], Proto[str(proto).upper()], int(channels))
    name = (
        f"{where}: {collective.name.lower()} of {n_bytes} bytes, {n_ranks} ranks on {n_nodes} nodes"
    )
    series = Series(
        name, Key.of(n_ranks, n_nodes, collective, n_bytes), n_bytes, config, times, (), missed
    )
    return _Kind(series, decided, sum(float(call["us"]) for call in calls))


def of_job(data: Any, where: str, calls: int) -> Collected:
    """Return the newest calls of each kind that a coordinator told of.

    Kinds with too few calls are left out; their time is said.

    Args:
        data: as of :mod:`ringstep.hostlib.coordinator.calls`.
        where: for messages.
        calls: of each kind at most, the newest.

    Raises:
        SourceError: not such data.
        NotClean: no kind has calls enough, or a policy decides for all of them.
    """
    kinds = _kinds(data, where)
    total = sum(kind.total_us for kind in kinds) or 1.0
    series, left_out = [], []
    for kind in kinds:
        s = kind.series
        asked = len(s.latency_us) + max(s.missed.values(), default=0)
        if asked < LEAST:
            left_out.append(
                f"{s.name}: {len(s.latency_us)} calls in NCCL's own configuration, "
                f"{kind.decided} decided by a policy; {kind.total_us / total:.0%} of the time"
            )
            continue
        times = list(s.latency_us)
        series.append(replace(s, latency_us=times[-calls:], before_us=times[:-calls]))
    if not series:
        if any(kind.decided >= LEAST for kind in kinds):
            raise NotClean(
                f"{where}: a policy decides what runs, and baselines are of NCCL's own choice: "
                "`ringstep tuner bypass on`, or start the job with --policy nccl"
            )
        most = max((len(kind.series.latency_us) for kind in kinds), default=0)
        raise NotClean(
            f"{where}: {most} calls at most of one collective and size, {LEAST} or more are "
            "needed: let the job run for longer"
        )
    return Collected(tuple(series), tuple(left_out))


def wait_for_calls(
    ask: Callable[[], Any],
    where: str,
    calls: int,
    wait_s: float,
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Any:
    """Return what a running job's coordinator tells, once there are calls enough, or time is up.

    Enough: the kinds that make up most of the time in collectives have ``calls`` each.

    Args:
        ask: asks the coordinator.
        where: for messages.
        calls: wanted of each kind.
        wait_s: at most.
        progress: called with calls of the kind that has fewest, and ``calls``.
        clock: seconds.
        sleep: waits.
    """
    end = clock() + wait_s
    while True:
        data = ask()
        fewest = _fewest(_kinds(data, where), calls)
        if progress is not None:
            progress(fewest, calls)
        if fewest >= calls or clock() >= end:
            return data
        sleep(POLL_S)


def _fewest(kinds: Sequence[_Kind], calls: int) -> int:
    total, covered, fewest = sum(kind.total_us for kind in kinds), 0.0, calls
    for kind in sorted(kinds, key=lambda kind: -kind.total_us):
        if total and covered >= COVERED * total:
            break
        covered += kind.total_us
        fewest = min(fewest, len(kind.series.latency_us))
    return fewest if total else 0


def read_call_log(path: Path) -> Any:
    """Read what a coordinator left when it ended.

    Raises:
        SourceError: not JSON, or it cannot be read.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SourceError(f"{path}: not JSON: {error}") from None


# --- recorded traces ---


def of_traces(traces: Traces, where: str, calls: int) -> Collected:
    """Return the calls of each trace that ran in NCCL's configuration.

    Traces whose labels tell of contention are left out: they were recorded to learn from.

    Args:
        traces: recorded ones; generated ones are of no cluster.
        where: for messages.
        calls: of each trace at most, the newest.

    Raises:
        SourceError: generated traces.
        NotClean: no trace is left.
    """
    if traces.header.get("source") == "fluid":
        raise SourceError(f"{where}: made by the fluid model, which is no cluster: record traces")
    series, left_out = [], []
    for trace in traces.each():
        number = int(trace["trace"][0])
        name = f"{where}: trace {number}"
        contended = int(np.isin(trace["label"], (Label.SPIKE, Label.SUSTAINED)).sum())
        if contended or (trace["label"] == Label.SLOW_HOST).any():
            left_out.append(f"{name}: {contended} calls are labelled contended, or hosts slow")
            continue
        own = np.flatnonzero(trace["decided"][COLD:] == 0)[-calls:] + COLD
        if len(own) < LEAST:
            left_out.append(f"{name}: {len(own)} calls in NCCL's own configuration")
            continue
        at = int(own[0])
        n_bytes = int(trace["bytes"][at])
        config = Config(
            Algo(int(trace["algo"][at])), Proto(int(trace["proto"][at])), int(trace["channels"][at])
        )
        key = Key.of(
            int(trace["ranks"][at]), int(trace["nodes"][at]),
            Collective(int(trace["collective"][at])), n_bytes,
        )  # fmt: skip
        series.append(
            Series(
                f"{name} ({key.collective.name.lower()} of {n_bytes} bytes)", key, n_bytes, config,
                trace["latency_us"][own].tolist(), trace["time_ns"][own].tolist(),
            )
        )  # fmt: skip
    if not series:
        why = left_out[0].removeprefix(f"{where}: ") if left_out else "no trace"
        raise NotClean(
            f"{where}: no trace is left to learn clean latencies from ({why}): record "
            f"{LEAST + COLD} calls or more on a clean network"
        )
    return Collected(tuple(series), tuple(left_out))
