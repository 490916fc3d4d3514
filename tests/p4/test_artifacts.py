"""What is committed under p4src/build is what p4c made of the committed sources."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import re
from pathlib import Path

from committed_program import STATE
from finsy.proto import p4i
from google.protobuf import text_format

P4SRC = Path(__file__).resolve().parents[2] / "p4src"
MANIFEST = json.loads((P4SRC / "build" / "MANIFEST.json").read_text())
HINT = "run `make p4` where p4c is installed"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_sources_are_those_that_were_compiled() -> None:
    there = {
        path.relative_to(P4SRC).as_posix(): sha256(path)
        for path in P4SRC.rglob("*.p4")
        if "build" not in path.relative_to(P4SRC).parts
    }
    assert there == MANIFEST["sources"], HINT


def test_artefacts_are_those_that_were_written() -> None:
    names = {"ringstep_v1model.json", "ringstep_v1model.p4info.txtpb"}
    assert names <= MANIFEST["artefacts"].keys()
    there = {name: sha256(P4SRC / "build" / name) for name in MANIFEST["artefacts"]}
    assert there == MANIFEST["artefacts"], HINT


def test_every_include_is_a_recorded_source() -> None:
    for name in MANIFEST["sources"]:
        for included in re.findall(r'^#include "(.+)"', (P4SRC / name).read_text(), re.MULTILINE):
            path = (P4SRC / name).parent / included
            assert path.resolve().relative_to(P4SRC).as_posix() in MANIFEST["sources"], (name, path)


def test_compiler_version_is_recorded() -> None:
    assert re.match(r"p4c \d+\.\d+", MANIFEST["compiler"])


def test_artefacts_are_found_through_the_package() -> None:
    build = importlib.resources.files("ringstep") / "p4build"
    for name in MANIFEST["artefacts"]:
        assert (build / name).read_bytes() == (P4SRC / "build" / name).read_bytes()


def p4info() -> p4i.P4Info:
    text = (P4SRC / "build" / "ringstep_v1model.p4info.txtpb").read_text()
    return text_format.Parse(text, p4i.P4Info())


def test_artefacts_hold_no_path_of_the_machine_that_made_them() -> None:
    for name in MANIFEST["artefacts"]:
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
        "job_advances": 16384, "ingress_drops": 4,
    }  # fmt: skip
    registers = {r.preamble.alias: r.size for r in info.registers}
    assert registers == dict.fromkeys(
        (*STATE, "anchors"),
        65536,
    )
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
    assert set(map(frozenset, touching.values())) == {frozenset({"follow", "read_block"})}
