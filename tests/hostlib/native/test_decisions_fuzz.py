"""Whatever bytes a table has and whatever costs NCCL offers: one legal change, or none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.native.caller import Costs, Plugin, Rank
from ringstep.hostlib.shm import DecisionTable, ShmFile, size_class
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

small = st.integers(-2, 9)
entry = st.one_of(
    st.binary(min_size=16, max_size=16),
    st.builds(
        lambda a, p, n, f: bytes([a & 255, p & 255, n, f]) + bytes(12),
        small, st.integers(-1, 4), st.integers(0, 255), st.sampled_from([0, 1, 1, 1, 2]),
    ),
)  # fmt: skip
cost = st.one_of(
    st.sampled_from([-1.0, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e-6, 3.4e38]),
    st.floats(0, 1e6, width=32),
)


@given(
    raw=entry,
    collective=st.integers(-2, 9),
    n_bytes=st.integers(0, 2**64 - 1),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 4)),
    data=st.data(),
    channels=st.integers(0, 64),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_one_legal_change_or_none(
    plugin: Plugin, shm: ShmFile, shm_dir: Path, raw: bytes, collective: int, n_bytes: int,
    shape: tuple[int, int], data: st.DataObject, channels: int,
) -> None:  # fmt: skip
    table = DecisionTable()
    table.entries[:] = np.frombuffer(raw, lay.ENTRY)[0]
    shm.write_static(table)
    n = shape[0] * shape[1]
    before = Costs(data.draw(st.lists(cost, min_size=n, max_size=n)), *shape)
    costs = Costs(list(before.block), *shape)
    rank = Rank(plugin, 1, 1, 0)
    _, given_channels = rank.get_coll_info(collective, n_bytes, costs, channels)
    rank.finalize()

    changed = [
        (a, p)
        for a in range(shape[0])
        for p in range(shape[1])
        if costs[a, p] != before[a, p] and not math.isnan(before[a, p])
    ]
    wanted = table.entries[0, size_class(n_bytes)]
    assert len(changed) <= 1
    for a, p in changed:
        assert (a, p) == (wanted["algo"], wanted["proto"])
        assert 0 <= before[a, p] < math.inf
        assert 0 < costs[a, p] < 1e-5
        assert a in list(Algo)
        assert p in list(Proto)
        assert collective in list(Collective)
        assert a != Algo.TREE or collective == Collective.ALL_REDUCE
        assert wanted["flags"] == lay.ENTRY_VALID
    for a in range(shape[0]):
        for p in range(shape[1]):
            if math.isnan(before[a, p]):
                assert math.isnan(costs[a, p])
    if given_channels != channels:
        assert given_channels == min(int(wanted["n_channels"]), 64)
        assert given_channels >= 1
