"""Large fabrics from a scenario: they load, run, and do not grow with time."""

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, run


def test_4096_hosts_and_12288_queue_pairs_load_from_a_scenario() -> None:
    text = """
[fabric]
kind = "leaf_spine"
leaves = 64
spines = 32
hosts_per_leaf = 64
rate = "10G"
[output]
sample = "off"
queue_bin = "off"
"""
    text += '[[background]]\nkind = "long"\nsize = "3KB"\n' * 3
    results = run(Scenario.parse(text))
    assert results.complete
    assert results.summary["fabric"]["hosts"] == 4096
    assert results.summary["background"]["fct_ns"]["count"] == 3 * 4096


def test_packets_alive_do_not_grow_with_passes(ring: str) -> None:
    base = Scenario.parse(ring).setting({"job.chunk": "16KiB"})
    peaks = [
        run(base.setting({"job.passes": passes})).summary["totals"]["peak_packets"]
        for passes in (4, 64)
    ]
    assert peaks[1] < 1.5 * peaks[0]
