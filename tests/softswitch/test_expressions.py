"""Expressions: unbounded arithmetic, truncated on assignment, as BMv2 evaluates them."""

from __future__ import annotations

from typing import Any

import pytest
from bmv2_json import Json, assign, extract, field, num, one, op, pack, scratch_program, unpack
from hypothesis import example, given, settings
from hypothesis import strategies as st

WIDTHS = {"a": 8, "b": 16, "c": 1, "d": 7, "e": 48, "out": 16}
READABLE = ("a", "b", "c", "d", "e")


def evaluate(expr: Json, values: dict[str, int]) -> Any:
    """A second opinion: walks the JSON with the definitions of BMv2's `data.h`."""
    kind, value = expr["type"], expr["value"]
    if kind == "field":
        return values[value[1]]
    if kind == "hexstr":
        return int(value, 16)
    if kind == "bool":
        return value
    operator = value["op"]
    if operator == "?":
        chosen = "left" if evaluate(value["cond"], values) else "right"
        return evaluate(value[chosen], values)
    right = evaluate(value["right"], values)
    if operator == "not":
        return not right
    if operator == "~":
        return ~right
    if operator == "d2b":
        return right != 0
    if operator == "b2d":
        return 1 if right else 0
    left = evaluate(value["left"], values)
    if operator in ("two_comp_mod", "sat_cast", "usat_cast"):
        top = (1 << right) - 1 if operator == "usat_cast" else (1 << (right - 1)) - 1
        bottom = 0 if operator == "usat_cast" else -(1 << (right - 1))
        if operator != "two_comp_mod":
            return max(bottom, min(top, left))
        wrapped = left % (1 << right)
        return wrapped - (1 << right) if wrapped > top else wrapped
    return {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "<<": lambda: left << right,
        ">>": lambda: left >> right,
        "&": lambda: left & right,
        "|": lambda: left | right,
        "^": lambda: left ^ right,
        "==": lambda: left == right,
        "!=": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
        "and": lambda: bool(left and right),
        "or": lambda: bool(left or right),
    }[operator]()


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> Json:
    """A data expression."""
    kinds = ["field", "number"]
    if depth:
        kinds += ["binary", "binary", "shift", "cast", "complement", "from bool", "choice"]
    kind = draw(st.sampled_from(kinds))
    if kind == "field":
        return field("h", draw(st.sampled_from(READABLE)))
    if kind == "number":
        return num(draw(st.integers(-(1 << 20), 1 << 20)))
    inner = draw(expressions(depth - 1))
    if kind == "binary":
        symbol = draw(st.sampled_from(["+", "-", "*", "&", "|", "^"]))
        return op(symbol, inner, draw(expressions(depth - 1)))
    if kind == "shift":
        return op(draw(st.sampled_from(["<<", ">>"])), inner, num(draw(st.integers(0, 40))))
    if kind == "cast":
        cast = draw(st.sampled_from(["two_comp_mod", "sat_cast", "usat_cast"]))
        return op(cast, inner, num(draw(st.integers(2, 40))))
    if kind == "complement":
        return op("~", None, inner)
    test = draw(booleans(depth - 1))
    if kind == "from bool":
        return op("b2d", None, test)
    return op("?", inner, draw(expressions(depth - 1)), test)


@st.composite
def booleans(draw: st.DrawFn, depth: int = 2) -> Json:
    """A boolean expression."""
    kinds = ["compare", "compare", "to bool", "literal"]
    if depth > 0:
        kinds += ["connect", "not"]
    kind = draw(st.sampled_from(kinds))
    smaller = max(depth - 1, 0)
    if kind == "compare":
        symbol = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]))
        return op(symbol, draw(expressions(smaller)), draw(expressions(smaller)))
    if kind == "to bool":
        return op("d2b", None, draw(expressions(smaller)))
    if kind == "literal":
        return {"type": "bool", "value": draw(st.booleans())}
    if kind == "not":
        return op("not", None, draw(booleans(smaller)))
    symbol = draw(st.sampled_from(["and", "or", "==", "!="]))
    return op(symbol, draw(booleans(smaller)), draw(booleans(smaller)))


packets = st.fixed_dictionaries(
    {n: st.one_of(st.integers(0, (1 << WIDTHS[n]) - 1), st.sampled_from([0, 1])) for n in READABLE}
)


