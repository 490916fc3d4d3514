"""Executes the P4-16 source of the Tofino 2 program, packet by packet.

No package executes T2NA, and the software switch executes p4c's BMv2 JSON only. So this is an
interpreter of the language that our sources are written in: what the P4-16 specification says about
widths, wrapping, saturation, slices, casts, parsers, tables and control flow, and what
``t2na.p4`` says about the externs that the program uses. Names and types are resolved once, before
the first packet: an unknown name or two widths that do not fit are errors of the source.

What it refuses (with file and line) it does not know: switch statements, header stacks, unions,
varbits, value sets, a table or a control that is applied in two places.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class P4Error(Exception):
    """The source is not what this interpreter knows; says where and why."""


# --- preprocessor and lexer ---------------------------------------------------------------------

_TOKEN = re.compile(
    r"\s+|//[^\n]*|/\*.*?\*/"
    r"|(?P<number>(?:\d+[ws])?0[xX][0-9a-fA-F_]+|(?:\d+[ws])?\d+)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r'|(?P<string>"[^"\n]*")'
    r"|(?P<symbol>&&&|\|\+\||\|-\||<<|>>|<=|>=|==|!=|&&|\|\||\+\+|[-+*/%&|^~!<>=?:;,.(){}\[\]@])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    where: str


def preprocess(path: Path, defines: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (line, where) with includes, conditionals and plain macros resolved.

    ``#include <...>`` is left out: the architecture is what this module knows by itself.
    """
    taken = [True]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{path.name}:{number}"
        directive = re.match(r"\s*#\s*(\w+)\s*(.*?)\s*(?://.*)?$", line)
        if directive is None:
            if all(taken):
                for name, value in defines.items():
                    line = re.sub(rf"\b{name}\b", value, line) if name in line else line
                yield line, where
            continue
        word, rest = directive.groups()
        if word in ("ifdef", "ifndef"):
            taken.append((rest in defines) == (word == "ifdef"))
        elif word == "else":
            taken[-1] = not taken[-1]
        elif word == "endif":
            taken.pop()
        elif not all(taken):
            continue
        elif word == "include":
            if rest.startswith('"'):
                yield from preprocess((path.parent / rest.strip('"')).resolve(), defines)
        elif word == "define":
            name, _, value = rest.partition(" ")
            if "(" in name:
                raise P4Error(f"{where}: a macro with arguments")
            defines[name] = value.strip()
        else:
            raise P4Error(f"{where}: #{word}")


def tokens_of(path: Path, defines: dict[str, str]) -> list[Token]:
    """Return the tokens of a program."""
    found = []
    for line, where in preprocess(path, dict(defines)):
        at = 0
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                raise P4Error(f"{where}: {line[at : at + 20]!r}")
            at = match.end()
            if match.lastgroup:
                found.append(Token(match.lastgroup, match.group(), where))
    found.append(Token("end", "", "end of file"))
    return found


# --- syntax -------------------------------------------------------------------------------------

Node = tuple[Any, ...]
"""(kind, where, ...). Types, expressions, statements and declarations alike."""

_BINARY = [
    ["||"], ["&&"], ["==", "!="], ["<", "<=", ">", ">="], ["|"], ["^"], ["&"], ["<<", ">>"],
    ["++", "+", "-", "|+|", "|-|"], ["*"],
]  # fmt: skip


