"""Every golden vector through the committed P4 program, packet for packet."""

from __future__ import annotations

import pytest
from committed_program import JOB_COUNTERS
from golden_replay import VECTORS, Replay
from marker_reference import ReferenceJobs

from ringstep.protocol.marker import JobCounters
from ringstep.protocol.rocev2 import parse


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("name", VECTORS)
def test_program_agrees_in_every_row(name: str, v6: bool) -> None:
    replay = Replay(name, v6)
    reference = ReferenceJobs()
    for settings, changed, row in VECTORS[name].replay():
        where = f"{name}.txt, line {row.line}"
        if changed:
            replay.configure(settings, {job for job, _ in changed})
        reference.take(settings, changed)
        reference.packet(settings, row)
        left = parse(replay.send(row))
        anchored = row.followed and settings.jobs[row.job]["mode"] == "anchored"
        replay.expect(row, anchored)
        assert left.ecn == row.ecn_out, where
        # Between them these tell the marker's word apart from RED's.
        marked = row.mark and row.ecn in (1, 2)
        assert left.ecn == (3 if marked or (row.red and row.ecn in (1, 2)) else row.ecn), where
        replay.check_known_state(where)
    replay.check_all_state()
    for job, marker in reference.markers.items():
        counted = JobCounters(
            **{field: replay.bench.counter(alias, job) for field, alias in JOB_COUNTERS.items()}
        )
        assert counted == marker.counters, f"{name}, counters of job {job}"


@pytest.mark.parametrize("name", VECTORS)
def test_counters_follow_from_the_rows(name: str) -> None:
    # The rule that the README gives to readers in other languages.
    reference = ReferenceJobs()
    counted: dict[int, JobCounters] = {}
    step_min: dict[int, tuple[int, int]] = {}
    for settings, changed, row in VECTORS[name].replay():
        reference.take(settings, changed)
        reference.packet(settings, row)
        if row.block is None:
            continue
        assert row.step is not None
        assert row.step_min is not None
        assert row.generation is not None
        c = counted.setdefault(row.job, JobCounters())
        ect = row.ecn in (1, 2)
        c.data += 1
        c.marks += row.mark and ect
        c.red_marks += row.red and ect
        generation, before = step_min.get(row.block, (0, 0))
        if generation != row.generation:
            before = row.step
        bits = int(settings.jobs[row.job]["step_bits"])
        moved = (row.step_min - before) % 2**bits
        c.advances += 0 < moved < 2 ** (bits - 1)
        c.corrections += moved > 2 ** (bits - 1)
        step_min[row.block] = row.generation, row.step_min
    assert counted == {
        job: marker.counters for job, marker in reference.markers.items() if marker.counters.data
    }
