"""What the switch does not execute is refused when the program is loaded, by name and place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bmv2_json import (
    ProgramBuilder,
    assign,
    call,
    extract,
    field,
    goto,
    header,
    key,
    meter,
    num,
    one,
    op,
    register,
    scratch_program,
)
from finsy.proto import p4i
from google.protobuf import text_format

from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct

BYTES = {"a": 8, "b": 8}
A = field("h", "a")


def in_action(*primitives: Any) -> ProgramBuilder:
    program = scratch_program(BYTES)
    program.do("ingress", list(primitives))
    return program


@pytest.mark.parametrize(
    ("primitive", "construct"),
    [
        (call("_my_extern_method", num(1)), "_my_extern_method"),
        (assign(A, op("last_stack_index", None, num(1))), "'last_stack_index'"),
        (assign(A, {"type": "register", "value": ["r", num(0)]}), "type 'register'"),
        (assign(A, op("two_comp_mod", A, A)), "two_comp_mod to a computed width"),
    ],
)
def test_in_an_action(primitive: dict[str, Any], construct: str) -> None:
    primitive["source_info"] = {"filename": "x.p4", "line": 12}
    with pytest.raises(UnsupportedConstruct, match=construct) as refusal:
        in_action(primitive).switch()
    assert "is not supported (" in str(refusal.value)
    assert "x.p4:12" in str(refusal.value)


@pytest.mark.parametrize(
    ("section", "construct"),
    [
        ("header_stacks", "header stack 'thing'"),
        ("header_unions", "header union 'thing'"),
        ("extern_instances", "extern instance 'thing'"),
        ("parse_vsets", "parser value set 'thing'"),
    ],
)
def test_whole_sections(section: str, construct: str) -> None:
    program = scratch_program(BYTES)
    program.extra = {section: [{"name": "thing", "id": 0}]}
    with pytest.raises(UnsupportedConstruct, match=construct):
        program.switch()


def test_varbit() -> None:
    program = scratch_program(BYTES)
    program.header_types["h_t"].append(["options", "*"])
    with pytest.raises(UnsupportedConstruct, match=r"varbit.*h_t.*options"):
        program.switch()


@pytest.mark.parametrize(
    ("parser_op", "construct"),
    [
        ({"op": "extract_VL", "parameters": []}, "extract_VL"),
        ({"op": "extract", "parameters": [{"type": "stack", "value": "s"}]}, "extract to a stack"),
        ({"op": "primitive", "parameters": [call("exit")]}, "exit in the parser"),
    ],
)
def test_in_the_parser(parser_op: dict[str, Any], construct: str) -> None:
    program = scratch_program(BYTES)
    program.states[0]["parser_ops"].append(parser_op)
    with pytest.raises(UnsupportedConstruct, match=rf"{construct}.*parse_states\[start\]"):
        program.switch()


def test_value_set_transition() -> None:
    program = scratch_program(BYTES)
    program.states[0]["transition_key"] = [A]
    program.states[0]["transitions"] = [
        {"type": "parse_vset", "value": "pvs", "mask": None, "next_state": None}
    ]
    with pytest.raises(UnsupportedConstruct, match="transition of type 'parse_vset'"):
        program.switch()


def test_in_a_table() -> None:
    program = scratch_program(BYTES)
    action = program.action("nop", [])
    program.table("ingress", "t", [key("exact", A)], [action], type="exotic")
    with pytest.raises(UnsupportedConstruct, match="table type 'exotic'"):
        program.switch()


def test_a_meter_that_is_not_two_rates_three_colours() -> None:
    program = scratch_program(BYTES)
    program.meters = [{"name": "m", "id": 0, "rate_count": 3, "type": "bytes", "size": 1}]
    with pytest.raises(UnsupportedConstruct, match="a meter of 3 rates"):
        program.switch()


def test_a_list_of_more_than_fields() -> None:
    program = scratch_program(BYTES)
    program.field_list(num(1))
    with pytest.raises(UnsupportedConstruct, match="list element of type 'hexstr'"):
        program.switch()


def test_a_copy_that_keeps_header_fields() -> None:
    program = in_action(call("resubmit", num(1)))
    program.field_list(A)
    with pytest.raises(UnsupportedConstruct, match=r"header field 'h.a' kept by a copy"):
        program.switch()


@pytest.mark.parametrize("algorithm", ["crc16_custom", "crc32_custom", "toeplitz", "xxh64"])
def test_hash_algorithms(algorithm: str) -> None:
    program = in_action(
        call(
            "modify_field_with_hash_based_offset",
            A,
            num(0),
            {"type": "calculation", "value": "calc"},
            num(4),
        )
    )
    program.calculations = [{"name": "calc", "id": 0, "algo": algorithm, "input": [A]}]
    with pytest.raises(UnsupportedConstruct, match=f"hash algorithm '{algorithm}'"):
        program.switch()


def test_match_kinds() -> None:
    program = scratch_program(BYTES)
    program.table("ingress", "t", [key("valid", A)], [program.action("nop", [])])
    with pytest.raises(UnsupportedConstruct, match="match type 'valid'"):
        program.switch()


def test_a_loop_in_the_control_flow() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [])
    table = program.tables["ingress"][0]
    table["base_default_next"] = table["name"]
    table["next_tables"] = dict.fromkeys(table["next_tables"], table["name"])
    with pytest.raises(UnsupportedConstruct, match="a loop through 'tbl_act_0'"):
        program.switch()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "must be an object"),
        ("{}", "version None"),
        ('{"__meta__": {"version": [3, 0]}}', r"version \[3, 0\].*is not 2.x"),
        ('{"__meta__": {"version": [2, 0]}}', "0 parsers instead of one"),
        ('{"__meta__": {"version": [2, 0]}, "actions": 5}', "malformed"),
    ],
)
def test_broken_json(text: str, reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        compile_pipeline(p4i.P4Info(), text)


def test_nesting_beyond_python_is_a_refusal_not_a_crash() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [assign(A, op("^", A, num(1)))])
    text = program.text()
    # Put in as text: json.dumps cannot nest that deep either.
    nest = '{"type":"expression","value":{"op":"~","left":null,"right":' * 3000
    nest += json.dumps(A) + "}}" * 3000
    place = json.dumps({"type": "hexstr", "value": "0x1"})
    assert place in text
    with pytest.raises(PipelineError, match="nests too deep"):
        compile_pipeline(p4i.P4Info(), text.replace(place, nest))


def test_references_to_nothing_are_named() -> None:
    with pytest.raises(PipelineError, match="header 'h' has no field 'z'"):
        in_action(assign(field("h", "z"), num(1))).switch()
    with pytest.raises(PipelineError, match="there is no header 'q'"):
        in_action(call("add_header", header("q"))).switch()
    for primitive, kind in (
        (call("clone_egress_pkt_to_egress", num(1), num(0)), "clone_egress_pkt_to_egress.*field_"),
        (call("recirculate", num(1)), "recirculate: there is no field_list '0x1'"),
        (call("generate_digest", num(1), num(1)), "generate_digest: there is no learn_list"),
        (call("execute_meter", meter("m"), num(1), A), "there is no meter_array 'm'"),
        (call("mark_to_drop", header("h")), "mark_to_drop: 'h' has no egress_spec"),
    ):
        with pytest.raises(PipelineError, match=kind):
            in_action(primitive).switch()
    with pytest.raises(PipelineError, match="there is no register_array 'r'"):
        in_action(call("register_read", A, register("r"), num(0))).switch()
    program = scratch_program(BYTES)
    program.do("ingress", [])
    program.tables["ingress"][0]["base_default_next"] = "nowhere"
    with pytest.raises(PipelineError, match="'nowhere', which does not exist"):
        program.switch()
    program = scratch_program(BYTES)
    nop = program.action("nop", [])
    program.table("ingress", "t", [key("exact", A)], [nop], direct_meters="m")
    with pytest.raises(PipelineError, match="no direct meter 'm' for this table"):
        program.switch()


def test_every_truncation_of_a_program_is_refused_politely() -> None:
    program = scratch_program(BYTES)
    program.do("ingress", [assign(A, num(1))])
    document = program.document()
    for section in document:
        broken = {k: v for k, v in document.items() if k != section}
        try:
            compile_pipeline(p4i.P4Info(), json.dumps(broken))
        except PipelineError:
            continue


def described(program: ProgramBuilder, info: str) -> None:
    compile_pipeline(text_format.Parse(info, p4i.P4Info()), program.text())


TABLE_INFO = """
tables {{ preamble {{ id: 1 name: "{name}" }}
  match_fields {{ id: 1 name: "h.a" bitwidth: {width} match_type: {kind} }} }}
