"""What is recommended, from which evidence, and when nothing is known."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringstep.fabric import Topology, parse_topology
from ringstep.fabric.facts import (
    UNKNOWN,
    FabricFacts,
    FactError,
    JobFacts,
    fabric_facts,
    leaves_its_rack,
)
from ringstep.fabric.guidance import (
    FILE,
    Cell,
    Change,
    GuidanceTable,
    Held,
    Site,
    TableError,
    Variant,
    load_table,
    parse_table,
)
from ringstep.fabric.recommend import (
    HARM_LIMIT,
    Confidence,
    Recommendation,
    packets_per_step,
    recommend,
    rules_of_thumb,
)
from ringstep.protocol.marker import PROFILES, k_fixed

DEFAULT = PROFILES["ringstep"].params
STRONG = replace(DEFAULT, k=k_fixed(0.1))
VARIANTS = {
    v.name: v
    for v in (
        Variant("baseline", False, None),
        Variant("gated", False, DEFAULT),
        Variant("planned", True, None),
        Variant("ours", True, DEFAULT),
        Variant("k=0.1", True, STRONG),
    )
}
G = 10**9
MIB = 1 << 20


def around(mean: float, spread: float = 1.0) -> Change:
    return Change(mean, mean - spread, mean + spread)


def cell(
    *,
    rate: int = 100 * G,
    rtt_ns: int = 8000,
    step: int = MIB,
    over: float = 2.0,
    ring: int = 4,
    tenants: float = 0.0,
    sender: str = "persistent",
    preset: str = "connectx",
    gated: float = 2.0,
    planned: float = -40.0,
    ours: float = -41.0,
    strong: float = -41.0,
    harm: float = 0.5,
    best: Held = Held("ours", Change(-41, -42, -40), Change(0, 0, 0), 0.5),  # noqa: B008
) -> Cell:
    site = Site(f"{rate // G}G-{rtt_ns}-{step}-{over}-{ring}-{tenants}", rate, rtt_ns, step, 4096,
                over, ring, tenants, 120)  # fmt: skip
    changes = {
        "gated": around(gated),
        "planned": around(planned),
        "ours": around(ours),
        "k=0.1": around(strong),
    }
    harms = {"gated": gated + 1, "ours": harm, "k=0.1": harm}
    return Cell(site, sender, preset, 10.0, changes, harms, best)


def table(*cells: Cell) -> GuidanceTable:
    return GuidanceTable({"seeds": 6}, VARIANTS, cells, ())


FABRIC = FabricFacts(100 * G, 8000, 2.0, 4096)
JOB = JobFacts(MIB, 4, "persistent", "connectx")


def test_a_measured_place_gives_its_own_numbers() -> None:
    found = recommend(FABRIC, JOB, table(cell(), cell(rate=10 * G, planned=-10)))
    assert found.confidence is Confidence.MEASURED
    assert (found.paths, found.marking) == ("planned", True)
    assert found.expected == Change(-41, -42, -40)
    assert found.params == DEFAULT
    assert [c.site.rate_bps for c in found.evidence] == [100 * G]


@pytest.mark.parametrize(("harm", "marking"), [(HARM_LIMIT, True), (HARM_LIMIT + 0.1, False)])
def test_marking_starts_only_where_its_harmful_end_is_within_a_percent(
    harm: float, marking: bool
) -> None:
    found = recommend(FABRIC, JOB, table(cell(harm=harm)))
    assert found.marking is marking
    assert found.paths == "planned"
    assert found.marking_harm == harm
    if not marking:
        assert found.closed_loop
        assert found.expected == Change(-40, -41, -39)
        assert any("may cost up to 1.1 %" in reason for reason in found.reasons)


def test_paths_that_may_harm_are_not_planned() -> None:
    found = recommend(FABRIC, JOB, table(cell(planned=0.5, ours=0.5, strong=0.5)))
    assert (found.paths, found.marking) == ("ecmp", False)
    assert found.expected == Change(0, 0, 0)
    assert any("planned paths alone: +0.5 %" in reason for reason in found.reasons)


def test_marking_on_ecmp_paths_where_only_that_gains() -> None:
    found = recommend(FABRIC, JOB, table(cell(gated=-5, planned=3, ours=3, strong=3)))
    assert (found.paths, found.marking) == ("ecmp", True)
    assert found.expected == Change(-5, -6, -4)


def test_marking_may_make_planned_paths_safe_that_are_not_alone() -> None:
    found = recommend(FABRIC, JOB, table(cell(planned=0.5, ours=-12, strong=-12, harm=5)))
    assert (found.paths, found.marking) == ("planned", True)
    assert found.marking_harm == -11
    assert any("planned paths with it may cost 0.0 %" in reason for reason in found.reasons)


def test_where_paths_cannot_be_pinned_only_marking_is_left() -> None:
    bound = replace(JOB, plannable=False)
    found = recommend(FABRIC, bound, table(cell(gated=-5)))
    assert (found.paths, found.marking, found.expected) == ("ecmp", True, Change(-5, -6, -4))
    found = recommend(FABRIC, bound, table(cell(gated=2)))
    assert (found.paths, found.marking, found.marking_harm) == ("ecmp", False, 3)


def test_where_paths_are_pinned_in_any_case_only_marking_on_them_is_weighed() -> None:
    pinned = replace(JOB, pinned=True)
    # Planned paths that may be worse than ECMP are taken all the same.
    found = recommend(FABRIC, pinned, table(cell(planned=5, ours=4.9, strong=5, gated=-30, harm=0)))
    assert (found.paths, found.marking) == ("planned", False)
    assert "on planned paths it alone gains" in found.marking_reason
    found = recommend(FABRIC, pinned, table(cell(planned=5, ours=-5, strong=-5, harm=0.5)))
    assert (found.paths, found.marking, found.marking_harm) == ("planned", True, 0.5)
    found = recommend(FABRIC, pinned, table(cell(planned=5, ours=-5, strong=-5, harm=3)))
    assert (found.paths, found.marking, found.marking_harm) == ("planned", False, 3)


def test_pinned_paths_must_be_plannable() -> None:
    with pytest.raises(FactError, match="pinned but not plannable"):
        replace(JOB, plannable=False, pinned=True)


def test_what_gains_nothing_does_not_start_and_needs_no_loop() -> None:
    found = recommend(FABRIC, JOB, table(cell(ours=-40, strong=-40.5)))
    assert (found.paths, found.marking) == ("planned", False)
    assert not found.closed_loop


@pytest.mark.parametrize(
    ("over_ours", "neighbour", "k"),
    [
        (Change(-5, -8, -1), -46.0, STRONG.k),
        (Change(-5, -8, 0.5), -46.0, DEFAULT.k),
        (Change(-5, -8, -1), -35.0, DEFAULT.k),
    ],
    ids=["clearly better", "not clear", "worse next door"],
)
def test_parameters_are_tuned_where_that_is_clearly_better_and_nowhere_near_worse(
    over_ours: Change, neighbour: float, k: int
) -> None:
    best = Held("k=0.1", around(-46), over_ours, 0.5)
    near = cell(strong=-46, best=best)
    found = recommend(
        replace(FABRIC, rtt_ns=12_000), JOB, table(near, cell(rtt_ns=40_000, strong=neighbour))
    )
    assert found.confidence is Confidence.INTERPOLATED
    assert found.params.k == k


def test_between_cells_the_interval_is_as_wide_as_all_of_them() -> None:
    cells = (cell(), cell(rate=400 * G, step=4 * MIB, planned=-20, ours=-22))
    found = recommend(replace(FABRIC, rate_bps=200 * G), replace(JOB, step_bytes=2 * MIB),
                      table(*cells))  # fmt: skip
    assert found.confidence is Confidence.INTERPOLATED
    assert found.expected is not None
    assert -41 < found.expected.mean < -22
    assert (found.expected.low, found.expected.high) == (-42, -21)
    assert len(found.evidence) == 2


@pytest.mark.parametrize(
    ("fabric", "job", "what"),
    [
        (replace(FABRIC, rtt_ns=30_000), JOB, "RTT"),
        (replace(FABRIC, oversubscription=4.0), JOB, "oversubscription"),
        (FABRIC, replace(JOB, ring=16), "ring length"),
        (FABRIC, replace(JOB, step_bytes=3 * MIB), "step time"),
    ],
)
def test_outside_what_was_measured_marking_does_not_start(
    fabric: FabricFacts, job: JobFacts, what: str
) -> None:
    found = recommend(fabric, job, table(cell(), cell(rate=400 * G, step=4 * MIB)))
    assert found.confidence is Confidence.EXTRAPOLATED
    assert not found.marking
    assert found.closed_loop
    assert found.paths == "planned"
    assert found.params.k == DEFAULT.k
    assert any(what in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("fabric", "job", "why"),
    [
        (FABRIC, replace(JOB, preset="sigcomm15"), "preset 'sigcomm15' was not measured"),
        (FABRIC, replace(JOB, sender=UNKNOWN), "sender 'unknown' was not measured"),
        (FABRIC, replace(JOB, form="ring_2d"), "ring_2d"),
        (replace(FABRIC, tenants=True), JOB, "other tenants"),
        (replace(FABRIC, rtt_ns=10_000_000), JOB, "far away in RTT"),
    ],
)
def test_without_evidence_nothing_starts_but_the_loop(
    fabric: FabricFacts, job: JobFacts, why: str
) -> None:
    found = recommend(fabric, job, table(cell()))
    assert found.confidence is Confidence.NONE
    assert not found.marking
    assert found.closed_loop
    assert found.expected is None
    assert any(why in reason for reason in found.reasons)


def test_paths_of_an_unknown_preset_must_not_be_worse_under_any() -> None:
    unknown = replace(JOB, preset=UNKNOWN)
    good, bad = cell(), cell(preset="hpcc_run", planned=5)
    assert recommend(FABRIC, unknown, table(good)).paths == "planned"
    assert recommend(FABRIC, unknown, table(good, bad)).paths == "ecmp"


def test_a_sender_and_a_preset_that_were_not_measured_together() -> None:
    cells = table(cell(), cell(sender="qp_per_step", preset="hpcc_run"))
    found = recommend(FABRIC, replace(JOB, preset="hpcc_run"), cells)
    assert found.confidence is Confidence.NONE
    assert found.reasons[0] == "persistent senders were not measured with hpcc_run"


def test_a_ring_within_one_rack_needs_neither_paths_nor_marks() -> None:
    found = recommend(FABRIC, replace(JOB, crossing=False), table(cell()))
    assert (found.paths, found.marking, found.closed_loop) == ("ecmp", False, False)


def test_parameters_are_fitted_to_the_fabric_and_the_job() -> None:
    short = replace(JOB, step_bytes=64 * 4096)
    found = recommend(replace(FABRIC, red_q_min=8), short, table(cell(step=64 * 4096)))
    assert found.params.n_warmup == 4
    assert found.params.q_gate == 1
    assert packets_per_step(FABRIC, short) == 64
    assert sum("in place of" in reason for reason in found.reasons) == 2
    slow = replace(FABRIC, rate_bps=10**8)
    found = recommend(slow, JOB, table(cell(rate=10**8)))
    assert found.params.n_sample == 0


def test_rules_of_thumb_name_every_parameter_and_give_reasons() -> None:
    rules = {rule.parameter: rule for rule in rules_of_thumb(FABRIC, JOB)}
    assert list(rules) == ["k", "tau", "t_win", "q_gate", "n_sample", "n_warmup"]
    assert rules["t_win"].value == "32 µs"
    assert rules["q_gate"].value == "unknown"
    assert all(rule.rule and rule.why for rule in rules.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(FABRIC, rate_bps=0),
        lambda: replace(FABRIC, rtt_ns=0),
        lambda: replace(FABRIC, oversubscription=-1.0),
        lambda: replace(FABRIC, mtu=9),
        lambda: replace(JOB, step_bytes=0),
        lambda: replace(JOB, ring=1),
        lambda: recommend(FABRIC, JOB, table()),
    ],
)
def test_nonsense_is_refused(make: object) -> None:
    with pytest.raises(FactError, match=r"makes no sense|empty"):
        make()  # type: ignore[operator]


# --- Facts from a topology file ---------------------------------------------------------------


def with_delays(text: str) -> Topology:
    return parse_topology(text.replace('delay = "1us"\n', "").replace(
        'rate = "', 'delay = "1us"\nrate = "'))  # fmt: skip


def test_facts_of_a_topology(two_tier_text: str) -> None:
    topology = with_delays(two_tier_text)
    facts = fabric_facts(topology, mtu=1024)
    assert facts == FabricFacts(10 * G, 8000, facts.oversubscription, 1024, facts.red_q_min)
    assert facts.oversubscription == pytest.approx(20 / 80, rel=0.5)
    assert facts.red_q_min == 40
    assert fabric_facts(topology, ["h1", "h2"]).rtt_ns == 4000
    assert fabric_facts(topology, ["h1", "h3"]).rtt_ns == 8000
    assert fabric_facts(topology, rtt_ns=123).rtt_ns == 123
    assert not leaves_its_rack(topology, ["h1", "h2"])
    assert leaves_its_rack(topology, ["h1", "h2", "h3"])


def test_facts_that_a_topology_does_not_hold(two_tier_text: str) -> None:
    topology = with_delays(two_tier_text)
    with pytest.raises(FactError, match="'h9' is no host"):
        fabric_facts(topology, ["h1", "h9"])
    with pytest.raises(FactError, match="give the RTT"):
        fabric_facts(parse_topology(two_tier_text.replace('delay = "1us"\n', "")))


# --- The table that comes with the package ----------------------------------------------------


def shipped() -> dict[str, object]:
    text = (files("ringstep.fabric") / FILE).read_text()
    assert len(text) <= 60_000
    loaded: dict[str, object] = json.loads(text)
    return loaded


def test_the_shipped_table_is_measured_and_whole() -> None:
    made = shipped()["made"]
    assert isinstance(made, dict)
    assert made["seeds"] >= 5
    assert {"command", "ringstep", "ringstep_ns3", "ns3", "runs", "sweep"} <= made.keys()
    found = load_table()
    assert {"persistent", "qp_per_step"} <= set(found.senders)
    assert found.variants["ours"].params is not None
    for each in found.cells:
        assert each.changes.keys() == found.variants.keys() - {"baseline"}
        assert all(c.low <= c.mean <= c.high for c in each.changes.values())


def test_every_measured_place_is_found_again() -> None:
    found = load_table()
    for each in found.cells:
        site = each.site
        fabric = FabricFacts(site.rate_bps, site.rtt_ns, site.oversubscription, site.mtu,
                             tenants=bool(site.tenants))  # fmt: skip
        job = JobFacts(site.step_bytes, site.ring, each.sender, each.preset)
        got = recommend(fabric, job, found)
        assert got.confidence is Confidence.MEASURED
        assert got.evidence == (each,)


@given(
    rate=st.integers(10**9, 10**12),
    rtt_ns=st.integers(1000, 10**6),
    over=st.floats(1, 8),
    step=st.integers(1000, 10**9),
    ring=st.integers(2, 512),
    tenants=st.booleans(),
    sender=st.sampled_from(["persistent", "qp_per_step", UNKNOWN]),
    preset=st.sampled_from(["connectx", "hpcc_run", "dcqcn_paper", UNKNOWN]),
)
def test_what_starts_is_never_known_to_harm(
    rate: int, rtt_ns: int, over: float, step: int, ring: int, tenants: bool, sender: str,
    preset: str,
) -> None:  # fmt: skip
    fabric = FabricFacts(rate, rtt_ns, over, tenants=tenants)
    found: Recommendation = recommend(fabric, JobFacts(step, ring, sender, preset), load_table())
    if found.marking:
        assert found.confidence in (Confidence.MEASURED, Confidence.INTERPOLATED)
        assert found.marking_harm is not None
        assert found.marking_harm <= HARM_LIMIT
    if found.expected is not None:
        assert found.expected.mean <= 0
        assert found.expected.high <= HARM_LIMIT
    if found.confidence in (Confidence.EXTRAPOLATED, Confidence.NONE):
        assert found.closed_loop
    assert found.reasons


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "Expecting"), ("{}", "'variants' is missing"), ('{"variants": [{}]}', "'name'")],
)
def test_a_broken_table_says_how_to_make_it(text: str, why: str) -> None:
    with pytest.raises(TableError, match=r"bench/guidance\.py") as caught:
        parse_table(text)
    assert why in str(caught.value)
