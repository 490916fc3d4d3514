"""What the code generator knows of a value's range never changes what an action does.

It leaves truncations and bounds checks out where a value cannot need them; a program that is
executed statement by statement, with all of them, must come to the same result.
"""

from __future__ import annotations

from typing import Any

from bmv2_json import (
    Json,
    assign,
    call,
    field,
    jump,
    jump_if_zero,
    meta,
    num,
    one,
    op,
    pack,
    register,
    scratch_program,
)
from hypothesis import given
from hypothesis import strategies as st

CELLS = 16
HEADER = {"a": 8, "b": 8}
SCRATCH = {"s": 3, "t": 8, "u": 16}
WIDTHS = HEADER | SCRATCH
Block = list[Any]

names = st.sampled_from(sorted(WIDTHS))
operands = st.one_of(names, st.integers(0, 40))
expressions = st.tuples(st.sampled_from(["+", "-", "&", "|", "^", "*", "none"]), operands, operands)


def statements(depth: int) -> st.SearchStrategy[Any]:
    plain = st.one_of(
        st.tuples(st.just("set"), names, expressions),
        st.tuples(st.just("read"), names, operands),
        st.tuples(st.just("write"), operands, operands),
    )
    if not depth:
        return plain
    inner = st.lists(statements(depth - 1), max_size=3)
    return st.one_of(plain, plain, st.tuples(st.just("if"), names, inner, inner))


programs = st.lists(statements(2), min_size=1, max_size=10)


def ref(name: str) -> Json:
    return field("h", name) if name in HEADER else meta(name)


def operand(value: str | int) -> Json:
    return ref(value) if isinstance(value, str) else num(value)


def expression(expr: tuple[str, Any, Any]) -> Json:
    operator, left, right = expr
    return operand(left) if operator == "none" else op(operator, operand(left), operand(right))


def compiled(block: Block, out: list[Json]) -> list[Json]:
    """The block as p4c lays it out."""
    for statement in block:
        match statement:
            case ("set", name, expr):
                out.append(assign(ref(name), expression(expr)))
            case ("read", name, index):
                out.append(call("register_read", ref(name), register("r"), operand(index)))
            case ("write", index, value):
                out.append(call("register_write", register("r"), operand(index), operand(value)))
            case ("if", name, then, otherwise):
                at = len(out)
                out.append({})
                compiled(then, out)
                end = len(out)
                out.append({})
                compiled(otherwise, out)
                out[end] = jump(len(out))
                out[at] = jump_if_zero(op("d2b", None, ref(name)), end + 1)
    return out


def executed(block: Block, values: dict[str, int], cells: list[int]) -> None:
    """The block, statement by statement."""

    def get(value: str | int) -> int:
        return values[value] if isinstance(value, str) else value

    def put(name: str, value: int) -> None:
        values[name] = value & ((1 << WIDTHS[name]) - 1)

    for statement in block:
        match statement:
            case ("set", name, (operator, left, right)):
                a, b = get(left), get(right)
                results = {
                    "+": a + b, "-": a - b, "*": a * b, "&": a & b, "|": a | b, "^": a ^ b,
                    "none": a,
                }  # fmt: skip
                put(name, results[operator])
            case ("read", name, index):
                if get(index) < CELLS:
                    put(name, cells[get(index)])
            case ("write", index, value):
                if get(index) < CELLS:
                    cells[get(index)] = get(value) & 0xFF
            case ("if", name, then, otherwise):
                executed(then if values[name] else otherwise, values, cells)


@given(programs, st.integers(0, 255), st.integers(0, 255))
def test_actions_do_what_their_statements_say(block: Block, a: int, b: int) -> None:
    program = scratch_program(HEADER)
    program.metadata(**SCRATCH)
    program.registers = [{"name": "r", "id": 0, "size": CELLS, "bitwidth": 8}]
    program.do("ingress", compiled(block, []))
    # Nothing of one action's knowledge may reach the next.
    program.do("ingress", compiled([("write", "t", "u"), ("write", "s", "t")], []))
    switch = program.switch()
    values = dict.fromkeys(WIDTHS, 0) | {"a": a, "b": b}
    cells = [0] * CELLS
    executed([*block, ("write", "t", "u"), ("write", "s", "t")], values, cells)
    _, frame = one(switch, pack(HEADER, {"a": a, "b": b}))
    assert frame == bytes([values["a"], values["b"]])
    assert switch.pipeline is not None
    assert switch.pipeline.registers["r"].values == cells
