"""Parsing, the errors it ends with, and what is put together on the way out."""

from __future__ import annotations

import pytest
from bmv2_json import (
    Json,
    ProgramBuilder,
    assign,
    call,
    extract,
    field,
    goto,
    header,
    num,
    one,
    op,
    std,
    valid,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct

LAYERS = ("a", "b", "c")


def layered() -> ProgramBuilder:
    """a -> b -> c: each header is a byte that says what follows and a byte of content."""
    program = ProgramBuilder()
    program.header("report", [["error", 8], ["valid", 8]])
    for name in LAYERS:
        program.header(name, [["next", 8], ["v", 8]])
    for name, following in zip(LAYERS, (*LAYERS[1:], None), strict=True):
        program.state(
            name,
            [extract(name)],
            [field(name, "next")],
            [goto(following, 1), goto(None)] if following else [goto(None)],
        )
    program.start = "a"
    return program


def reporting(program: ProgramBuilder) -> ProgramBuilder:
    """Adds a header in front that tells parser_error and which headers are valid."""
    bits: Json = num(0)
    for shift, name in enumerate(LAYERS):
        bits = op("|", bits, op("<<", op("b2d", None, valid(name)), num(shift)))
    program.do(
        "ingress",
        [
            call("add_header", header("report")),
            assign(field("report", "error"), std("parser_error")),
            assign(field("report", "valid"), bits),
        ],
    )
    return program


@pytest.mark.parametrize(
    ("frame", "error", "valid_headers"),
    [
        (bytes([0, 9]), 0, 0b001),
        (bytes([1, 9, 0, 8, 7]), 0, 0b011),
        (bytes([1, 9, 1, 8, 0, 7, 6]), 0, 0b111),
        (bytes([1, 9, 1]), 1, 0b001),
        (bytes([1, 9, 1, 8, 5]), 1, 0b011),
        (bytes([1]), 1, 0),
        (b"", 1, 0),
    ],
)
def test_too_short_ends_parsing_and_ingress_goes_on(
    frame: bytes, error: int, valid_headers: int
) -> None:
    _, out = one(reporting(layered()).switch(), frame)
    assert out == bytes([error, valid_headers]) + frame


def test_verify_stops_with_its_error() -> None:
    program = reporting(layered())
    program.states[0]["parser_ops"].append(
        {
            "op": "verify",
            "parameters": [
                {"type": "expression", "value": op("<", field("a", "v"), num(10))},
                {"type": "expression", "value": num(7)},
            ],
        }
    )
    switch = program.switch()
    assert one(switch, bytes([1, 9, 0, 8]))[1][:2] == bytes([0, 0b011])
    assert one(switch, bytes([1, 10, 0, 8]))[1] == bytes([7, 0b001, 1, 10, 0, 8])


def test_select_on_several_fields_with_masks_takes_the_first_that_fits() -> None:
    program = ProgramBuilder()
    program.header("h", [["x", 4], ["y", 12], ["out", 8]])
    key = [field("h", "x"), field("h", "y")]
    # Each key field is padded to whole bytes: x is one byte, y is two.
    program.state(
        "start",
        [extract("h")],
        key,
        [
            goto("first", 0x05_0ABC),
            goto("second", 0x05_0A00, 0x0F_0F00),
            goto("third", 0x00_0000, 0x08_0000),
            goto("rest"),
        ],
    )
    for number, name in enumerate(("first", "second", "third", "rest"), 1):
        program.state(name, [{"op": "set", "parameters": [field("h", "out"), num(number)]}])
    switch = program.switch()
    for x, y, expected in (
        (5, 0xABC, 1), (5, 0xAFF, 2), (5, 0xBFF, 3), (3, 0, 3), (9, 0xABC, 4),
    ):  # fmt: skip
        frame = (x << 12 | y).to_bytes(2, "big") + b"\0"
        assert one(switch, frame)[1][2] == expected


def test_lookahead_does_not_consume_and_is_checked() -> None:
    program = ProgramBuilder()
    program.header("report", [["error", 8], ["seen", 8]])
    program.header("h", [["v", 8]])
    program.header("g", [["v", 16]])
    program.state(
        "start",
        [],
        [{"type": "lookahead", "value": [4, 4]}],
        [goto("h", 1), goto("g", 2), goto(None)],
    )
    program.state("h", [extract("h")])
    program.state(
        "g",
        [
            {
                "op": "set",
                "parameters": [
                    std("instance_type"),
                    {"type": "lookahead", "value": [8, 8]},
                ],
            },
            extract("g"),
        ],
    )
    seen = op("+", field("h", "v"), field("g", "v"))
    program.do(
        "ingress",
        [
            call("add_header", header("report")),
            assign(field("report", "error"), std("parser_error")),
            assign(field("report", "seen"), seen),
        ],
    )
    switch = program.switch()
    assert one(switch, b"\x31rest")[1] == b"\x00\x31\x31rest"
    assert one(switch, b"\x32\x05rest")[1] == b"\x00\x05\x32\x05rest"
    assert one(switch, b"")[1] == b"\x01\x00"
    assert one(switch, b"\x32")[1] == b"\x01\x00\x32"


@pytest.mark.parametrize("computed", [False, True])
def test_advance_skips_bytes_which_do_not_leave(computed: bool) -> None:
    program = ProgramBuilder()
    program.header("h", [["bits", 8]])
    program.header("g", [["v", 8]])
    amount = field("h", "bits") if computed else num(16)
    program.state("start", [extract("h"), {"op": "advance", "parameters": [amount]}, extract("g")])
    program.do("ingress", [assign(field("g", "v"), std("parser_error"))])
    switch = program.switch()
    assert one(switch, b"\x10xy\x07rest")[1] == b"\x10\x00rest"
    # Too short for the skip: what was not parsed leaves untouched.
    assert one(switch, b"\x10x")[1] == b"\x10x"
    if computed:
        assert one(switch, b"\x0cxyz")[1] == b"\x0cxyz"


def test_parser_loop_is_refused() -> None:
    program = layered()
    program.states[1]["transitions"] = [goto("a", 1), goto(None)]
    with pytest.raises(UnsupportedConstruct, match="a loop through"):
        program.switch()


def test_a_state_entered_at_several_offsets() -> None:
    program = ProgramBuilder()
    program.header("a", [["next", 8]])
    program.header("b", [["next", 8], ["v", 8]])
    program.header("c", [["v", 8]])
    program.state("start", [extract("a")], [field("a", "next")], [goto("b", 1), goto("c")])
    program.state("b", [extract("b")], [field("b", "next")], [goto("c", 1), goto(None)])
    program.state("c", [extract("c")])
    program.do("ingress", [assign(field("c", "v"), op("+", field("c", "v"), num(1)))])
    switch = program.switch()
    assert one(switch, bytes([0, 5, 9]))[1] == bytes([0, 6, 9])
    assert one(switch, bytes([1, 1, 7, 5, 9]))[1] == bytes([1, 1, 7, 6, 9])
    assert one(switch, bytes([1, 0, 7, 5, 9]))[1] == bytes([1, 0, 7, 5, 9])


def test_deparser_order_differs_from_parser_order() -> None:
    program = layered()
    program.deparser = ["c", "a", "b"]
    program.do("ingress", [assign(field("b", "v"), num(0xEE))])
    _, out = one(program.switch(), bytes([1, 1, 1, 2, 0, 3]) + b"payload")
    assert out == bytes([0, 3, 1, 1, 1, 0xEE]) + b"payload"


def test_headers_not_emitted_are_lost() -> None:
    program = layered()
    program.deparser = ["a", "c"]
    _, out = one(program.switch(), bytes([1, 1, 1, 2, 0, 3]) + b"payload")
    assert out == bytes([1, 1, 0, 3]) + b"payload"


def test_removing_then_adding_a_header_clears_it() -> None:
    program = layered()
    program.do(
        "ingress",
        [call("remove_header", header("b")), call("add_header", header("b"))],
    )
    _, out = one(program.switch(), bytes([1, 1, 1, 2, 0, 3]))
    assert out == bytes([1, 1, 0, 0, 0, 3])


def test_adding_a_header_that_is_there_changes_nothing() -> None:
    program = layered()
    program.do("ingress", [call("add_header", header("b"))])
    frame = bytes([1, 1, 1, 2, 0, 3])
    assert one(program.switch(), frame)[1] == frame


def test_assigning_an_invalid_header_makes_the_target_invalid() -> None:
    program = layered()
    program.do("ingress", [call("assign_header", header("a"), header("b"))])
    switch = program.switch()
    assert one(switch, bytes([1, 1, 0, 2]))[1] == bytes([0, 2, 0, 2])
    assert one(switch, bytes([0, 1, 5]))[1] == bytes([5])


def test_packet_length_follows_added_and_removed_headers() -> None:
    program = layered()
    program.do(
        "ingress", [call("add_header", header("report")), call("remove_header", header("b"))]
    )
    program.do("egress", [assign(field("report", "valid"), std("packet_length"))])
    switch = program.switch()
    assert one(switch, bytes([1, 1, 0, 2, 5]))[1] == bytes([0, 5, 1, 1, 5])
    assert one(switch, bytes([0, 1, 5]))[1] == bytes([0, 5, 0, 1, 5])


def test_fields_of_a_header_that_was_never_valid_read_as_zero() -> None:
    program = layered()
    total = op("+", field("b", "v"), field("c", "v"))
    program.do("ingress", [assign(field("a", "v"), total)])
    switch = program.switch()
    assert one(switch, bytes([1, 1, 1, 2, 0, 3]))[1][1] == 5
    assert one(switch, bytes([0, 1]))[1][1] == 0


widths = st.lists(st.integers(1, 70), min_size=1, max_size=8).map(
    lambda ws: ws if sum(ws) % 8 == 0 else [*ws, -sum(ws) % 8]
)


@settings(max_examples=150, deadline=None)
@given(widths, st.data())
def test_reading_and_writing_any_field_layout(sizes: list[int], data: st.DataObject) -> None:
    names = {f"f{i}": w for i, w in enumerate(sizes)}
    program = ProgramBuilder()
    program.header("h", [[n, w] for n, w in names.items()])
    program.state("start", [extract("h")])
    written = data.draw(st.lists(st.sampled_from(sorted(names)), unique=True, max_size=4))
    complement = [
        assign(field("h", n), op("^", field("h", n), num((1 << names[n]) - 1))) for n in written
    ]
    program.do("ingress", complement)
    size = sum(sizes) // 8
    frame = data.draw(st.binary(min_size=size, max_size=size)) + b"payload"
    _, out = one(program.switch(), frame)
    flipped = 0
    for name, width in names.items():
        flipped = flipped << width | ((1 << width) - 1 if name in written else 0)
    expected = int.from_bytes(frame[:size], "big") ^ flipped
    assert out == expected.to_bytes(size, "big") + b"payload"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=24))
def test_no_frame_raises(frame: bytes) -> None:
    switch = reporting(layered()).switch()
    switch.receive(1, frame, 0)
    assert switch.stats.error_drops == 0
    assert len(switch.advance(0)) == 1


def test_missing_state_is_named() -> None:
    program = layered()
    program.states[1]["transitions"] = [goto("nowhere")]
    with pytest.raises(PipelineError, match="no parser state 'nowhere'"):
        program.switch()
