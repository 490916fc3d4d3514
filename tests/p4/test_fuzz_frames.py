"""Any bytes, any job rules, through the committed program, against a router and a rule book
written a second time here in plain Python: the same way, the same bytes, no mark on what cannot
carry one, no trace of what is no job's.
"""

from __future__ import annotations

import re

import pytest
from broken_frames import BLOCK, JOB, KINDS, PORT, V4_FRAME, V6_FRAME, VLAN_FRAME, roce
from committed_program import STATE, Bench, host
from hypothesis import example, given
from hypothesis import strategies as st
from random_frames import frames
from rule_book import CE, OTHER_PORT, WHOLE, ecn_of, judge, without_ecn
from sample_frames import frame

from ringstep.protocol.marker import MarkerParams
from ringstep.protocol.rocev2 import build, ipv4_checksum


def followed_everywhere() -> Bench:
    """A switch that would follow whatever looks like its job's, and mark it if it is ahead."""
    bench = Bench()
    bench.hosts(PORT, OTHER_PORT)
    bench.job_params(JOB, MarkerParams(k=1 << 16, n_warmup=0, q_gate=None, t_win=1 << 31))
    bench.block_map(JOB, PORT, BLOCK)
    bench.block_map(JOB, OTHER_PORT, BLOCK)
    bench.job_by_tag(JOB, sport=(0xC000, 0xC000))
    bench.send(roce(step=5, psn=200), 10)
    return bench


@given(st.lists(frames(), min_size=1, max_size=12))
@example([V4_FRAME, V6_FRAME, VLAN_FRAME])
@example(list(KINDS.values()))
def test_every_frame_goes_the_way_of_the_rule_book(sent: list[bytes]) -> None:
    bench = followed_everywhere()
    for turn, data in enumerate(sent):
        expected = judge(data)
        counted = bench.counter("job_data", JOB)
        state = bench.block(BLOCK)
        out = bench.send(data, 20 + turn)
        followed = bench.counter("job_data", JOB) - counted
        if expected is None:
            assert (out, followed) == ([], 0)
            continue
        assert [port for port, _ in out] == [expected.port]
        left = out[0][1]
        assert without_ecn(left, expected) == without_ecn(expected.left, expected)
        before, after = ecn_of(data, expected), ecn_of(left, expected)
        assert followed == expected.tagged
        if after != before:
            assert (before in (1, 2), after, expected.tagged) == (True, CE, True)
        if not expected.tagged:
            assert bench.block(BLOCK) == state
        if not expected.v6 and data[expected.l3] & 15 == 5:
            assert ipv4_checksum(left[expected.l3 : expected.l3 + 20]) == 0
    check_nothing_else_was_touched(bench)


def check_nothing_else_was_touched(bench: Bench) -> None:
    for name in STATE:
        cells = bench.register(name)
        assert len(cells) == 1 << 16
        assert {at for at, value in enumerate(cells) if value} <= {BLOCK}, name
    anchors = bench.register("anchors")
    assert len(anchors) == 1 << 16
    assert {at for at, value in enumerate(anchors) if value} <= set(range(4 * JOB, 4 * JOB + 4))


def test_the_frames_reach_every_verdict() -> None:
    """The rule book is asked about all that it can answer, or the test above shows nothing."""
    verdicts = [judge(data) for data in [*WHOLE, *KINDS.values()]]
    assert {(v is not None and v.tagged, v is not None) for v in verdicts} == {
        (True, True), (False, True), (False, False),
    }  # fmt: skip
    marked = 0
    bench = followed_everywhere()
    for data in WHOLE:
        ((_, left),) = bench.send(data, 50)
        verdict = judge(data)
        assert verdict is not None
        marked += ecn_of(left, verdict) != ecn_of(data, verdict)
    assert marked


# -- indices


def test_no_register_index_can_leave_its_array() -> None:
    """BMv2 built for speed does not check, so the program must leave nothing to check.

    The generator tests an index unless its range is known to fit; here every range must be.
    """
    source = Bench().pipeline.source
    accesses = re.findall(r"REG_\w+\[([^\]]+)\]", source)
    assert len(accesses) > 20
    tested = re.findall(r"0 <= \((t\d+) := ", source)
    assert not set(accesses) & set(tested)


@given(
    job=st.integers(0, (1 << 14) - 1),
    block=st.integers(0, (1 << 16) - 1),
    step=st.integers(0, (1 << 14) - 1),
)
@example(job=(1 << 14) - 1, block=(1 << 16) - 1, step=3)
def test_the_widest_indices_stay_in_their_arrays(job: int, block: int, step: int) -> None:
    bench = Bench()
    bench.hosts(PORT)
    bench.job_params(job, MarkerParams(q_gate=None))
    bench.block_map(job, PORT, block)
    bench.job_by_dst_qp(host(PORT), 0x11, job)
    bench.send(roce(step=step), 10)
    touched = {at for at, value in enumerate(bench.register("alpha")) if value}
    assert touched == ({block} if job else set())
    if job:
        assert bench.block(block)["step_min"] == step


# -- rules that overlap

rules = st.lists(
    st.tuples(
        st.integers(1, 6),
        st.integers(0, 3),
        st.sampled_from([0, 1, 3]),
        st.integers(0, 3),
        st.sampled_from([0, 1, 3]),
        st.integers(1, 4),
    ),
    max_size=8,
)


@given(rules, st.booleans(), st.booleans())
def test_overlapping_job_rules_follow_the_documented_order(
    by_tag: list[tuple[int, ...]], by_pair: bool, by_qp: bool
) -> None:
    """The QP's rule before the pair's before the tags'; among those the larger priority, and
    among equals the one that was there first."""
    bench = Bench()
    bench.hosts(PORT)
    table = bench.table("job_by_tag")
    installed: list[tuple[int, ...]] = []
    for job, value, mask, dscp, dscp_mask, priority in by_tag:
        rule = (job, 0xC000 | value & mask, 0xC000 | mask, dscp & dscp_mask, dscp_mask, priority)
        key = rule[1:]
        if key not in [one[1:] for one in installed]:
            installed.append(rule)
            bench.job_by_tag(job, rule[1:3], dscp=rule[3:5], priority=priority)
    assert len(table) == len(installed)
    for job in range(1, 9):
        bench.job_params(job, MarkerParams())
        bench.block_map(job, PORT, job)
    sample = frame(dst_ip=host(PORT))
    if by_pair:
        bench.job_by_pair(sample.src_ip, host(PORT), 7)
    if by_qp:
        bench.job_by_dst_qp(host(PORT), 0x11, 8)
    for low in range(4):
        for dscp in range(4):
            fitting = [
                one
                for one in installed
                if (0xC000 | low) & one[2] == one[1] and dscp & one[4] == one[3]
            ]
            best = max(fitting, key=lambda one: one[5], default=(0,))
            wanted = 8 if by_qp else 7 if by_pair else best[0]
            before = {job: bench.counter("job_data", job) for job in range(1, 9)}
            bench.send(build(frame(dst_ip=host(PORT), sport=0xC000 | low, dscp=dscp)), 5)
            moved = [job for job, old in before.items() if bench.counter("job_data", job) != old]
            assert moved == ([wanted] if wanted else [])


@pytest.mark.parametrize("first", [1, 2])
def test_the_same_rule_twice_is_refused(first: int) -> None:
    bench = Bench()
    bench.job_by_dst_qp(host(PORT), 0x11, first)
    table = bench.table("job_by_dst_qp")
    (entry,) = table.entries()
    with pytest.raises(Exception, match="exists already"):
        table.insert(entry)
