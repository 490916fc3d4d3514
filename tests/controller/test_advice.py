"""``ringstep job recommend``, as people and scripts use it; no controller runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ringstep.controller.cli import app
from ringstep.fabric.guidance import load_table

FABRIC = """
[[switch]]
name = "tor1"
device_id = 1
role = "tor"
mac = "02:00:00:00:01:00"

[[switch]]
name = "tor2"
device_id = 2
role = "tor"
mac = "02:00:00:00:02:00"

[[switch]]
name = "spine1"
device_id = 3
role = "spine"
mac = "02:00:00:00:03:00"

[[host]]
name = "h1"
ip = "10.0.0.1"
mac = "02:00:00:00:00:01"

[[host]]
name = "h2"
ip = "10.0.0.2"
mac = "02:00:00:00:00:02"

[[host]]
name = "h3"
ip = "10.0.1.3"
mac = "02:00:00:00:00:03"
"""
LINKS = (("tor1:1", "h1"), ("tor1:2", "h2"), ("tor2:1", "h3"), ("tor1:9", "spine1:1"),
         ("tor2:9", "spine1:2"))  # fmt: skip


@pytest.fixture
def topology(tmp_path: Path) -> str:
    path = tmp_path / "fabric.toml"
    links = "".join(
        f'[[link]]\na = "{a}"\nb = "{b}"\nrate = "100G"\ndelay = "1us"\n' for a, b in LINKS
    )
    path.write_text(FABRIC + links)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["job", "recommend", *arguments])


def read(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def measured() -> list[str]:
    """Facts of a place that was measured."""
    cell = load_table().cells[0]
    site = cell.site
    return [
        "--rate", str(site.rate_bps), "--rtt", f"{site.rtt_ns}ns",
        "--oversubscription", f"{site.oversubscription:g}:1", "--chunk", str(site.step_bytes),
        "--ranks", str(site.ring), "--mtu", str(site.mtu), "--sender", cell.sender,
        "--preset", cell.preset,
    ]  # fmt: skip


def test_json_has_stable_keys() -> None:
    found = read(*measured())
    assert sorted(found) == [
        "closed_loop", "confidence", "evidence", "expected_cct_change_percent", "fabric", "job",
        "marking", "marking_harm_percent", "parameters", "paths", "reasons", "register_flags",
        "rules_of_thumb",
    ]  # fmt: skip
    assert found["confidence"] == "measured"
    assert sorted(found["parameters"]) == [
        "k", "n_sample", "n_warmup", "q_gate", "t_win_us", "tau",
    ]  # fmt: skip
    assert found["expected_cct_change_percent"].keys() == {"mean", "low", "high"}


def test_people_get_a_table_the_reasons_and_the_command_to_go_on_with() -> None:
    result = run(*measured())
    assert result.exit_code == 0, result.output
    for text in ("paths", "closed loop", "measured at this point", "rule of thumb",
                 "ringstep job register --name NAME"):  # fmt: skip
        assert text in result.stdout


def test_register_takes_the_flags_that_are_recommended() -> None:
    flags = read(*measured())["register_flags"]
    nowhere = ("--name", "x", "--ring", "h1,h2", "--controller", "127.0.0.1:1")
    result = CliRunner().invoke(app, ["job", "register", *nowhere, *flags])
    assert result.exit_code == 1, result.output
    assert "127.0.0.1:1" in result.output


def test_topology_file_gives_rate_rtt_oversubscription_and_red(topology: str) -> None:
    found = read("--topology", topology, "--ring", "h1,h3", "--chunk", "1MiB")
    assert found["fabric"] == {
        "rate_bps": 100 * 10**9,
        "rtt_ns": 8000,
        "oversubscription": 2.0,
        "mtu": 4096,
        "red_q_min": 40,
        "tenants": False,
    }
    assert found["job"]["ring"] == 2
    assert found["confidence"] == "none"
    assert found["register_flags"][-2:] == ["--marking", "off"]
    given = read("--topology", topology, "--ranks", "64", "--chunk", "1MiB", "--rtt", "12us",
                 "--rate", "25G", "--tenants")  # fmt: skip
    assert given["fabric"]["rtt_ns"] == 12_000
    assert given["fabric"]["rate_bps"] == 25 * 10**9
    assert given["fabric"]["tenants"]


def test_a_ring_within_a_rack_is_left_alone(topology: str) -> None:
    found = read("--topology", topology, "--ring", "h1,h2", "--chunk", "1MiB")
    assert (found["paths"], found["marking"], found["closed_loop"]) == ("ecmp", False, False)


FACTS = ("--rate", "100G", "--rtt", "8us", "--chunk", "1MiB", "--ranks", "8")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--chunk", "1MiB", "--ranks", "8"), "give --rate 100G --rtt 8us"),
        ((*FACTS[:4], "--chunk", "1MiB"), "give --ranks 64"),
        ((*FACTS, "--chunk", "lots"), "--chunk: 'lots' is not a size"),
        ((*FACTS, "--chunk", "0"), "0 bytes per step"),
        ((*FACTS, "--rate", "fast"), "--rate: 'fast' is not a rate"),
        ((*FACTS, "--rate", "1k"), "rate 1000 bit/s makes no sense"),
        ((*FACTS, "--rtt", "soon"), "--rtt: 'soon' is not a delay"),
        ((*FACTS, "--rtt", "0"), "RTT 0 ns makes no sense"),
        ((*FACTS, "--oversubscription", "1:0"), "write 2:1 or 2"),
        ((*FACTS, "--mtu", "1"), "MTU 1 makes no sense"),
        ((*FACTS, "--ring", "h1,h2"), "give --topology"),
        ((*FACTS, "--sender", "a b"), "measured are persistent"),
        ((*FACTS, "--topology", "/nowhere.toml"), "/nowhere.toml"),
    ],
)
def test_nonsense_ends_with_status_2_and_says_what_would_be_right(
    arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert text in result.output
    assert result.stdout == ""


@pytest.mark.parametrize("ring", ["h1", "h1,h1", "h1,h9"])
def test_a_ring_that_is_none_is_refused(topology: str, ring: str) -> None:
    result = run("--topology", topology, "--ring", ring, "--chunk", "1MiB")
    assert result.exit_code == 2
    assert "error: " in result.output


def test_ranks_must_agree_with_the_ring(topology: str) -> None:
    result = run("--topology", topology, "--ring", "h1,h3", "--ranks", "5", "--chunk", "1MiB")
    assert result.exit_code == 2
    assert "--ring names 2 hosts" in result.output


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "ringstep job recommend --rate 100G" in result.stdout