class Parser:
    """Recursive descent over the tokens of one program."""

    def __init__(self, tokens: list[Token], types: set[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.types = types
        """Names that begin a type; externs of the architecture are among them."""

    @property
    def now(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def sees(self, *texts: str) -> bool:
        return self.now.text in texts and self.now.kind != "string"

    def skip(self, text: str) -> bool:
        if text == ">" and self.sees(">>"):
            # The end of a type within a type.
            where = self.now.where
            self.tokens[self.at : self.at + 1] = [Token("symbol", ">", where)] * 2
        if self.sees(text):
            self.at += 1
            return True
        return False

    def need(self, text: str) -> Token:
        token = self.now
        if not self.skip(text):
            raise P4Error(f"{token.where}: {token.text!r}; {text!r} was expected")
        return token

    def name(self) -> str:
        if self.now.kind != "name":
            raise P4Error(f"{self.now.where}: {self.now.text!r} is no name")
        return self.take().text

    def annotations(self) -> dict[str, str]:
        found = {}
        while self.skip("@"):
            word = self.name()
            value = ""
            if self.skip("("):
                depth = 1
                while depth:
                    token = self.take()
                    depth += {"(": 1, ")": -1}.get(token.text, 0)
                    if depth:
                        value += token.text
            found[word] = value.strip('"')
        return found

    # -- types

    def type(self) -> Node:
        where = self.now.where
        name = self.name()
        if name in ("bit", "int") and self.skip("<"):
            width = self.width()
            self.need(">")
            return name, where, width
        args: list[Node] = []
        if self.skip("<"):
            while not self.skip(">"):
                args.append(self.type())
                self.skip(",")
        return "named", where, name, args

    def width(self) -> Node:
        if self.skip("("):
            found = self.expression()
            self.need(")")
            return found
        return self.primary()

    def starts_type(self) -> bool:
        return self.now.kind == "name" and (
            self.now.text in ("bit", "int", "bool") or self.now.text in self.types
        )

    # -- expressions

    def expression(self, level: int = 0) -> Node:
        if level == 0:
            where = self.now.where
            found = self.expression(1)
            if self.skip("?"):
                yes = self.expression()
                self.need(":")
                return "choose", where, found, yes, self.expression()
            return found
        if level > len(_BINARY):
            return self.unary()
        left = self.expression(level + 1)
        while self.sees(*_BINARY[level - 1]):
            op = self.take()
            left = "binary", op.where, op.text, left, self.expression(level + 1)
        return left

    def unary(self) -> Node:
        token = self.now
        if token.text in ("!", "~", "-") and token.kind == "symbol":
            self.take()
            return "unary", token.where, token.text, self.unary()
        if self.sees("("):
            ahead = self.tokens[self.at + 1]
            if ahead.kind == "name" and (ahead.text in ("bit", "int") or ahead.text in self.types):
                self.take()
                to = self.type()
                self.need(")")
                return "cast", token.where, to, self.unary()
        return self.postfix(self.primary())

    def primary(self) -> Node:
        token = self.take()
        if token.kind == "number":
            match = re.fullmatch(r"(?:(\d+)([ws]))?(.*)", token.text)
            assert match is not None
            width, sign, digits = match.groups()
            kind = None if width is None else (int(width), sign == "s")
            return "number", token.where, int(digits.replace("_", ""), 0), kind
        if token.text == "(":
            found = self.expression()
            if self.sees(","):
                parts = [found]
                while self.skip(","):
                    parts.append(self.expression())
                found = "tuple", token.where, parts
            self.need(")")
            return found
        if token.text == "{":
            parts = []
            while not self.skip("}"):
                parts.append(self.expression())
                self.skip(",")
            return "tuple", token.where, parts
        if token.kind == "name":
            if token.text in ("true", "false"):
                return "bool", token.where, token.text == "true"
            return "name", token.where, token.text
        raise P4Error(f"{token.where}: {token.text!r} begins no expression")

    def postfix(self, found: Node) -> Node:
        while True:
            where = self.now.where
            if self.skip("."):
                found = "member", where, found, self.name()
            elif self.skip("("):
                args = []
                while not self.skip(")"):
                    args.append(self.expression())
                    self.skip(",")
                found = "call", where, found, args
            elif self.skip("["):
                high = self.expression()
                self.need(":")
                low = self.expression()
                self.need("]")
                found = "slice", where, found, high, low
            else:
                return found

    # -- statements

    def block(self) -> list[Node]:
        self.need("{")
        found = []
        while not self.skip("}"):
            found.append(self.statement())
        return found

    def statement(self) -> Node:
        where = self.now.where
        if self.sees("{"):
            return "block", where, self.block()
        if self.skip("if"):
            self.need("(")
            condition = self.expression()
            self.need(")")
            yes = self.statement()
            no = self.statement() if self.skip("else") else ("block", where, [])
            return "if", where, condition, yes, no
        if self.skip("exit"):
            self.need(";")
            return "exit", where
        if self.starts_type() and self.tokens[self.at + 1].text not in (".", "("):
            return self.variable()
        target = self.postfix(self.primary())
        if self.skip("="):
            value = self.expression()
            self.need(";")
            return "assign", where, target, value
        self.need(";")
        return "do", where, target

    def variable(self) -> Node:
        where = self.now.where
        kind = self.type()
        name = self.name()
        value = self.expression() if self.skip("=") else None
        self.need(";")
        return "variable", where, kind, name, value

    # -- declarations

    def parameters(self) -> list[Node]:
        """(direction, type, name) each."""
        self.need("(")
        found = []
        while not self.skip(")"):
            direction = self.take().text if self.sees("in", "out", "inout") else ""
            kind = self.type()
            found.append((direction, kind, self.name()))
            self.skip(",")
        return found

    def program(self) -> list[Node]:
        found = []
        while self.now.kind != "end":
            self.annotations()
            found.append(self.declaration())
        return found

    def declaration(self) -> Node:
        where = self.now.where
        if self.skip("typedef"):
            kind = self.type()
            name = self.name()
            self.need(";")
            self.types.add(name)
            return "typedef", where, name, kind
        if self.skip("const"):
            kind = self.type()
            name = self.name()
            self.need("=")
            value = self.expression()
            self.need(";")
            return "const", where, kind, name, value
        if self.sees("struct", "header"):
            word = self.take().text
            name = self.name()
            self.types.add(name)
            self.need("{")
            fields = []
            while not self.skip("}"):
                self.annotations()
                kind = self.type()
                fields.append((kind, self.name()))
                self.need(";")
            return word, where, name, fields
        if self.skip("parser"):
            return self.parser(where)
        if self.skip("control"):
            return self.control(where)
        return self.instance()

    def instance(self) -> Node:
        where = self.now.where
        kind = self.type()
        self.need("(")
        args = []
        while not self.skip(")"):
            args.append(self.expression())
            self.skip(",")
        name = self.name()
        methods = []
        if self.skip("="):
            self.need("{")
            while not self.skip("}"):
                self.need("void")
                self.need("apply")
                params = self.parameters()
                methods.append((params, self.block()))
        self.need(";")
        return "instance", where, kind, args, name, methods

    def parser(self, where: str) -> Node:
        name = self.name()
        params = self.parameters()
        local: list[Node] = []
        states: dict[str, Node] = {}
        self.need("{")
        while not self.skip("}"):
            if not self.skip("state"):
                local.append(self.instance())
                continue
            state = self.name()
            self.need("{")
            body = []
            move: Node = ("accept",)
            while not self.skip("}"):
                if self.skip("transition"):
                    move = self.transition()
                else:
                    body.append(self.statement())
            states[state] = body, move
        return "parser", where, name, params, local, states

    def transition(self) -> Node:
        if not self.skip("select"):
            state = self.name()
            self.need(";")
            return "goto", state
        self.need("(")
        keys = []
        while not self.skip(")"):
            keys.append(self.expression())
            self.skip(",")
        self.need("{")
        cases = []
        while not self.skip("}"):
            match = self.keyset()
            self.need(":")
            cases.append((match, self.name()))
            self.need(";")
        return "select", keys, cases

    def keyset(self) -> list[Node]:
        """A list with a match per key; () stands for anything."""
        if self.skip("default"):
            return []
        if self.skip("("):
            found = []
            while not self.skip(")"):
                found.append(self.match())
                self.skip(",")
            return found
        return [self.match()]

    def match(self) -> Node:
        if self.skip("_") or self.skip("default"):
            return ()
        value = self.expression()
        mask = self.expression() if self.skip("&&&") else None
        return value, mask

    def control(self, where: str) -> Node:
        name = self.name()
        params = self.parameters()
        local: list[Node] = []
        body: list[Node] = []
        self.need("{")
        while not self.skip("}"):
            self.annotations()
            at = self.now.where
            if self.skip("action"):
                action = self.name()
                local.append(("action", at, action, self.parameters(), self.block()))
            elif self.skip("table"):
                local.append(self.table(at))
            elif self.skip("apply"):
                body = self.block()
            elif self.sees("const"):
                local.append(self.declaration())
            else:
                back = self.at
                self.type()
                is_instance = self.sees("(")
                self.at = back
                local.append(self.instance() if is_instance else self.variable())
        return "control", where, name, params, local, body

    def table(self, where: str) -> Node:
        name = self.name()
        found: dict[str, Any] = {"keys": [], "actions": [], "entries": [], "default": None}
        self.need("{")
        while not self.skip("}"):
            self.skip("const")
            word = self.name()
            self.need("=")
            if word == "key":
                self.need("{")
                while not self.skip("}"):
                    value = self.expression()
                    self.need(":")
                    kind = self.name()
                    found["keys"].append((value, kind, self.annotations().get("name")))
                    self.need(";")
            elif word == "actions":
                self.need("{")
                while not self.skip("}"):
                    self.annotations()
                    found["actions"].append(self.name())
                    self.need(";")
            elif word == "entries":
                self.need("{")
                while not self.skip("}"):
                    match = self.keyset()
                    self.need(":")
                    found["entries"].append((match, self.postfix(self.primary())))
                    self.need(";")
            elif word == "default_action":
                found["default"] = self.postfix(self.primary())
                self.need(";")
            else:
                found[word] = self.expression()
                self.need(";")
        return "table", where, name, found


# --- what a program is made of when it runs -----------------------------------------------------

Type = Any
"""(width, signed), "bool", None (a number without a width), or a StructType."""


@dataclass(frozen=True, eq=False, slots=True)
class StructType:
    name: str
    is_header: bool
    fields: dict[str, Type]

    @property
    def bits(self) -> int:
        return sum(width for width, _ in self.fields.values())


@dataclass(slots=True)
class Cell:
    """A variable."""

    type: Type
    value: Any = 0


class Struct:
    """A struct or header; its members are Cells and Structs."""

    def __init__(self, kind: StructType) -> None:
        self.type = kind
        self.valid = not kind.is_header
        self.members: dict[str, Any] = {
            name: Struct(t) if isinstance(t, StructType) else Cell(t, zero(t))
            for name, t in kind.fields.items()
        }
        members = self.members.values()
        within = [member for member in members if isinstance(member, Struct)]
        self._structs = [(self, self.valid), *(one for m in within for one in m._structs)]
        self._cells = [(cell, zero(cell.type)) for cell in members if isinstance(cell, Cell)]
        self._cells += [one for member in within for one in member._cells]

    def reset(self) -> None:
        for struct, valid in self._structs:
            struct.valid = valid
        for cell, value in self._cells:
            cell.value = value

    def __getitem__(self, path: str) -> Any:
        """Return the value of the member at a dotted path; a Struct where it is one."""
        found = self
        for name in path.split("."):
            found = found.members[name]
        return found.value if isinstance(found, Cell) else found

    def __setitem__(self, path: str, value: Any) -> None:
        *way, last = path.split(".")
        found = self
        for name in way:
            found = found.members[name]
        cell = found.members[last]
        assert fit(value, cell.type) == value, (path, value)
        cell.value = value

    def to_int(self) -> int:
        total = 0
        for name, (width, _) in self.type.fields.items():
            total = total << width | self.members[name].value
        return total

    def from_int(self, total: int) -> None:
        for name, (width, _) in reversed(self.type.fields.items()):
            self.members[name].value = total & (1 << width) - 1
            total >>= width


def zero(kind: Type) -> Any:
    return False if kind == "bool" else 0


def fit(value: int, kind: Type) -> Any:
    """Return ``value`` wrapped to a type."""
    if kind is None or kind == "bool":
        return value
    width, signed = kind
    value &= (1 << width) - 1
    return value - (1 << width) if signed and value >> (width - 1) else value


class Exit(Exception):
    """An exit statement."""


class Reject(Exception):
    """A packet too short for its headers."""


@dataclass(slots=True)
class Packet:
    """Bytes that a parser reads, bit by bit."""

    data: bytes
    at: int = 0

    def read(self, bits: int) -> int:
        end = self.at + bits
        if end > len(self.data) * 8:
            raise Reject
        first, last = self.at // 8, (end + 7) // 8
        word = int.from_bytes(self.data[first:last], "big")
        self.at = end
        return word >> (last * 8 - end) & (1 << bits) - 1

    @property
    def rest(self) -> bytes:
        return self.data[self.at // 8 :]


@dataclass(slots=True)
class Action:
    """An action; ``params`` are the cells of its action data."""

    name: str
    params: dict[str, Cell]
    run: Callable[[], None] = lambda: None


@dataclass(slots=True)
class TableEntry:
    action: str
    args: dict[str, int] | list[int]
    match: tuple[Any, ...] = ()
    priority: int = 0


@dataclass(slots=True)
class Table:
    """A table; keys by name as (kind, type)."""

    name: str
    keys: dict[str, tuple[str, Type]]
    read_keys: list[Callable[[], int]]
    actions: dict[str, Action]
    default: TableEntry | None
    const: bool
    entries: list[TableEntry] = field(default_factory=list)
    applied: int = 0
    hits: int = 0
    groups: dict[int, list[TableEntry]] = field(default_factory=dict)
    """Members by the exact key, where the table has an action selector."""
    _cache: dict[tuple[int, ...], TableEntry | None] = field(default_factory=dict)
    _selector: int | None = None
    """Which key is the selector's."""

    def __post_init__(self) -> None:
        kinds = [kind for kind, _ in self.keys.values()]
        self._selector = kinds.index("selector") if "selector" in kinds else None

    def add(self, key: dict[str, Any], action: str, priority: int = 0, **args: int) -> None:
        """Add an entry, or replace the one with the same key.

        ``key`` has by field: an int (exact), (value, length) (lpm), (value, mask) (ternary).
        """
        assert not self.const, f"{self.name}: const entries"
        assert key.keys() == self.keys.keys(), (self.name, key, self.keys)
        called = self.actions[action]
        assert args.keys() == called.params.keys(), (action, args)
        for name, value in args.items():
            assert fit(value, called.params[name].type) == value, (action, name, value)
        match = tuple(key[name] for name in self.keys)
        self.entries = [e for e in self.entries if e.match != match]
        self.entries.append(TableEntry(action, args, match, priority))
        self._cache.clear()

    def set_default(self, action: str, **args: int) -> None:
        self.default = TableEntry(action, args)

    def clear(self) -> None:
        if not self.const:
            self.entries.clear()
            self.groups.clear()
            self._cache.clear()

    def _matches(self, entry: TableEntry, keys: tuple[int, ...]) -> bool:
        for key, want, (kind, of) in zip(keys, entry.match, self.keys.values(), strict=True):
            if kind == "exact":
                if key != want:
                    return False
            elif kind == "ternary":
                if want is not None and (key ^ want[0]) & want[1]:
                    return False
            elif kind == "lpm":
                shift = of[0] - want[1]
                if key >> shift != want[0] >> shift:
                    return False
            else:
                raise P4Error(f"{self.name}: match kind {kind}")
        return True

    def _rank(self, entry: TableEntry) -> int:
        for want, (kind, _) in zip(entry.match, self.keys.values(), strict=True):
            if kind == "lpm":
                return int(want[1])
        return entry.priority

    def find(self, keys: tuple[int, ...]) -> TableEntry | None:
        if keys not in self._cache:
            matching = [e for e in self.entries if self._matches(e, keys)]
            if not self.const:
                matching.sort(key=self._rank, reverse=True)
            self._cache[keys] = matching[0] if matching else None
        return self._cache[keys]

    def call(self, entry: TableEntry) -> None:
        action = self.actions[entry.action]
        given = entry.args
        values = given if isinstance(given, list) else [given[name] for name in action.params]
        for cell, value in zip(action.params.values(), values, strict=True):
            cell.value = value
        action.run()

    def apply(self) -> bool:
        """Look the packet up and run what is found; say whether it was a hit."""
        self.applied += 1
        keys = tuple([read() for read in self.read_keys])
        selector = self._selector
        if selector is not None:
            members = self.groups.get(keys[1 - selector])
            if not members:
                return False
            self.call(members[keys[selector] % len(members)])
            self.hits += 1
            return True
        entry = self.find(keys)
        if entry is not None:
            self.hits += 1
            self.call(entry)
            return True
        if self.default is not None:
            self.call(self.default)
        return False


class Register:
    """A register array; a struct element is a dict by field."""

    def __init__(self, kind: Type, initial: Any) -> None:
        self.type = kind
        self.initial = initial
        self.cells: dict[int, Any] = {}
        self.accesses = 0

    def read(self, index: int) -> Any:
        if index in self.cells:
            return self.cells[index]
        if isinstance(self.type, StructType):
            return dict.fromkeys(self.type.fields, 0)
        return self.initial


# --- resolution ---------------------------------------------------------------------------------

Fn = Callable[[], Any]
Typed = tuple[Type, Fn]


class Scope:
    """Names of a block and of the blocks around it."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, Any] = {}
        self.parent = parent

    def __getitem__(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return name in self.names or (self.parent is not None and name in self.parent)

    def get(self, name: str) -> Any:
        """Return what a name stands for, or None."""
        return self[name] if name in self else None  # noqa: SIM401

    def add(self, name: str, thing: Any) -> None:
        self.names[name] = thing


EXTERNS = {
    "Register", "RegisterAction", "RegisterAction2", "RegisterAction3", "Counter", "Random", "Hash",
    "CRCPolynomial", "ActionProfile", "ActionSelector", "Checksum",
}  # fmt: skip


def crc(data: bytes, poly: int) -> int:
    """Return a reflected CRC-32 with initial value and final XOR all ones."""
    by_byte = _crc_of_bytes(poly)
    total = 0xFFFFFFFF
    for byte in data:
        total = total >> 8 ^ by_byte[total & 0xFF ^ byte]
    return total ^ 0xFFFFFFFF


@functools.cache
def _crc_of_bytes(poly: int) -> list[int]:
    reflected = int(f"{poly:032b}"[::-1], 2)
    found = []
    for total in range(256):
        for _ in range(8):
            total = total >> 1 ^ (reflected if total & 1 else 0)
        found.append(total)
    return found


CRC32_POLY = 0x04C11DB7


class Program:
    """A program with its controls and parsers, to be run by name.

    ``random`` is asked for every random number: it gets the path of the extern's instance and the
    width. Registers, counters and tables are found by dotted path below their control or parser,
    as in P4Info: ``program.tables["RingstepEgress.marker.job_params"]``.
    """

    def __init__(
        self,
        source: Path,
        architecture: str,
        random: Callable[[str, int], int],
        defines: dict[str, str] | None = None,
    ) -> None:
        self.random = random
        self.tables: dict[str, Table] = {}
        self.registers: dict[str, Register] = {}
        self.counters: dict[str, dict[int, int]] = {}
        self.externs: dict[str, Any] = {}
        self.accessed: list[str] = []
        """Registers that the packet accessed, in order."""
        self.top = Scope()
        self.declared: dict[str, Node] = {}
        self.instances: dict[str, Callable[[], Any]] = {}
        self.structs: dict[str, dict[str, Struct]] = {}
        """By control or parser: its parameters."""
        types = set(EXTERNS) | {"packet_in", "packet_out"}
        prelude = Parser(_tokens_of_text(architecture), types).program()
        program = Parser(tokens_of(source, defines or {}), types)
        self.top.add("bool", "bool")
        for node in prelude + self._without_package(program):
            self._declare(node)

    @staticmethod
    def _without_package(parser: Parser) -> list[Node]:
        found = []
        while not parser.sees("Pipeline") and parser.now.kind != "end":
            parser.annotations()
            found.append(parser.declaration())
        return found

    def reset(self) -> None:
        """Empty every table that is not const, every register and every counter."""
        for table in self.tables.values():
            table.clear()
        for register in self.registers.values():
            register.cells.clear()
        for counter in self.counters.values():
            counter.clear()

    # -- declarations

    def _declare(self, node: Node) -> None:
        kind, where = node[0], node[1]
        if kind == "typedef":
            self.top.add(node[2], self.resolve(node[3], self.top))
        elif kind == "const":
            self._constant(node, self.top)
        elif kind in ("struct", "header"):
            fields = {name: self.resolve(t, self.top) for t, name in node[3]}
            self.top.add(node[2], StructType(node[2], kind == "header", fields))
        elif kind in ("control", "parser"):
            self.declared[node[2]] = node
        elif kind == "instance":
            pass
        else:
            raise P4Error(f"{where}: {kind}")

    def _constant(self, node: Node, scope: Scope) -> None:
        _, where, kind, name, value = node
        to = self.resolve(kind, scope)
        found, fn = self.expression(value, scope, to)
        scope.add(name, ("const", to, fit(fn(), to)))
        self._same(found, to, where)

    def resolve(self, node: Node, scope: Scope) -> Type:
        """Return a type from its syntax."""
        if node[0] in ("bit", "int"):
            _, fn = self.expression(node[2], scope, None)
            return fn(), node[0] == "int"
        name = node[2]
        if name in EXTERNS or name in ("packet_in", "packet_out"):
            return name
        if name not in scope:
            raise P4Error(f"{node[1]}: type {name} is not declared")
        return scope[name]

    @staticmethod
    def _same(a: Type, b: Type, where: str) -> Type:
        if a is None:
            return b
        if b is None or a == b:
            return a
        raise P4Error(f"{where}: {a} does not go with {b}")

    # -- expressions

    def lvalue(self, node: Node, scope: Scope) -> Any:
        """Return the Cell or Struct, or ("slice", cell, high, low), that an expression names."""
        kind, where = node[0], node[1]
        if kind == "name":
            if node[2] not in scope:
                raise P4Error(f"{where}: {node[2]} is not declared")
            return scope[node[2]]
        if kind == "member":
            base = self.lvalue(node[2], scope)
            if not isinstance(base, Struct) or node[3] not in base.members:
                raise P4Error(f"{where}: no member {node[3]}")
            return base.members[node[3]]
        if kind == "slice":
            base = self.lvalue(node[2], scope)
            high, low = (self.expression(n, scope, None)[1]() for n in node[3:])
            if not isinstance(base, Cell) or not 0 <= low <= high < base.type[0]:
                raise P4Error(f"{where}: slice [{high}:{low}]")
            return "slice", base, high, low
        raise P4Error(f"{where}: nothing that has a place")

    def expression(self, node: Node, scope: Scope, expected: Type) -> Typed:
        """Return the type and a function that computes an expression."""
        kind, where = node[0], node[1]
        if kind == "number":
            value, of = node[2], node[3] or expected
            if of == "bool":
                of = None
            if of is not None and fit(value, of) & (1 << of[0]) - 1 != value:
                raise P4Error(f"{where}: {value} does not fit in {of}")
            value = fit(value, of)
            return of, lambda: value
        if kind == "bool":
            return "bool", lambda: node[2]
        if kind == "name" or kind == "member":
            if kind == "member" and node[3] == "hit":
                return "bool", self.call(node[2], scope)[1]
            if kind == "member" and node[2][0] == "name" and node[2][2] in ENUMS:
                return "enum", lambda: node[3]
            found = self.lvalue(node, scope)
            if isinstance(found, tuple) and found[0] == "const":
                return found[1], lambda: found[2]
            if isinstance(found, Cell):
                return found.type, lambda: found.value
            return found, lambda: found
        if kind == "slice":
            of, fn = self.expression(node[2], scope, None)
            high, low = (self.expression(n, scope, None)[1]() for n in node[3:])
            if not 0 <= low <= high < of[0]:
                raise P4Error(f"{where}: slice [{high}:{low}] of {of}")
            mask = (1 << high - low + 1) - 1
            return (high - low + 1, False), lambda: fn() >> low & mask
        if kind == "cast":
            return self._cast(node, scope)
        if kind == "unary":
            return self._unary(node, scope, expected)
        if kind == "binary":
            return self._binary(node, scope, expected)
        if kind == "choose":
            _, test = self.expression(node[2], scope, "bool")
            a, yes = self.expression(node[3], scope, expected)
            b, no = self.expression(node[4], scope, expected)
            return self._same(a, b, where), lambda: yes() if test() else no()
        if kind == "call":
            return self.call(node, scope)
        if kind == "tuple":
            parts = [self.expression(part, scope, None) for part in node[2]]
            return [t for t, _ in parts], lambda: [fn() for _, fn in parts]
        raise P4Error(f"{where}: {kind}")

    def _cast(self, node: Node, scope: Scope) -> Typed:
        to = self.resolve(node[2], scope)
        of, fn = self.expression(node[3], scope, None)
        if to == "bool" or of == "bool":
            if of == "bool":
                return to, lambda: int(fn())
            return to, lambda: bool(fn())
        return to, lambda: fit(fn(), to)

    def _unary(self, node: Node, scope: Scope, expected: Type) -> Typed:
        _, where, op, inner = node
        of, fn = self.expression(inner, scope, expected)
        if op == "!":
            self._same(of, "bool", where)
            return "bool", lambda: not fn()
        if op == "~":
            return of, lambda: fit(~fn(), of)
        return of, lambda: fit(-fn(), of)

    def _binary(self, node: Node, scope: Scope, expected: Type) -> Typed:
        _, where, op, a, b = node
        if op in ("&&", "||"):
            (ta, x), (tb, y) = (self.expression(n, scope, "bool") for n in (a, b))
            self._same(self._same(ta, "bool", where), tb, where)
            return "bool", (lambda: x() and y()) if op == "&&" else (lambda: x() or y())
        if op in ("<<", ">>"):
            of, x = self.expression(a, scope, expected)
            _, y = self.expression(b, scope, None)
            if op == "<<":
                return of, lambda: fit(x() << y(), of)
            return of, lambda: x() >> y()
        if op == "++":
            (ta, x), (tb, y) = (self.expression(n, scope, None) for n in (a, b))
            if ta is None or tb is None:
                raise P4Error(f"{where}: ++ of a number without a width")
            width = tb[0]
            mask = (1 << width) - 1
            return (ta[0] + width, ta[1]), lambda: x() << width | y() & mask
        relation = op in ("==", "!=", "<", "<=", ">", ">=")
        hint = None if relation else expected
        ta, x = self.expression(a, scope, hint)
        tb, y = self.expression(b, scope, ta if ta is not None else hint)
        if ta is None and tb is not None:
            ta, x = self.expression(a, scope, tb)
        of = self._same(ta, tb, where)
        if relation:
            if op in ("<", "<=", ">", ">=") and of == "bool":
                raise P4Error(f"{where}: {op} of bool")
            return "bool", {
                "==": lambda: x() == y(),
                "!=": lambda: x() != y(),
                "<": lambda: x() < y(),
                "<=": lambda: x() <= y(),
                ">": lambda: x() > y(),
                ">=": lambda: x() >= y(),
            }[op]
        if op in ("|+|", "|-|"):
            width, signed = of
            low = -(1 << width - 1) if signed else 0
            high = (1 << width - signed) - 1
            if op == "|+|":
                return of, lambda: min(max(x() + y(), low), high)
            return of, lambda: min(max(x() - y(), low), high)
        return of, {
            "+": lambda: fit(x() + y(), of),
            "-": lambda: fit(x() - y(), of),
            "*": lambda: fit(x() * y(), of),
            "&": lambda: x() & y(),
            "|": lambda: x() | y(),
            "^": lambda: x() ^ y(),
        }[op]

    # -- calls

    def call(self, node: Node, scope: Scope) -> Typed:
        """Return the type and a function that performs a call."""
        _, where, target, args = node
        if target[0] == "name":
            return self._call_plain(where, target[2], args, scope)
        base_node, method = target[2], target[3]
        if base_node[0] == "name" and base_node[2] in scope:
            thing = scope[base_node[2]]
        else:
            thing = self.lvalue(base_node, scope)
        if isinstance(thing, Struct):
            if method == "isValid":
                return "bool", lambda: thing.valid
            if method in ("setValid", "setInvalid"):
                return None, lambda: setattr(thing, "valid", method == "setValid")
        if isinstance(thing, Table) and method == "apply":
            thing_uses = self.externs.setdefault("applied tables", set())
            if thing.name in thing_uses:
                raise P4Error(f"{where}: table {thing.name} is applied twice")
            thing_uses.add(thing.name)
            return "bool", thing.apply
        if callable(thing):
            return thing(self, where, method, args, scope)
        raise P4Error(f"{where}: {method} of {base_node}")

    def _call_plain(self, where: str, name: str, args: list[Node], scope: Scope) -> Typed:
        if name in ("max", "min"):
            (ta, x), (tb, y) = (self.expression(n, scope, None) for n in args)
            if tb is None:
                tb, y = self.expression(args[1], scope, ta)
            of = self._same(ta, tb, where)
            pick = max if name == "max" else min
            return of, lambda: pick(x(), y())
        action = scope.get(name)
        if isinstance(action, Action):
            given = [
                (cell, self.expression(arg, scope, cell.type))
                for cell, arg in zip(action.params.values(), args, strict=True)
            ]
            for cell, (of, _) in given:
                self._same(of, cell.type, where)

            def run() -> None:
                for cell, (_, fn) in given:
                    cell.value = fn()
                action.run()

            return None, run
        raise P4Error(f"{where}: {name} is nothing to call")

    # -- statements

    def block(self, nodes: list[Node], scope: Scope) -> Callable[[], None]:
        """Return a function that runs the statements of a block with names of its own."""
        inner = Scope(scope)
        steps = [self.statement(node, inner) for node in nodes]
        if len(steps) == 1:
            return steps[0]

        def run() -> None:
            for step in steps:
                step()

        return run

    def statement(self, node: Node, scope: Scope) -> Callable[[], None]:
        kind, where = node[0], node[1]
        if kind == "block":
            return self.block(node[2], scope)
        if kind == "if":
            of, test = self.expression(node[2], scope, "bool")
            self._same(of, "bool", where)
            yes, no = self.block([node[3]], scope), self.block([node[4]], scope)
            return lambda: yes() if test() else no()
        if kind == "exit":

            def leave() -> None:
                raise Exit

            return leave
        if kind == "variable":
            return self._variable(node, scope)
        if kind == "assign":
            return self._assign(where, self.lvalue(node[2], scope), node[3], scope)
        if kind == "do":
            return self.expression(node[2], scope, None)[1]
        raise P4Error(f"{where}: {kind}")

    def _variable(self, node: Node, scope: Scope) -> Callable[[], None]:
        _, where, kind, name, value = node
        cell = Cell(self.resolve(kind, scope))
        cell.value = zero(cell.type)
        start = (lambda: zero(cell.type)) if value is None else None
        if value is not None:
            of, start = self.expression(value, scope, cell.type)
            self._same(of, cell.type, where)
        scope.add(name, cell)

        def run() -> None:
            cell.value = start()

        return run

    def _assign(self, where: str, to: Any, value: Node, scope: Scope) -> Callable[[], None]:
        if isinstance(to, tuple) and to[0] == "slice":
            _, cell, high, low = to
            width = high - low + 1
            of, fn = self.expression(value, scope, (width, False))
            self._same(of, (width, False), where)
            keep = ~(((1 << width) - 1) << low)

            def put() -> None:
                cell.value = fit(cell.value & keep | fn() << low, cell.type)

            return put
        if not isinstance(to, Cell):
            raise P4Error(f"{where}: assignment to what is no variable")
        of, fn = self.expression(value, scope, to.type)
        if of == "bool" and to.type != "bool":
            raise P4Error(f"{where}: a bool in {to.type}")
        self._same(of, to.type, where)

        def assign() -> None:
            to.value = fn()

        return assign

    # -- controls

    def instantiate(self, name: str, path: str, params: list[Any]) -> Callable[[], None]:
        """Return a function that runs a control with the given Cells and Structs as parameters."""
        _, _, _, declared, local, body = self.declared[name]
        scope = Scope(self.top)
        for (_, _, param), value in zip(declared, params, strict=True):
            scope.add(param, value)
        before = [step for node in local if (step := self._local(node, scope, path)) is not None]
        run_body = self.block(body, scope)

        def run() -> None:
            for step in before:
                step()
            run_body()

        return run

    def _local(self, node: Node, scope: Scope, path: str) -> Callable[[], None] | None:
        kind = node[0]
        if kind == "variable":
            return self._variable(node, scope)
        if kind == "const":
            self._constant(node, scope)
        elif kind == "action":
            _, _, name, declared, body = node
            inner = Scope(scope)
            params = {}
            for _, of, param in declared:
                params[param] = Cell(self.resolve(of, scope))
                inner.add(param, params[param])
            scope.add(name, Action(name, params, self.block(body, inner)))
        elif kind == "table":
            self._table(node, scope, path)
        elif kind == "instance":
            self._instance(node, scope, path)
        else:
            raise P4Error(f"{node[1]}: {kind}")
        return None

    def _table(self, node: Node, scope: Scope, path: str) -> None:
        _, where, name, of = node
        keys: dict[str, tuple[str, Type]] = {}
        read = []
        for value, kind, alias in of["keys"]:
            kind_of, fn = self.expression(value, scope, None)
            text = alias or _text(value)
            keys[text] = (kind, (1, False) if kind_of == "bool" else kind_of)
            read.append((lambda f=fn: int(f())) if kind_of == "bool" else fn)
        actions = {}
        for action in of["actions"]:
            actions[action] = Action("NoAction", {}) if action == "NoAction" else scope[action]
        default = None if of["default"] is None else self._entry(of["default"], actions, scope)
        table = Table(f"{path}.{name}", keys, read, actions, default, bool(of["entries"]))
        for matches, call in of["entries"]:
            entry = self._entry(call, actions, scope)
            entry.match = tuple(
                self._match(m, *keyed, where, scope)
                for m, keyed in zip(matches, keys.values(), strict=True)
            )
            table.entries.append(entry)
        scope.add(name, table)
        self.tables[table.name] = table

    def _match(self, match: Node, kind: str, of: Type, where: str, scope: Scope) -> Any:
        if not match:
            return None
        value = self.expression(match[0], scope, of)[1]()
        if kind == "exact":
            return value
        full = (1 << of[0]) - 1
        mask = full if match[1] is None else self.expression(match[1], scope, of)[1]()
        if value & ~mask:
            raise P4Error(f"{where}: {value:#x} &&& {mask:#x} never matches")
        return value, mask

    def _entry(self, call: Node, actions: dict[str, Action], scope: Scope) -> TableEntry:
        _, where, target, args = call
        name = target[2]
        if name not in actions:
            raise P4Error(f"{where}: action {name} is not the table's")
        params = actions[name].params.values()
        values = []
        for cell, arg in zip(params, args, strict=True):
            values.append(self.expression(arg, scope, cell.type)[1]())
        return TableEntry(name, values)

    # -- externs and sub-controls

    def _instance(self, node: Node, scope: Scope, path: str) -> None:
        _, where, kind, args, name, methods = node
        full = f"{path}.{name}"
        of = kind[2]
        if of in self.declared:
            scope.add(name, self._subcontrol(of, full))
        elif of == "Register":
            element = self.resolve(kind[3][0], scope)
            initial = self.expression(args[1], scope, element)[1]() if len(args) > 1 else 0
            self.registers[full] = Register(element, initial)
            scope.add(name, (full, self.registers[full]))
        elif of in ("RegisterAction", "RegisterAction2", "RegisterAction3"):
            where_register, register = scope[args[0][2]]
            scope.add(name, self._register_action(where_register, register, methods[0], scope))
        elif of == "Counter":
            counts = self.counters.setdefault(full, {})
            scope.add(name, lambda *call: self._count(counts, *call))
        elif of == "Random":
            width = self.resolve(kind[3][0], scope)
            scope.add(name, lambda *_: (width, lambda: self._draw(full, width)))
        elif of == "CRCPolynomial":
            scope.add(name, ("poly", self.expression(args[0], scope, None)[1]()))
        elif of == "Hash":
            scope.add(name, self._hash(kind, args, scope, where))
        elif of in ("ActionProfile", "ActionSelector"):
            scope.add(name, (of, full))
        elif of == "Checksum":
            scope.add(name, self._checksum())
        else:
            raise P4Error(f"{where}: extern {of}")

    def _draw(self, path: str, width: Type) -> int:
        value = self.random(path, width[0])
        assert fit(value, width) == value
        return value

    def _subcontrol(self, of: str, path: str) -> Callable[..., Typed]:
        def apply(_: Program, where: str, method: str, args: list[Node], scope: Scope) -> Typed:
            if method != "apply" or path in self.externs:
                raise P4Error(f"{where}: {path}.{method}, or applied twice")
            self.externs[path] = True
            given: list[Any] = []
            before, after = [], []
            for (direction, kind, _), arg in zip(self.declared[of][3], args, strict=True):
                to = self.resolve(kind, scope)
                if isinstance(to, StructType):
                    given.append(self.lvalue(arg, scope))
                    continue
                cell = Cell(to)
                given.append(cell)
                if direction != "out":
                    found, fn = self.expression(arg, scope, to)
                    self._same(found, to, where)
                    before.append((cell, fn))
                if direction in ("out", "inout"):
                    target = self.lvalue(arg, scope)
                    self._same(target.type, to, where)
                    after.append((target, cell))
            run = self.instantiate(of, path, given)

            def whole() -> None:
                for cell, fn in before:
                    cell.value = fn()
                run()
                for target, cell in after:
                    target.value = cell.value

            return None, whole

        return apply

    def _register_action(
        self, path: str, register: Register, method: Node, scope: Scope
    ) -> Callable[..., Typed]:
        params, body = method
        inner = Scope(scope)
        (_, _, value_name), *outs = params
        element: Any
        if isinstance(register.type, StructType):
            element = Struct(register.type)
        else:
            element = Cell(register.type)
        inner.add(value_name, element)
        cells = []
        for _, kind, name in outs:
            cells.append(Cell(self.resolve(kind, scope)))
            inner.add(name, cells[-1])
        run_body = self.block(body, inner)

        def execute(index: int) -> None:
            if path in self.accessed:
                raise P4Error(f"a packet accesses {path} twice")
            self.accessed.append(path)
            found = register.read(index)
            if isinstance(element, Struct):
                for name, value in found.items():
                    element.members[name].value = value
            else:
                element.value = found
            for cell in cells:
                cell.value = zero(cell.type)
            run_body()
            if isinstance(element, Struct):
                register.cells[index] = {n: c.value for n, c in element.members.items()}
            else:
                register.cells[index] = element.value

        def call(_: Program, where: str, method: str, args: list[Node], at: Scope) -> Typed:
            if method != "execute":
                raise P4Error(f"{where}: {method}")
            _, index = self.expression(args[0], at, None)
            targets = [self.lvalue(arg, at) for arg in args[1:]]
            for target, cell in zip(targets, cells[1:], strict=True):
                self._same(target.type, cell.type, where)

            def run() -> Any:
                execute(index())
                for target, cell in zip(targets, cells[1:], strict=True):
                    target.value = cell.value
                return cells[0].value if cells else None

            return cells[0].type if cells else None, run

        return call

    def _count(
        self,
        counts: dict[int, int],
        _: Program,
        where: str,
        method: str,
        args: list[Node],
        at: Scope,
    ) -> Typed:
        if method != "count":
            raise P4Error(f"{where}: {method}")
        _, index = self.expression(args[0], at, None)

        def run() -> None:
            counts[index()] = counts.get(index(), 0) + 1

        return None, run

    def _hash(self, kind: Node, args: list[Node], scope: Scope, where: str) -> Callable[..., Typed]:
        width = self.resolve(kind[3][0], scope)
        algorithm = args[0][3]
        if algorithm == "CRC32":
            poly: int | None = CRC32_POLY
        elif algorithm == "CUSTOM":
            poly = scope[args[1][2]][1]
        elif algorithm == "IDENTITY":
            poly = None
        else:
            raise P4Error(f"{where}: hash {algorithm}")

        def get(_: Program, where: str, method: str, args: list[Node], at: Scope) -> Typed:
            types, fn = self.expression(args[0], at, None)
            bits = sum(t[0] for t in types)
            if bits % 8 or poly is None:
                raise P4Error(f"{where}: hash over {bits} bits")

            def run() -> int:
                total = 0
                for value, (size, _) in zip(fn(), types, strict=True):
                    total = total << size | value
                return crc(total.to_bytes(bits // 8, "big"), poly) & (1 << width[0]) - 1

            return width, run

        return get

    def _checksum(self) -> Callable[..., Typed]:
        total = Cell((32, False))

        def call(_: Program, where: str, method: str, args: list[Node], at: Scope) -> Typed:
            if method == "verify":
                # Tofino's verify says whether the packet is in error.
                return "bool", lambda: _fold(total.value) != 0xFFFF
            if method != "add":
                raise P4Error(f"{where}: {method}")
            header = self.lvalue(args[0], at)

            def add() -> None:
                word = header.to_int()
                total.value = 0
                while word:
                    total.value += word & 0xFFFF
                    word >>= 16

            return None, add

        return call

    # -- parsers and deparsers

    def parser(self, name: str, params: dict[str, Any]) -> Callable[[Packet], None]:
        """Return a function that parses a packet into the given parameters.

        Raises Reject where the packet is too short. Intrinsic metadata are not in the packet:
        whoever runs the parser sets them.
        """
        _, _, _, declared, local, states = self.declared[name]
        scope = Scope(self.top)
        for _, kind, param in declared:
            if kind[2] == "packet_in":
                holder = Cell("packet")
                scope.add(param, self._packet(holder))
            else:
                scope.add(param, params[param])
        for node in local:
            self._local(node, scope, name)
        run = {
            state: (self.block(body, scope), self._transition(move, scope))
            for state, (body, move) in states.items()
        }

        def parse(packet: Packet) -> None:
            holder.value = packet
            state = "start"
            while state != "accept":
                body, move = run[state]
                body()
                state = move()

        return parse

    def _packet(self, holder: Cell) -> Callable[..., Typed]:
        def call(_: Program, where: str, method: str, args: list[Node], at: Scope) -> Typed:
            if method == "advance":
                _, size = self.expression(args[0], at, None)
                return None, lambda: None if size() == 0 else holder.value.read(size())
            header = self.lvalue(args[0], at)
            if header.type.name.endswith("intrinsic_metadata_t"):
                return None, lambda: None

            def extract() -> None:
                header.from_int(holder.value.read(header.type.bits))
                header.valid = True

            return None, extract

        return call

    def _transition(self, move: Node, scope: Scope) -> Callable[[], str]:
        if move[0] == "accept":
            return lambda: "accept"
        if move[0] == "goto":
            return lambda: str(move[1])
        keys = [self.expression(key, scope, None) for key in move[1]]
        cases = []
        for matches, state in move[2]:
            tests = []
            for (of, fn), match in zip(keys, matches or [()] * len(keys), strict=True):
                want = self._match(match, "ternary", of, "select", scope)
                if want is not None:
                    tests.append((fn, want))
            cases.append((tests, state))

        def step() -> str:
            for tests, state in cases:
                if all((fn() ^ value) & mask == 0 for fn, (value, mask) in tests):
                    return str(state)
            raise Reject

        return step

    def deparser(self, name: str, hdr: Struct) -> Callable[[], bytes]:
        """Return a function that gives the bytes of the headers that are valid."""
        _, _, _, declared, _, body = self.declared[name]
        names = []
        for _, where, target in body:
            if target[0] != "call" or target[2][3] != "emit" or target[3][0][0] != "member":
                raise P4Error(f"{where}: no emit of a header")
            names.append(target[3][0][3])
        headers = [hdr.members[n] for n in names]
        assert declared

        def emit() -> bytes:
            return b"".join(
                h.to_int().to_bytes(h.type.bits // 8, "big") for h in headers if h.valid
            )

        return emit


ENUMS = {"HashAlgorithm_t", "CounterType_t", "SelectorMode_t"}


def _fold(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _text(node: Node) -> str:
    return f"{_text(node[2])}.{node[3]}" if node[0] == "member" else str(node[2])


def _tokens_of_text(text: str) -> list[Token]:
    found = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, text[at : at + 20]
        at = match.end()
        if match.lastgroup:
            found.append(Token(match.lastgroup, match.group(), "architecture"))
    return [*found, Token("end", "", "architecture")]
