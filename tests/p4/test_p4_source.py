"""The interpreter of the P4 source does what the P4-16 specification says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from p4_source import Cell, P4Error, Packet, Program, Reject, Struct

HEAD = "struct s_t { bit<32> a; bit<32> b; int<32> c; bit<8> d; bool e; }\n"


def program(tmp_path: Path, text: str) -> Program:
    source = tmp_path / "p.p4"
    source.write_text(HEAD + text)
    return Program(source, "", lambda path, width: 7)


def run(tmp_path: Path, body: str, local: str = "", **values: Any) -> Struct:
    """Run statements over a struct ``s`` and return it."""
    made = program(tmp_path, f"control C(inout s_t s) {{ {local} apply {{ {body} }} }}\n")
    struct = Struct(made.top["s_t"])
    for name, value in values.items():
        struct[name] = value
    made.instantiate("C", "C", [struct])()
    return struct


@pytest.mark.parametrize(
    ("body", "values", "name", "expected"),
    [
        ("s.a = s.a + 1;", {"a": 0xFFFFFFFF}, "a", 0),
        ("s.a = s.a - 1;", {}, "a", 0xFFFFFFFF),
        ("s.a = s.a |+| 2;", {"a": 0xFFFFFFFF}, "a", 0xFFFFFFFF),
        ("s.a = s.a |-| 2;", {"a": 1}, "a", 0),
        ("s.c = s.c |+| 1;", {"c": 0x7FFFFFFF}, "c", 0x7FFFFFFF),
        ("s.c = s.c |-| 1;", {"c": -0x80000000}, "c", -0x80000000),
        ("s.c = s.c + 1;", {"c": 0x7FFFFFFF}, "c", -0x80000000),
        ("s.c = (int<32>)s.a;", {"a": 0xFFFFFFFE}, "c", -2),
        ("s.a = (bit<32>)s.c;", {"c": -1}, "a", 0xFFFFFFFF),
        ("s.c = s.c >> 1;", {"c": -3}, "c", -2),
        ("s.a = s.a >> 4;", {"a": 0x80000000}, "a", 0x08000000),
        ("s.a = s.a << 30;", {"a": 7}, "a", 0xC0000000),
        ("s.d = s.a[15:8];", {"a": 0x12345678}, "d", 0x56),
        ("s.a[15:8] = 0xAB;", {"a": 0x12345678}, "a", 0x1234AB78),
        ("s.a = s.d ++ 24w5;", {"d": 0x80}, "a", 0x80000005),
        ("s.a = (bit<32>)s.d;", {"d": 0xFF}, "a", 0xFF),
        ("s.d = (bit<8>)s.a;", {"a": 0x1FE}, "d", 0xFE),
        ("s.a = ~s.a;", {"a": 1}, "a", 0xFFFFFFFE),
        ("s.c = -s.c;", {"c": -0x80000000}, "c", -0x80000000),
        ("s.c = max(s.c, 0);", {"c": -5}, "c", 0),
        ("s.e = s.c < 0;", {"c": -1}, "e", True),
        ("s.e = s.a < s.b;", {"a": 0xFFFFFFFF, "b": 1}, "e", False),
        ("s.a = s.e ? 32w1 : 32w2;", {"e": True}, "a", 1),
        ("if (s.a == 1 || s.b == 1 && s.e) { s.d = 1; } else { s.d = 2; }", {"b": 1}, "d", 2),
        ("bit<8> x = s.d; { bit<8> y = x + 1; s.d = y; }", {"d": 255}, "d", 0),
    ],
)
def test_expressions(
    tmp_path: Path, body: str, values: dict[str, Any], name: str, expected: Any
) -> None:
    assert run(tmp_path, body, **values)[name] == expected


@pytest.mark.parametrize(
    "body",
    [
        "s.a = s.d;",
        "s.a = s.c;",
        "s.e = s.a;",
        "s.d = 256;",
        "s.a = s.x;",
        "x = 1;",
        "s.a = s.a[32:1];",
        "s.a = s.a ++ 1;",
        "if (s.a) { }",
        "s.e = s.a == s.d;",
        "exit",
    ],
)
def test_what_does_not_fit_is_an_error_of_the_source(tmp_path: Path, body: str) -> None:
    with pytest.raises(P4Error, match=r"p\.p4:\d+|end of file"):
        run(tmp_path, body)


TABLE = """
    action set(bit<8> v) {{ s.d = v; }}
    action none() {{ s.d = 99; }}
    table t {{
        key = {{ s.a : {kind}; s.e : ternary; }}
        actions = {{ set; none; }}
        const default_action = none();
        const entries = {{ {entries} }}
    }}
