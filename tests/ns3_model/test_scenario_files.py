"""Reading, layering, writing back and naming scenarios."""

import pytest

pytest.importorskip(
    "ringstep_ns3._core",
    reason="the simulator is not built; pip install ./ns3-model",
    exc_type=ImportError,
)
from ringstep_ns3 import Scenario, prepare, preset_names
from ringstep_ns3.units import format_size, format_time, parse_bytes, parse_oversubscription


def test_an_effective_configuration_reads_back_as_the_same_scenario(ring: str) -> None:
    text = ring + (
        '[switch]\nbuffer = "unlimited"\nmarking = "marker"\n[marker]\ntau = "1/8"\n'
        'q_gate = "off"\n'
        '[cc.dcqcn]\nbyte_counter = "off"\nmin_rate = "50M"\n[output]\nalpha = "100us"\n'
        '[[background]]\nkind = "poisson"\nload = 0.2\nstop = "1ms"\n'
    )
    scenario = Scenario.parse(text)
    again = Scenario.parse(scenario.to_toml())
    assert again == scenario
    assert again.content_hash(7) == scenario.content_hash(7)
    assert again.to_toml() == scenario.to_toml()


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_whole_scenario(name: str) -> None:
    prepared = prepare(Scenario.parse(f'extends = "{name}"\n'))
    assert len(prepared.graph.hosts) == 32
    assert prepared.jobs[0].steps == 62


def test_a_file_goes_before_what_it_extends_and_settings_before_both(tmp_path, ring: str) -> None:
    (tmp_path / "base.toml").write_text(ring + '[cc]\npreset = "connectx"\n[marker]\nk = 0.5\n')
    (tmp_path / "own.toml").write_text('extends = "base.toml"\n[cc]\npreset = "hpcc_config"\n')
    scenario = Scenario.load(tmp_path / "own.toml", ["marker.k=0.25", "job.passes=3"])
    assert (scenario.cc.preset, scenario.marker.k) == ("hpcc_config", 0.25)
    assert scenario.job[0].passes == 3
    assert scenario.name == "own"


def test_the_hash_is_that_of_what_is_simulated(ring: str, tmp_path) -> None:
    scenario = Scenario.parse(ring)
    same = Scenario.parse(f'name = "other"\n{ring}\n[cc]\npreset = "hpcc_run"\n')
    assert scenario.content_hash(1) == same.content_hash(1)
    assert scenario.content_hash(1) != scenario.content_hash(2)
    assert scenario.content_hash(1) != scenario.setting({"job.passes": 2}).content_hash(1)


def test_the_hash_follows_the_content_of_files(leaf_spine: str, tmp_path) -> None:
    text = leaf_spine + '[[job]]\n[job.workload]\nsource = "astra:w.txt"\n'
    file = tmp_path / "w.txt"
    file.write_text("MICRO\n1\nl -1 0 NONE 0 0 NONE 0 0 ALLREDUCE 1000 0\n")
    first = Scenario.parse(text, folder=tmp_path).content_hash(1)
    file.write_text("MICRO\n1\nl -1 0 NONE 0 0 NONE 0 0 ALLREDUCE 2000 0\n")
    assert Scenario.parse(text, folder=tmp_path).content_hash(1) != first


@pytest.mark.parametrize("size", [1, 999, 1000, 1037, 50_000, 1 << 20, 3 << 30, 10**12])
def test_sizes_are_written_so_that_they_read_back(size: int) -> None:
    assert parse_bytes(format_size(size)) == size


def test_times_and_ratios_are_written_as_people_write_them() -> None:
    assert [format_time(t) for t in (0, 1, 1500, 100_000, 2_500_000)] == [
        "0ns", "1ns", "1.5us", "100us", "2.5ms",
    ]  # fmt: skip
    assert parse_oversubscription("1:4") == parse_oversubscription("4:1") == 4
