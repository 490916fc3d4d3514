"""Jumps inside an action become if/else: same results, whatever the nesting."""

from __future__ import annotations

from typing import Any

import pytest
from bmv2_json import (
    Json,
    assign,
    field,
    jump,
    jump_if_zero,
    num,
    one,
    op,
    pack,
    scratch_program,
    unpack,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.softswitch.errors import UnsupportedConstruct

WIDTHS = {"a": 8, "b": 8, "c": 8, "trace": 32}
Tree = list[Any]


@st.composite
def trees(draw: st.DrawFn, depth: int = 4) -> Tree:
    """A block: step numbers, and (tested bit, then, else) tuples."""
    block: Tree = []
    for _ in range(draw(st.integers(0, 4))):
        if depth and draw(st.booleans()):
            test = (draw(st.sampled_from("abc")), draw(st.integers(0, 3)))
            then, otherwise = draw(trees(depth - 1)), draw(trees(depth - 1))
            block.append((test, then, otherwise))
        else:
            block.append(draw(st.integers(0, 15)))
    return block


def flatten(block: Tree, out: list[Json]) -> list[Json]:
    """The block as p4c lays it out: `if (c) A else B` with forward jumps."""
    for item in block:
        if isinstance(item, int):
            target = field("h", "trace")
            shifted = op("&", op("<<", target, num(3)), num(0xFFFFFFFF))
            out.append(assign(target, op("^", shifted, num(item))))
            # A later test may see what an earlier step wrote.
            out.append(assign(field("h", "a"), op("^", field("h", "a"), num(item & 3))))
            continue
        (name, bit), then, otherwise = item
        at = len(out)
        out.append({})
        flatten(then, out)
        if otherwise:
            end = len(out)
            out.append({})
            flatten(otherwise, out)
            out[end] = jump(len(out))
            out[at] = jump_if_zero(_bit(name, bit), end + 1)
        else:
            out[at] = jump_if_zero(_bit(name, bit), len(out))
    return out


def _bit(name: str, bit: int) -> Json:
    return op("&", op(">>", field("h", name), num(bit)), num(1))


def interpret(primitives: list[Json], values: dict[str, int]) -> dict[str, int]:
    """Executes primitives one by one with a program counter, as BMv2 does."""
    values = dict(values)

    def value(expr: Json) -> int:
        if expr["type"] == "field":
            return values[expr["value"][1]]
        if expr["type"] == "hexstr":
            return int(expr["value"], 16)
        if "op" not in expr["value"]:
            return value(expr["value"])
        inner = expr["value"]
        left, right = value(inner["left"]), value(inner["right"])
        if inner["op"] == "<<":
            return left << right
        if inner["op"] == ">>":
            return left >> right
        return left & right if inner["op"] == "&" else left ^ right

    at = 0
    while at < len(primitives):
        primitive = primitives[at]
        parameters = primitive["parameters"]
        at += 1
        if primitive["op"] == "_jump":
            at = value(parameters[0])
        elif primitive["op"] == "_jump_if_zero":
            if value(parameters[0]) == 0:
                at = value(parameters[1])
        else:
            name = parameters[0]["value"][1]
            values[name] = value(parameters[1]) & ((1 << WIDTHS[name]) - 1)
    return values


@settings(max_examples=150, deadline=None)
@given(trees(), st.lists(st.tuples(*[st.integers(0, 15)] * 3), min_size=1, max_size=8))
def test_nested_conditionals_do_what_the_jumps_say(
    tree: Tree, samples: list[tuple[int, int, int]]
) -> None:
    primitives = flatten(tree, [])
    program = scratch_program(WIDTHS)
    program.do("ingress", primitives)
    switch = program.switch()
    for a, b, c in samples:
        values = {"a": a, "b": b, "c": c, "trace": 0}
        _, frame = one(switch, pack(WIDTHS, values))
        assert unpack(WIDTHS, frame) == interpret(primitives, values)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_forward_jumps_are_right_or_refused(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 10))
    primitives: list[Json] = []
    for index in range(size):
        kind = data.draw(st.sampled_from(["step", "jump", "branch"]))
        target = data.draw(st.integers(index + 1, size))
        if kind == "step":
            shifted = op("<<", field("h", "trace"), num(3))
            primitives.append(assign(field("h", "trace"), op("^", shifted, num(index % 8))))
        elif kind == "jump":
            primitives.append(jump(target))
        else:
            primitives.append(jump_if_zero(_bit(data.draw(st.sampled_from("abc")), 0), target))
    program = scratch_program(WIDTHS)
    program.do("ingress", primitives)
    try:
        switch = program.switch()
    except UnsupportedConstruct as refusal:
        if not refusal.construct.startswith("a jump from primitive"):
            raise
        return
    for bits in range(8):
        values = {"a": bits & 1, "b": bits >> 1 & 1, "c": bits >> 2, "trace": 0}
        _, frame = one(switch, pack(WIDTHS, values))
        assert unpack(WIDTHS, frame) == interpret(primitives, values)


def test_else_if_chain() -> None:
    program = scratch_program(WIDTHS)
    trace = field("h", "trace")
    program.do(
        "ingress",
        [
            jump_if_zero(_bit("a", 0), 3),
            assign(trace, num(1)),
            jump(7),
            jump_if_zero(_bit("b", 0), 6),
            assign(trace, num(2)),
            jump(7),
            assign(trace, num(3)),
        ],
    )
    switch = program.switch()
    for a, b, expected in ((1, 0, 1), (1, 1, 1), (0, 1, 2), (0, 0, 3)):
        _, frame = one(switch, pack(WIDTHS, {"a": a, "b": b}))
        assert unpack(WIDTHS, frame)["trace"] == expected


def test_an_else_if_chain_of_any_length() -> None:
    """Longer than Python nests blocks."""
    count = 150
    program = scratch_program(WIDTHS)
    trace = field("h", "trace")
    primitives: list[Json] = []
    for number in range(count):
        test = op("b2d", None, op("==", field("h", "a"), num(number)))
        primitives += [
            jump_if_zero(test, 3 * number + 3),
            assign(trace, num(number + 1000)),
            jump(3 * count),
        ]
    program.do("ingress", primitives)
    switch = program.switch()
    for a in (0, 1, count - 1, count):
        _, frame = one(switch, pack(WIDTHS, {"a": a}))
        assert unpack(WIDTHS, frame)["trace"] == (a + 1000 if a < count else 0)


def test_backward_jump_is_refused_by_name() -> None:
    program = scratch_program(WIDTHS)
    program.do("ingress", [assign(field("h", "a"), num(1)), jump(0)])
    with pytest.raises(UnsupportedConstruct, match=r"jump from primitive 1 to 0.*actions\[act_0\]"):
        program.switch()
