"""Traffic outside the jobs: how much, between whom, and by which seed."""

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, prepare, run
from ringstep_ns3.background import SIZES, draw_size, mean_size


def flows_of(text: str, seed: int = 1):
    return prepare(Scenario.parse(text), seed).flows[0]


@pytest.mark.parametrize("sizes", ["web_search", "fb_hadoop", "fixed"])
def test_poisson_traffic_has_the_load_that_was_asked_for(leaf_spine: str, sizes: str) -> None:
    size = 'size = "100KB"\n' if sizes == "fixed" else ""
    text = leaf_spine + f'[[background]]\nkind = "poisson"\nload = 0.5\nsizes = "{sizes}"\n{size}'
    flows = flows_of(text + 'stop = "2s"\n')
    load = sum(flows.size) * 8 / 2 / (8 * 10**10)
    assert load == pytest.approx(0.5, rel=0.1)
    assert flows.start_ns == sorted(flows.start_ns)
    assert all(src != dst for src, dst in zip(flows.src, flows.dst, strict=True))


def test_a_table_of_background_has_its_own_random_numbers(leaf_spine: str) -> None:
    table = '[[background]]\nkind = "poisson"\nload = 0.2\nstop = "20ms"\n'
    alone = flows_of(leaf_spine + table)
    prepared = prepare(Scenario.parse(leaf_spine + table + table.replace("0.2", "0.4")), 1)
    assert prepared.flows[0] == alone
    assert prepared.flows[1].size[:5] != alone.size[:5]
    assert flows_of(leaf_spine + table, seed=2) != alone


def test_a_custom_distribution_is_followed(leaf_spine: str) -> None:
    text = leaf_spine + (
        '[[background]]\nkind = "poisson"\nload = 0.3\nstop = "5ms"\nsizes = "custom"\n'
        'cdf = [{size = "1KB", share = 0.0}, {size = "2KB", share = 1.0}]\n'
    )
    flows = flows_of(text)
    assert all(1000 <= size <= 2000 for size in flows.size)
    assert sum(flows.size) / len(flows.size) == pytest.approx(1500, rel=0.05)


def test_periodic_messages_come_at_their_times(leaf_spine: str) -> None:
    text = leaf_spine + (
        '[[background]]\nkind = "periodic"\nsrc = ["tor0"]\ndst = ["h7"]\nsize = "10KB"\n'
        'interval = "1ms"\nstart = "1ms"\nstop = "4ms"\n'
    )
    flows = flows_of(text)
    assert sorted(set(flows.start_ns)) == [1_000_000, 2_000_000, 3_000_000]
    assert sorted(set(flows.src)) == [0, 1, 2, 3]
    assert set(flows.dst) == {7}


def test_bursts_leave_silence_between_them(leaf_spine: str) -> None:
    text = leaf_spine + (
        '[[background]]\nkind = "on_off"\nsrc = ["h0"]\nload = 1.0\non = "100us"\noff = "900us"\n'
        'size = "10KB"\nstop = "50ms"\n'
    )
    flows = flows_of(text)
    assert sum(flows.size) * 8 / 50e-3 / 1e10 == pytest.approx(0.1, rel=0.15)
    gaps = [b - a for a, b in zip(flows.start_ns, flows.start_ns[1:], strict=False)]
    assert max(gaps) > 800_000


def test_background_slows_a_ring_and_is_reported_apart(ring: str) -> None:
    base = run(Scenario.parse(ring)).cct_ns[0]
    text = ring + '[[background]]\nkind = "long"\nsrc = ["h1"]\ndst = ["h0"]\nsize = "1MB"\n'
    results = run(Scenario.parse(text))
    assert results.cct_ns[0] > base
    assert results.summary["background"]["flows"] == 1
    assert results.summary["background"]["fct_ns"]["count"] == 1
    assert 0 in results.flows["job"].to_pylist()


def test_background_alone_is_a_scenario(leaf_spine: str) -> None:
    text = leaf_spine + '[[background]]\nkind = "long"\nsize = "100KB"\n'
    results = run(Scenario.parse(text))
    assert results.complete
    assert results.summary["background"]["flows"] == 8
    assert results.jobs.num_rows == 0


@pytest.mark.parametrize("name", SIZES)
def test_size_distributions_are_whole(name: str) -> None:
    cdf = SIZES[name]
    assert [share for _, share in cdf] == sorted(share for _, share in cdf)
    assert cdf[-1][1] == 1
    assert draw_size(cdf, 0.0) == 1
    assert draw_size(cdf, 0.999999999) <= cdf[-1][0]
    steps = 10_000
    mean = sum(draw_size(cdf, (i + 0.5) / steps) for i in range(steps)) / steps
    assert mean == pytest.approx(mean_size(cdf), rel=0.01)
