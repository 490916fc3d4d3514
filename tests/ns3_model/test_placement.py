"""Which hosts a job gets, when it starts, and who is late."""

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, prepare, run


def jobs_of(text: str, seed: int = 1):
    return prepare(Scenario.parse(text), seed).jobs


def test_packed_fills_one_tor_after_the_other(leaf_spine: str) -> None:
    job = jobs_of(leaf_spine + '[[job]]\nranks = 5\nchunk = "1KiB"\n')[0]
    assert job.hosts == ("h0", "h1", "h2", "h3", "h4")


def test_striped_goes_round_the_tors(leaf_spine: str) -> None:
    job = jobs_of(leaf_spine + '[[job]]\nranks = 5\nchunk = "1KiB"\nplacement = "striped"\n')[0]
    assert job.hosts == ("h0", "h4", "h1", "h5", "h2")


def test_random_placement_follows_the_seed(leaf_spine: str) -> None:
    text = leaf_spine + '[[job]]\nchunk = "1KiB"\nplacement = "random"\n'
    placements = {jobs_of(text, seed)[0].hosts for seed in range(1, 9)}
    assert len(placements) > 1
    assert all(sorted(hosts) == [f"h{i}" for i in range(8)] for hosts in placements)
    assert jobs_of(text, 3)[0].hosts == jobs_of(text, 3)[0].hosts


def test_explicit_order_is_kept(leaf_spine: str) -> None:
    text = leaf_spine + '[[job]]\nchunk = "1KiB"\nplacement = "explicit"\nhosts = ["h7", "h0"]\n'
    assert jobs_of(text)[0].hosts == ("h7", "h0")


def test_jobs_take_free_hosts_while_there_are_enough(leaf_spine: str) -> None:
    text = leaf_spine + '[[job]]\nranks = 3\ncopies = 4\nchunk = "1KiB"\nplacement = "random"\n'
    first, second, *more = jobs_of(text)
    assert not set(first.hosts) & set(second.hosts)
    assert [job.name for job in (first, second, *more)] == [f"job1-{i}" for i in (1, 2, 3, 4)]


def test_rings_of_a_job(leaf_spine: str) -> None:
    job = leaf_spine + '[[job]]\nchunk = "1KiB"\nring_size = 4\n'
    assert jobs_of(job)[0].ops[0].rings == ((0, 2, 4, 6), (1, 3, 5, 7))
    contiguous = job + 'ring_layout = "contiguous"\n'
    assert jobs_of(contiguous)[0].ops[0].rings == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert jobs_of(job)[0].ops[0].size == 4 * 1024


def test_copies_start_an_interval_apart_or_at_random(leaf_spine: str) -> None:
    text = leaf_spine + '[[job]]\nranks = 2\nchunk = "1KiB"\ncopies = 50\ninterval = "1ms"\n'
    assert [job.start_ns for job in jobs_of(text)] == [i * 10**6 for i in range(50)]
    starts = [job.start_ns for job in jobs_of(text + 'arrivals = "poisson"\n')]
    gaps = [b - a for a, b in zip([0, *starts], starts, strict=False)]
    assert all(gap >= 0 for gap in gaps)
    assert 0.5e6 < sum(gaps) / len(gaps) < 1.5e6
    assert starts != [job.start_ns for job in jobs_of(text + 'arrivals = "poisson"\n', seed=2)]


def test_fifty_jobs_that_arrive_at_random_all_end(leaf_spine: str) -> None:
    text = leaf_spine + (
        '[[job]]\nranks = 2\nchunk = "4KiB"\ncopies = 50\narrivals = "poisson"\ninterval = "20us"\n'
        'placement = "random"\n'
    )
    results = run(Scenario.parse(text))
    assert results.complete
    assert results.jobs.num_rows == 50
    assert (results.times("jobs", "jct_ns") > 0).all()
    starts = [job["start_ns"] for job in results.summary["jobs"]]
    assert results.jobs["start_ns"].to_pylist() == starts == sorted(starts)


def test_a_job_that_starts_later_leaves_the_first_alone(leaf_spine: str) -> None:
    alone = run(Scenario.parse(leaf_spine + '[[job]]\nranks = 4\nchunk = "16KiB"\n'))
    both = run(
        Scenario.parse(
            leaf_spine
            + '[[job]]\nranks = 4\nchunk = "16KiB"\n'
            + '[[job]]\nranks = 4\nchunk = "16KiB"\nstart = "500ms"\n'
        )
    )
    first, second = both.jobs["jct_ns"].to_pylist()
    assert first == second == alone.jobs["jct_ns"].to_pylist()[0]
    assert both.jobs["start_ns"].to_pylist() == [0, 500_000_000]


def test_jobs_on_other_hosts_of_a_rack_do_not_disturb(leaf_spine: str) -> None:
    alone = run(Scenario.parse(leaf_spine + '[[job]]\nranks = 2\nchunk = "16KiB"\n'))
    two = run(Scenario.parse(leaf_spine + '[[job]]\nranks = 2\ncopies = 2\nchunk = "16KiB"\n'))
    assert two.jobs["jct_ns"].to_pylist() == alone.jobs["jct_ns"].to_pylist() * 2


@pytest.mark.parametrize("key", ["delay", "step_delay"])
def test_a_straggler_delays_the_job_at_least_by_its_own_delay(leaf_spine: str, key: str) -> None:
    text = leaf_spine + '[[job]]\nchunk = "8KiB"\n'
    base = run(Scenario.parse(text)).cct_ns[0]
    late = run(Scenario.parse(text + f'[[job.straggler]]\nrank = 3\n{key} = "100us"\n')).cct_ns[0]
    # What the ring hands round passes rank 3 once in 8 of the 14 steps.
    assert late >= base + 95_000


def test_a_slow_rank_computes_longer(leaf_spine: str) -> None:
    text = leaf_spine + '[[job]]\nchunk = "8KiB"\ncompute = "1ms"\n'
    base = run(Scenario.parse(text)).jobs["jct_ns"].to_pylist()[0]
    slow = run(Scenario.parse(text + "[[job.straggler]]\nrank = 3\ncompute = 1.5\n"))
    assert slow.jobs["jct_ns"].to_pylist()[0] >= base + 450_000


def test_jitter_moves_starts_by_the_seed(leaf_spine: str) -> None:
    text = leaf_spine + '[[job]]\nchunk = "8KiB"\njitter = "50us"\n'
    delays = jobs_of(text)[0].rank_delay_ns
    assert len(set(delays)) > 4
    assert all(0 <= delay < 50_000 for delay in delays)
    assert delays != jobs_of(text, seed=2)[0].rank_delay_ns


@pytest.mark.parametrize("delay_us", [1, 100, 3000])
@pytest.mark.parametrize("rank", [0, 2, 3])
def test_a_late_rank_shifts_the_end_by_no_less_than_its_delay(
    leaf_spine: str, rank: int, delay_us: int
) -> None:
    # In one rack no rank has slack. ACKs take time on the links too, more of it where nobody waits.
    few = "[transport]\nack_interval = 1000\nack_size = 1\n"
    text = leaf_spine + few + '[[job]]\nranks = 4\nchunk = "8KiB"\n'
    base = run(Scenario.parse(text)).cct_ns[0]
    straggler = f'[[job.straggler]]\nrank = {rank}\ndelay = "{delay_us}us"\n'
    assert run(Scenario.parse(text + straggler)).cct_ns[0] >= base + delay_us * 1000
