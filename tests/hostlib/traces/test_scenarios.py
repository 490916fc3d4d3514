import numpy as np
import pytest

from ringstep.hostlib.traces import scenarios as sc
from ringstep.hostlib.traces.noise import NoiseParams, factors
from ringstep.hostlib.traces.scenarios import Label


@pytest.mark.parametrize("kind", sc.KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_are_whole_and_labelled(kind: str, seed: int) -> None:
    s = sc.random_schedule(np.random.default_rng(seed), 64, kind)
    assert len(s) == len(s.label) == len(s.flows) == len(s.slow_host) == 64
    assert ((s.level >= 0) & (s.level < 1)).all()
    contended = np.isin(s.label, [Label.SPIKE, Label.SUSTAINED])
    assert (contended == (s.level > 0)).all()
    assert ((s.slow_host > 1) == (s.label == Label.SLOW_HOST)).all()


@pytest.mark.parametrize("seed", range(20))
def test_spikes_last_up_to_three_calls_and_sustained_contention_longer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind, label, low, high in (
        ("spikes", Label.SPIKE, 1, 3),
        ("bursty", Label.SPIKE, 1, 3),
        ("sustained", Label.SUSTAINED, sc.SHORTEST_SUSTAINED, 64),
    ):
        found = sc.random_schedule(rng, 64, kind).label == label
        edges = np.flatnonzero(np.diff(np.concatenate([[False], found, [False]])))
        lengths = edges[1::2] - edges[::2]
        lengths = lengths[edges[1::2] < 64]  # the last one may be cut by the end
        assert ((lengths >= low) & (lengths <= high)).all()


def test_the_papers_spikes_are_six_of_two_calls() -> None:
    s = sc.paper_spikes()
    assert (s.label == Label.SPIKE).sum() == 12
    assert sorted(set(s.level[s.level > 0].tolist())) == [0.3, 0.4, 0.5]
    assert s.onset is None


def test_steps_go_up_down_and_end() -> None:
    s = sc.steps(30, {5: 0.6, 10: 0.8, 20: 0.0})
    assert s.level[[4, 5, 10, 19, 20, 29]].tolist() == [0.0, 0.6, 0.8, 0.8, 0.0, 0.0]
    assert s.onset == 5
    assert s.label[25] == Label.STEADY


def test_load_from_the_start_has_its_onset_there() -> None:
    assert sc.random_schedule(np.random.default_rng(0), 64, "from_the_start").onset == 0


def test_unknown_kinds_and_short_traces_are_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        sc.random_schedule(np.random.default_rng(0), 64, "storm")
    with pytest.raises(ValueError, match="or more"):
        sc.random_schedule(np.random.default_rng(0), 10)


def test_noise_does_not_depend_on_what_is_done_with_it() -> None:
    """Pairs of episodes with one seed differ by their configurations only."""
    level = np.linspace(0, 0.9, 50)
    one, two = (factors(np.random.default_rng(3), level, NoiseParams()) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert (one > 0).all()
    assert one[0] > 1.5  # cold
