"""What is committed under p4src/build is what p4c made of the committed sources."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from committed_program import STATE
from finsy.proto import p4i
from google.protobuf import text_format

from ringstep.protocol.limits import MAX_BLOCKS, MAX_JOBS

P4SRC = Path(__file__).resolve().parents[2] / "p4src"
MANIFEST = json.loads((P4SRC / "build" / "MANIFEST.json").read_text())
HINT = "run `make p4` (or `make p4-tofino2`) where p4c is installed"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("target", MANIFEST)
def test_sources_are_those_that_were_compiled(target: str) -> None:
    for name, recorded in MANIFEST[target]["sources"].items():
        assert sha256(P4SRC / name) == recorded, f"{name}: {HINT}"


@pytest.mark.parametrize("target", MANIFEST)
def test_artefacts_are_those_that_were_written(target: str) -> None:
    for name, recorded in MANIFEST[target]["artefacts"].items():
        assert sha256(P4SRC / "build" / name) == recorded, f"{name}: {HINT}"


@pytest.mark.parametrize(("target", "other"), [("v1model", "t2na"), ("tofino2", "v1model")])
def test_every_source_is_recorded(target: str, other: str) -> None:
    if target == "tofino2" and target not in MANIFEST:
        pytest.skip(
            "the Tofino 2 program has not been through p4c's Tofino back end; where there is one, "
            "P4C_TOFINO=p4c-barefoot make p4-tofino2 writes the report and this record"
        )
    sources = {
        path.relative_to(P4SRC).as_posix()
        for path in P4SRC.rglob("*.p4")
        if "build" not in path.relative_to(P4SRC).parts
    }
    wanted = {n for n in sources if other not in Path(n).parts and f"_{other}." not in n}
    assert set(MANIFEST[target]["sources"]) == wanted


@pytest.mark.parametrize("variant", ["whole", "marker_only"])
def test_tofino_2_has_room_for_all_jobs_and_blocks(variant: str) -> None:
    report = json.loads((P4SRC / "build" / "tofino2" / "report.json").read_text())[variant]
    assert (report["jobs"], report["blocks"]) == (MAX_JOBS + 1, MAX_BLOCKS)
    for what in ("stages", "sram", "tcam", "salu", "phv", "hash_bits"):
        assert 0 < report[what]["used"] <= report[what]["available"], what


def test_every_artefact_is_recorded() -> None:
    build = P4SRC / "build"
    artefacts = {p.relative_to(build).as_posix() for p in build.rglob("*") if p.is_file()}
    recorded = {name for record in MANIFEST.values() for name in record["artefacts"]}
    assert recorded | {"MANIFEST.json"} == artefacts


@pytest.mark.parametrize("target", MANIFEST)
def test_every_include_is_a_recorded_source(target: str) -> None:
    sources = MANIFEST[target]["sources"]
    for name in sources:
        for included in re.findall(r'^#include "(.+)"', (P4SRC / name).read_text(), re.MULTILINE):
            path = (P4SRC / name).parent / included
            assert path.resolve().relative_to(P4SRC).as_posix() in sources, (name, path)


@pytest.mark.parametrize("target", MANIFEST)
def test_compiler_version_is_recorded(target: str) -> None:
    assert re.match(r"p4c \d+\.\d+", MANIFEST[target]["compiler"])


@pytest.mark.parametrize("target", MANIFEST)
def test_artefacts_are_found_through_the_package(target: str) -> None:
    build = importlib.resources.files("ringstep") / "p4build"
    for name in MANIFEST[target]["artefacts"]:
        assert (build / name).read_bytes() == (P4SRC / "build" / name).read_bytes()


def test_check_says_what_differs(tmp_path: Path) -> None:
    copy = tmp_path / "p4src"
    shutil.copytree(P4SRC, copy)
    command = [sys.executable, str(copy / "compile.py"), "--check"]
    whole = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "match MANIFEST.json" in whole.stdout
    with (copy / "include" / "headers.p4").open("a") as file:
        file.write("// another\n")
    (copy / "build" / "ringstep_v1model.json").unlink()
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    assert broken.returncode == 1
    for target in MANIFEST:
        assert f"{target}, sources: include/headers.p4 differs" in broken.stdout
    assert "v1model, artefacts: ringstep_v1model.json differs" in broken.stdout


def p4info() -> p4i.P4Info:
    text = (P4SRC / "build" / "ringstep_v1model.p4info.txtpb").read_text()
    return text_format.Parse(text, p4i.P4Info())


def test_artefacts_hold_no_path_of_the_machine_that_made_them() -> None:
    for name in (n for record in MANIFEST.values() for n in record["artefacts"]):
        text = (P4SRC / "build" / name).read_text()
        assert not re.search(r"/(home|root|tmp|work|build|usr/local)/", text), name


def test_names_that_operators_and_controllers_rely_on() -> None:
    info = p4info()
    tables = {t.preamble.alias: [(f.name, f.bitwidth) for f in t.match_fields] for t in info.tables}
    assert tables == {
        "switch_config": [],
        "route_v4": [("dst_addr", 32)],
        "route_v6": [("dst_addr", 128)],
        "nexthop": [("nexthop_id", 16)],
        "planned_path": [("path_id", 16)],
        "job_by_dst_qp": [("dst_addr", 128), ("dst_qp", 24)],
        "job_by_pair": [("src_addr", 128), ("dst_addr", 128)],
        "job_by_tag": [("sport", 16), ("resv6a", 6), ("dscp", 6)],
        "job_params": [("job", 14)],
        "block_map": [("job", 14), ("egress_port", 9)],
        "red": [("egress_port", 9)],
    }
    counters = {c.preamble.alias: c.size for c in info.counters}
    assert counters | {"ingress_drops": 4} == {
        "job_data": 16384, "job_marks": 16384, "job_red_marks": 16384, "job_corrections": 16384,
        "job_advances": 16384, "ingress_drops": 4, "port_spared": 512,
    }  # fmt: skip
    registers = {r.preamble.alias: r.size for r in info.registers}
    assert registers == dict.fromkeys(
        (*STATE, "anchors"),
        65536,
    ) | {"mark_next": 512}
    assert [(p.preamble.alias, p.with_selector) for p in info.action_profiles] == [("ecmp", True)]
    headers = {
        h.preamble.name: [(m.name, m.bitwidth) for m in h.metadata]
        for h in info.controller_packet_metadata
    }
    assert headers == {
        "packet_out": [("egress_port", 9), ("op", 7)],
        "packet_in": [("ingress_port", 9), ("op", 7)],
    }


def test_marker_state_is_read_and_written_in_one_action_each() -> None:
    # BMv2 locks a register for one action; a read in one and a write in another would race
    # between its egress threads.
    program = json.loads((P4SRC / "build" / "ringstep_v1model.json").read_text())
    touching: dict[str, set[str]] = {}
    for action in program["actions"]:
        for primitive in action["primitives"]:
            if primitive["op"] in ("register_read", "register_write"):
                at = 1 if primitive["op"] == "register_read" else 0
                name = primitive["parameters"][at]["value"].split(".")[-1]
                touching.setdefault(name, set()).add(action["name"].split(".")[-1])
    anchors = touching.pop("anchors")
    assert anchors == {"anchor_progress", "read_anchors"}
    assert touching.pop("mark_next") == {"space"}
    assert set(map(frozenset, touching.values())) == {frozenset({"follow", "read_block"})}