"""


@pytest.mark.parametrize(
    ("kind", "entries", "a", "expected"),
    [
        ("exact", "(5, true) : set(1);", 5, 1),
        ("exact", "(5, true) : set(1);", 6, 99),
        ("ternary", "(0x10 &&& 0xF0, _) : set(1); (_, true) : set(2);", 0x1F, 1),
        ("ternary", "(0x10 &&& 0xF0, _) : set(1); (_, true) : set(2);", 0x2F, 2),
        # The first that matches wins, whatever comes after.
        ("ternary", "(_, true) : set(2); (0x10 &&& 0xF0, _) : set(1);", 0x1F, 2),
        ("ternary", "(0, false) : set(1);", 0, 99),
    ],
)
def test_tables(tmp_path: Path, kind: str, entries: str, a: int, expected: int) -> None:
    local = TABLE.format(kind=kind, entries=entries)
    assert run(tmp_path, "t.apply();", local, a=a, e=True)["d"] == expected


def test_a_mask_that_never_matches_is_an_error(tmp_path: Path) -> None:
    local = TABLE.format(kind="ternary", entries="(0x11 &&& 0xF0, _) : set(1);")
    with pytest.raises(P4Error, match="never matches"):
        run(tmp_path, "t.apply();", local)


def test_a_table_is_applied_in_one_place(tmp_path: Path) -> None:
    local = TABLE.format(kind="exact", entries="(5, true) : set(1);")
    with pytest.raises(P4Error, match="applied twice"):
        run(tmp_path, "t.apply(); t.apply();", local)


REGISTER = """
    Register<bit<32>, bit<8>>(256, 3) r;
    RegisterAction<bit<32>, bit<8>, bit<32>>(r) add = {
        void apply(inout bit<32> value, out bit<32> old) { old = value; value = value + s.a; }
    };
"""


def test_a_register_action_returns_and_stores(tmp_path: Path) -> None:
    made = program(
        tmp_path, f"control C(inout s_t s) {{ {REGISTER} apply {{ s.b = add.execute(s.d); }} }}"
    )
    struct = Struct(made.top["s_t"])
    step = made.instantiate("C", "C", [struct])
    struct["a"], struct["d"] = 10, 200
    for expected in (3, 13, 23):
        made.accessed.clear()
        step()
        assert struct["b"] == expected
    assert made.registers["C.r"].cells == {200: 33}
    with pytest.raises(P4Error, match=r"accesses C\.r twice"):
        step()


PARSER = """
header h_t { bit<4> x; bit<12> y; }
struct hs_t { h_t h; h_t g; }
parser P(packet_in p, out hs_t hdr) {
    state start {
        p.extract(hdr.h);
        transition select(hdr.h.x, hdr.h.y) {
            (1, _) : more;
            (0x2 &&& 0xE, 5) : more;
            default : accept;
        }
    }
    state more { p.extract(hdr.g); transition accept; }
}
"""


@pytest.mark.parametrize(
    ("data", "valid", "rest"),
    [
        (b"\x10\x00\xab\xcd\xee", True, b"\xee"),
        (b"\x30\x05\xab\xcd", True, b""),
        (b"\x20\x06\xab\xcd", False, b"\xab\xcd"),
    ],
)
def test_parsers(tmp_path: Path, data: bytes, valid: bool, rest: bytes) -> None:
    made = program(tmp_path, PARSER)
    headers = Struct(made.top["hs_t"])
    packet = Packet(data)
    made.parser("P", {"hdr": headers})(packet)
    assert headers["g"].valid == valid
    assert packet.rest == rest
    assert headers["h.x"] == data[0] >> 4
    if valid:
        assert (headers["g.x"], headers["g.y"]) == (0xA, 0xBCD)


def test_a_short_packet_is_rejected(tmp_path: Path) -> None:
    made = program(tmp_path, PARSER)
    parse = made.parser("P", {"hdr": Struct(made.top["hs_t"])})
    for data in (b"", b"\x10", b"\x10\x00", b"\x10\x00\xab"):
        with pytest.raises(Reject):
            parse(Packet(data))


def test_macros_choose_what_is_read(tmp_path: Path) -> None:
    text = "#ifdef A\nconst bit<8> X = 1;\n#else\nconst bit<8> X = 2;\n#endif\n"
    source = tmp_path / "p.p4"
    source.write_text(text)
    for defines, value in (({}, 2), ({"A": ""}, 1)):
        found = Program(source, "", lambda path, width: 0, defines)
        assert found.top["X"] == ("const", (8, False), value)


def test_cells_hold_zero_at_first() -> None:
    assert Cell((8, False)).value == 0