@example(op("~", None, op("usat_cast", num(-1), num(2))), [dict.fromkeys(READABLE, 0)]).via(
    "a range that lies wholly below the bounds"
)
@example(
    op("b2d", None, op("d2b", None, op("sat_cast", field("h", "a"), num(2)))),
    [dict.fromkeys(READABLE, 0)],
).via("a choice inside the condition of a choice")
@settings(max_examples=300, deadline=None)
@given(expressions(), st.lists(packets, min_size=1, max_size=4))
def test_any_expression_has_bmv2s_value(expr: Json, samples: list[dict[str, int]]) -> None:
    program = scratch_program(WIDTHS)
    program.do("ingress", [assign(field("h", "out"), expr)])
    switch = program.switch()
    for values in samples:
        _, frame = one(switch, pack(WIDTHS, values))
        assert unpack(WIDTHS, frame)["out"] == evaluate(expr, values) % (1 << 16)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 255), st.integers(0, 255))
def test_a_computed_shift_amount_cannot_exhaust_memory(a: int, amount: int) -> None:
    widths = {"a": 8, "n": 32, "left": 16, "right": 16}
    program = scratch_program(widths)
    program.do(
        "ingress",
        [
            assign(field("h", "left"), op("<<", field("h", "a"), field("h", "n"))),
            assign(field("h", "right"), op(">>", field("h", "a"), field("h", "n"))),
        ],
    )
    switch = program.switch()
    _, frame = one(switch, pack(widths, {"a": a, "n": 0xFFFFFF00 | amount}))
    assert unpack(widths, frame)["left"] == 0
    assert unpack(widths, frame)["right"] == 0
    _, frame = one(switch, pack(widths, {"a": a, "n": amount % 16}))
    assert unpack(widths, frame)["left"] == a << amount % 16 & 0xFFFF
    assert unpack(widths, frame)["right"] == a >> amount % 16


@pytest.mark.parametrize(
    ("operator", "a", "b", "expected"),
    [("/", 200, 7, 28), ("%", 200, 7, 4), ("/", 200, 0, 0), ("%", 200, 0, 0)],
)
def test_division_and_remainder_survive_zero(operator: str, a: int, b: int, expected: int) -> None:
    widths = {"a": 8, "b": 8, "out": 16}
    program = scratch_program(widths)
    program.do(
        "ingress", [assign(field("h", "out"), op(operator, field("h", "a"), field("h", "b")))]
    )
    _, frame = one(program.switch(), pack(widths, {"a": a, "b": b}))
    assert unpack(widths, frame)["out"] == expected


def test_signed_fields_keep_their_sign_and_their_bits() -> None:
    program = scratch_program({"a": 8, "out": 16})
    program.header_types["h_t"] = [["a", 8, True], ["out", 16, True]]
    program.do("ingress", [assign(field("h", "out"), op("*", field("h", "a"), num(3)))])
    switch = program.switch()
    for a in (-128, -1, 0, 1, 127):
        _, frame = one(switch, bytes([a % 256, 0, 0]))
        assert int.from_bytes(frame[1:3], "big", signed=True) == 3 * a
        assert frame[0] == a % 256


def test_saturating_fields_stop_at_their_bounds() -> None:
    program = scratch_program({"a": 8, "b": 8, "up": 8, "down": 8})
    program.header_types["h_t"] = [
        ["a", 8, False], ["b", 8, False], ["up", 8, False, True], ["down", 8, False, True]
    ]  # fmt: skip
    a, b = field("h", "a"), field("h", "b")
    program.do(
        "ingress",
        [assign(field("h", "up"), op("+", a, b)), assign(field("h", "down"), op("-", a, b))],
    )
    switch = program.switch()
    assert one(switch, bytes([200, 100, 0, 0]))[1][2:] == bytes([255, 100])
    assert one(switch, bytes([100, 200, 0, 0]))[1][2:] == bytes([255, 0])


def test_equality_of_headers_compares_validity_then_fields() -> None:
    program = scratch_program({"a": 8, "same": 8})
    program.header("x", [["v", 8]])
    program.header("y", [["v", 8]])
    program.states[0]["parser_ops"].append(extract("x"))
    program.states[0]["transition_key"] = [field("h", "a")]
    program.states[0]["transitions"] = [
        {"type": "hexstr", "value": "0x02", "mask": None, "next_state": "second"},
        {"type": "default", "value": None, "mask": None, "next_state": None},
    ]
    program.state("second", [extract("y")])
    equal = op("==", {"type": "header", "value": "x"}, {"type": "header", "value": "y"})
    program.do("ingress", [assign(field("h", "same"), op("b2d", None, equal))])
    switch = program.switch()
    assert one(switch, bytes([2, 9, 5, 5]))[1][1] == 1
    assert one(switch, bytes([2, 9, 5, 6]))[1][1] == 0
    assert one(switch, bytes([1, 9, 0, 0]))[1][1] == 0