"""


@pytest.mark.parametrize(
    ("name", "width", "kind", "reason"),
    [
        ("gone", 8, "EXACT", "P4Info has table 'gone', the BMv2 JSON has not"),
        ("t", 9, "EXACT", r"table 't', match field 'h.a': P4Info has exact<9>.*exact<8>"),
        ("t", 8, "TERNARY", r"P4Info has ternary<8>, the BMv2 JSON exact<8>"),
    ],
)
def test_p4info_that_does_not_fit(name: str, width: int, kind: str, reason: str) -> None:
    program = scratch_program(BYTES)
    program.table("ingress", "t", [key("exact", A)], [program.action("nop", [])])
    described(program, TABLE_INFO.format(name="t", width=8, kind="EXACT"))
    with pytest.raises(PipelineError, match=reason):
        described(program, TABLE_INFO.format(name=name, width=width, kind=kind))


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ('counters { preamble { id: 1 name: "c" } }', "P4Info has counter 'c'"),
        ('meters { preamble { id: 1 name: "m" } }', "P4Info has meter 'm'"),
        ('direct_meters { preamble { id: 1 name: "m" } }', "P4Info has direct meter 'm'"),
        ('digests { preamble { id: 1 name: "d" } }', "P4Info has digests d, the BMv2 JSON none"),
        ('direct_counters { preamble { id: 1 name: "d" } }', "P4Info has direct counter 'd'"),
        ('registers { preamble { id: 1 name: "r" } }', "P4Info has register 'r'"),
        (
            'action_profiles { preamble { id: 1 name: "p" } table_ids: 5 }',
            "P4Info has action profile 'p'",
        ),
        (
            'actions { preamble { id: 1 name: "put" } params { id: 1 name: "v" bitwidth: 9 } }',
            r"action 'put': P4Info has parameters \[\('v', 9\)\]",
        ),
    ],
)
def test_p4info_names_and_widths(info: str, reason: str) -> None:
    program = scratch_program(BYTES)
    program.action("put", [], {"v": 8})
    with pytest.raises(PipelineError, match=reason):
        described(program, info)


def test_a_refused_program_leaves_the_running_one_untouched() -> None:
    good = scratch_program(BYTES)
    good.do("ingress", [assign(A, num(1))])
    switch = Switch()
    switch.load("", good.text())
    running = switch.pipeline
    with pytest.raises(PipelineError):
        switch.load("", in_action(call("_my_extern_method", num(1))).text())
    with pytest.raises(PipelineError, match="not a text-format P4Info"):
        switch.load("tables {", good.text())
    assert switch.pipeline is running
    assert one(switch, b"\x00\x00")[1] == b"\x01\x00"


def test_select_without_default_and_unknown_start() -> None:
    program = scratch_program(BYTES)
    program.header("g", [["v", 8]])
    program.states[0]["transition_key"] = [A]
    program.states[0]["transitions"] = [goto("g", 1)]
    program.state("g", [extract("g")])
    assert one(program.switch(), b"\x05\x00xyz")[1] == b"\x05\x00xyz"
    program.start = "nowhere"
    with pytest.raises(PipelineError, match="'nowhere', which does not exist"):
        program.switch()
