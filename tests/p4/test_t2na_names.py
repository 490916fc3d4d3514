"""Tables, actions and counters of the Tofino 2 program are those of the v1model program.

So what writes the one's tables by name writes the other's.
"""

from __future__ import annotations

import pytest
from finsy.proto import p4i
from google.protobuf import text_format
from p4_source import Node
from t2na_program import Bench
from test_artifacts import P4SRC

KINDS = {
    p4i.MatchField.EXACT: "exact", p4i.MatchField.LPM: "lpm", p4i.MatchField.TERNARY: "ternary",
}  # fmt: skip


@pytest.fixture(scope="module")
def info() -> p4i.P4Info:
    text = (P4SRC / "build" / "ringstep_v1model.p4info.txtpb").read_text()
    return text_format.Parse(text, p4i.P4Info())


def short(name: str) -> str:
    return name.split(".")[-1]


def test_every_table_with_its_keys_and_actions(info: p4i.P4Info) -> None:
    actions = {a.preamble.id: a for a in info.actions}
    program = Bench().program
    for table in info.tables:
        (found,) = [t for name, t in program.tables.items() if name == table.preamble.name]
        keys = {
            name: (kind, width) for name, (kind, (width, _)) in found.keys.items()
            if kind != "selector"
        }  # fmt: skip
        assert keys == {f.name: (KINDS[f.match_type], f.bitwidth) for f in table.match_fields}
        theirs = {}
        for ref in table.action_refs:
            action = actions[ref.id]
            theirs[short(action.preamble.name)] = {p.name: p.bitwidth for p in action.params}
        ours = {
            name: {param: cell.type[0] for param, cell in action.params.items()}
            for name, action in found.actions.items()
        }
        # p4c gives v1model's nexthop, which has a profile and no default, one that does nothing.
        ours.pop("NoAction", None)
        theirs.pop("NoAction", None)
        assert ours == theirs, table.preamble.name
        assert not found.const


def instances(program: object, control: str, kind: str) -> dict[str, Node]:
    declared = program.declared[control][4]  # type: ignore[attr-defined]
    return {n[4]: n for n in declared if n[0] == "instance" and n[2][2] == kind}


def test_every_counter_with_its_size(info: p4i.P4Info) -> None:
    program = Bench().program
    sizes = {}
    for control in ("Marker", "RingstepIngress", "Spacing"):
        for name, node in instances(program, control, "Counter").items():
            sizes[name] = program.expression(node[3][0], program.top, None)[1]()
    assert sizes == {short(c.preamble.name): c.size for c in info.counters}
    assert set(program.counters) == {c.preamble.name for c in info.counters}


def test_table_sizes(info: p4i.P4Info) -> None:
    program = Bench().program
    for table in info.tables:
        control = {"classify": "Classify", "routing": "Routing", "red": "Red", "marker": "Marker"}
        where = control[table.preamble.name.split(".")[-2]]
        (node,) = [
            n for n in program.declared[where][4]
            if n[0] == "table" and n[2] == short(table.preamble.name)
        ]  # fmt: skip
        if "size" in node[3]:
            size = program.expression(node[3]["size"], program.top, None)[1]()
            assert size == table.size, table.preamble.name


def test_the_action_profile(info: p4i.P4Info) -> None:
    (profile,) = info.action_profiles
    found = instances(Bench().program, "Routing", "ActionProfile")
    assert found.keys() == {short(profile.preamble.name)}
