"""Hosts that a failed link cuts off for good: the run says so and ends, timeouts or not."""

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, prepare, run
from ringstep_ns3.severed import Severed, severed

CUT = '[[event]]\nat = "50us"\nlink = "h3-tor0"\naction = "fail"\n'
BACK = '[[event]]\nat = "10ms"\nlink = "h3-tor0"\naction = "restore"\n'
RTO = '[transport]\nrto = "1ms"\n'


@pytest.mark.parametrize("rto", ["1ms", "67ms", "off"])
def test_a_host_cut_off_for_good_ends_the_run(ring: str, rto: str) -> None:
    results = run(Scenario.parse(ring + CUT + f'[transport]\nrto = "{rto}"\n'))
    assert results.summary["stopped"] == "stalled"
    assert not results.complete
    assert results.jobs["end_ns"].to_pylist() == [None]
    warning = results.summary["warnings"][0]
    assert warning.startswith("event[1] leaves no path between h0 and h3 from 50us on")


def test_a_host_that_comes_back_is_waited_for(ring: str) -> None:
    results = run(Scenario.parse(ring + CUT + BACK + RTO))
    assert results.complete
    assert results.summary["warnings"] == []
    assert results.jobs["jct_ns"].to_pylist()[0] > 10_000_000


def test_a_failure_with_a_way_round_is_none(ring: str) -> None:
    event = '[[event]]\nat = "50us"\nlink = "tor0-spine0"\naction = "fail"\n'
    scenario = Scenario.parse(ring + event + RTO)
    assert severed(prepare(scenario)) is None
    assert run(scenario).complete


def test_the_failure_that_cuts_is_the_one_named(ring: str) -> None:
    both = "".join(
        f'[[event]]\nat = "{at}"\nlink = "tor1-spine{spine}"\naction = "fail"\n'
        for at, spine in (("70us", 1), ("60us", 0))
    )
    assert severed(prepare(Scenario.parse(ring + both))) == Severed("h0", "h4", 0, 70_000)


def test_a_job_that_was_done_before_the_failure_is_whole(ring: str) -> None:
    results = run(Scenario.parse(ring + CUT.replace("50us", "1s") + RTO))
    assert results.complete
    assert results.summary["stopped"] == "done"


def test_other_jobs_end_whatever_they_compute(leaf_spine: str) -> None:
    cut = '[[job]]\nname = "cut"\nranks = 4\nchunk = "64KiB"\n'
    other = '[[job]]\nname = "other"\nranks = 4\nchunk = "4KiB"\ncompute = "50ms"\niterations = 2\n'
    late = other.replace("other", "late").replace("ranks = 4", 'hosts = ["h4", "h5"]')
    text = leaf_spine + cut + other + late + 'start = "300ms"\n' + CUT + RTO
    results = run(Scenario.parse(text))
    first, *others = results.jobs["jct_ns"].to_pylist()
    assert first is None
    assert all(jct > 100_000_000 for jct in others)
    assert results.summary["stopped"] == "stalled"


def test_background_to_a_host_cut_off_ends_too(leaf_spine: str) -> None:
    flows = '[[background]]\nkind = "long"\nsrc = ["h3"]\ndst = ["h5"]\nsize = "1MB"\n'
    results = run(Scenario.parse(leaf_spine + flows + CUT + RTO))
    assert results.summary["stopped"] == "stalled"
    assert results.summary["background"]["fct_ns"]["count"] == 0


def test_a_run_with_an_end_is_left_to_it(ring: str) -> None:
    results = run(Scenario.parse(ring + CUT + RTO, settings=["until=20ms"]))
    assert results.summary["stopped"] == "until"
    assert results.summary["warnings"] == []
