from __future__ import annotations

import re
from dataclasses import fields

import pytest

from ringstep.protocol.marker import (
    DEFAULT_PROFILE,
    PROFILES,
    Marker,
    MarkerParams,
    ProgressMode,
    Scope,
    k_fixed,
    mark_probability,
)
from ringstep.protocol.tag import TagLayout


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("k", 0, 65536),
        ("tau_den", 1, 255),
        ("tau_num", 0, 4),
        ("t_win", 1, 4294967295),
        ("n_sample", 0, 65535),
        ("n_warmup", 0, 16777215),
        ("alpha_max", 1, 255),
        ("q_gate", 0, 524286),
        ("packets_per_step", 0, 16777215),
        ("generation", 1, 255),
    ],
)
def test_ranges(name: str, low: int, high: int) -> None:
    # tau_den at its least needs a tau_num that is not above it.
    more = {"tau_num": 1} if name == "tau_den" else {}
    for value in (low, high):
        assert getattr(MarkerParams(**{name: value}, **more), name) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1):
        complaint = f"{name} = {value}: must be in {low}..{high}"
        with pytest.raises(ValueError, match=re.escape(complaint)):
            MarkerParams(**{name: value}, **more)  # type: ignore[arg-type]


def test_tau_is_at_most_one() -> None:
    assert MarkerParams(tau_num=255, tau_den=255).tau_num == 255
    with pytest.raises(ValueError, match=r"tau_num = 3: must be in 0\.\.2"):
        MarkerParams(tau_num=3, tau_den=2)


@pytest.mark.parametrize("value", [0.01, "655", None, True])
def test_k_is_taken_in_fixed_point_only(value: object) -> None:
    with pytest.raises(ValueError, match=r"k = .*: must be a whole .* 0\.\.65536, see k_fixed"):
        MarkerParams(k=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("k", "fixed"), [(0, 0), (1, 65536), (0.01, 655), (0.001, 66), (0.1, 6554), (1 / 65536, 1)]
)
def test_k_fixed_rounds(k: float, fixed: int) -> None:
    assert k_fixed(k) == fixed


@pytest.mark.parametrize("k", [-0.001, 1.001, 655.0])
def test_k_fixed_refuses_what_is_no_probability(k: float) -> None:
    with pytest.raises(ValueError, match=rf"k = {k}: must be in 0\.\.1 \(the paper uses 0\.001 to"):
        k_fixed(k)


def test_anchors_need_more_steps_than_there_are_anchors() -> None:
    # With four steps every anchor would keep the base of its first lap.
    with pytest.raises(ValueError, match=r"mode anchored with S = 2: the tag needs .* S >= 3"):
        MarkerParams(mode=ProgressMode.ANCHORED, layout=TagLayout(12, 2))
    MarkerParams(mode=ProgressMode.ANCHORED, layout=TagLayout(11, 3))
    MarkerParams(mode=ProgressMode.PER_STEP, layout=TagLayout(12, 2))


def test_defaults_are_those_of_the_design() -> None:
    params = MarkerParams()
    assert (params.k, params.tau_num, params.tau_den) == (655, 1, 4)
    assert (params.t_win, params.alpha_max, params.packets_per_step) == (100, 255, 0)
    assert params.layout == TagLayout(0, 14)
    assert params.enabled


def test_profiles() -> None:
    assert set(PROFILES) == {"paper", "ringstep"}
    assert DEFAULT_PROFILE == "ringstep"
    paper, ours = PROFILES["paper"], PROFILES["ringstep"]
    assert (paper.scope, paper.params.q_gate) == (Scope.SWITCH, None)
    assert ours.scope is Scope.PORT
    assert ours.params.q_gate is not None
    assert ours.params == MarkerParams()


def test_table_arguments() -> None:
    params = MarkerParams(
        k=7, tau_num=2, tau_den=9, t_win=50, n_sample=3, n_warmup=4, alpha_max=5, q_gate=6,
        layout=TagLayout(4, 10), mode=ProgressMode.ANCHORED, packets_per_step=8, enabled=False,
        generation=9,
    )  # fmt: skip
    assert params.to_table() == {
        "generation": 9, "step_mask": 1023, "step_sign": 512, "anchored": 1,
        "packets_per_step": 8, "k": 7, "tau_num": 2, "tau_den": 9, "t_win": 50, "n_sample": 3,
        "n_warmup": 4, "alpha_max": 5, "q_min": 7, "enabled": 0,
    }  # fmt: skip
    # The gate says "deeper than", the table "at least"; 0 switches it off.
    assert MarkerParams(q_gate=0).to_table()["q_min"] == 1
    assert MarkerParams(q_gate=None).to_table()["q_min"] == 0
    assert MarkerParams(q_gate=(1 << 19) - 2).to_table()["q_min"] == (1 << 19) - 1


def test_update_keeps_state_and_refuses_as_a_whole() -> None:
    marker = Marker(MarkerParams())
    marker.on_packet(0, 5, 1, False, True, 0)
    state = marker.block().as_dict()
    marker.update(k=100, q_gate=None)
    assert (marker.params.k, marker.params.q_gate) == (100, None)
    with pytest.raises(ValueError, match="alpha_max = 0"):
        marker.update(k=5, alpha_max=0)
    assert marker.params.k == 100
    assert marker.block().as_dict() == state
    with pytest.raises(TypeError, match="gain"):
        marker.update(gain=3)


def test_params_cannot_change_behind_the_marker() -> None:
    with pytest.raises(AttributeError):
        MarkerParams().k = 3  # type: ignore[misc]
    assert {f.name for f in fields(MarkerParams)} >= {"k", "tau_num", "layout"}


def test_mark_probability() -> None:
    assert mark_probability(65536 // 100, 1, 10, 10) == pytest.approx(0.01, abs=1e-4)
    assert mark_probability(65536 // 100, 3, 20, 10) == pytest.approx(0.06, abs=1e-3)
    assert mark_probability(65536, 255, 100, 1) == 1.0
