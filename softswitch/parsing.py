"""The parser as Python: nested tests on the frame, with byte offsets known where they can be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringstep.softswitch import layout
from ringstep.softswitch.controlflow import parser_graph, topological_order
from ringstep.softswitch.expressions import Value
from ringstep.softswitch.model import (
    VALID,
    Advance,
    Const,
    Extract,
    FieldRef,
    Lookahead,
    ParserOp,
    ParseState,
    Verify,
)
from ringstep.softswitch.pyir import Assign, Body, Branch, Effect, Take
from ringstep.softswitch.scope import Scope, choose, plus
from ringstep.softswitch.statements import Statements

MAX_OFFSETS = 8
"""Most byte offsets a parser state is specialised for."""


@dataclass(frozen=True, slots=True)
class _ParserNode:
    """A parser state at a byte offset (None: only known at run time).

    A shared node is entered from several places, so it stands on its own instead of inside its
    predecessor.
    """

    state: ParseState
    offset: int | None
    shared: bool


@dataclass(slots=True)
class _Cases:
    """Key values (None: all) that lead to `next_state`."""

    values: list[tuple[tuple[int, int], ...]] | None
    next_state: str | None
    exact: bool = False


class ParserGenerator:
    """Translates the parser of one program.

    Making it notes in the scope where each header is extracted; `generate` gives the code.
    """

    def __init__(self, scope: Scope, statements: Statements) -> None:
        self._scope = scope
        self._statements = statements
        self._nodes = self._parser_nodes()
        self._index = {(n.state.name, n.offset): (i, n) for i, n in enumerate(self._nodes)}

    def generate(self) -> Body:
        """Parses, sets parser_error, and leaves the offset of the payload."""
        body: Body = []
        error = self._scope.program.architecture_field("standard_metadata", "parser_error")
        if error is not None:
            code = str(self._scope.program.errors.get("NoError", 0))
            body.append(Assign(self._scope.field_var(error), code))
        if not self._nodes:
            return [*body, Assign(self._scope.payload_var(), "0")]
        body.extend(self._parser_state(self._nodes[0]))
        for index, node in enumerate(self._nodes[1:], 1):
            if node.shared:
                entered = f"{self._state_var()} == {index}"
                body.append(Branch([(entered, self._parser_state(node))]))
        return body

    def _parser_nodes(self) -> list[_ParserNode]:
        """The states in topological order, once per byte offset they can be entered at.

        Also notes where each header is extracted.
        """
        start = self._scope.program.start_state
        order = topological_order(parser_graph(self._scope.program.states), start)
        entries: dict[str, dict[int | None, int]] = {name: {} for name in order}
        if start is not None:
            entries[start][0] = 1
        last: dict[str, set[str]] = {name: set() for name in order}
        position = {h: i for i, h in enumerate(self._scope.program.deparser)}
        self._scope.fixed_layout = len(position) == len(self._scope.program.deparser)
        for name in order:
            state = self._scope.program.states[name]
            if len(entries[name]) > MAX_OFFSETS or None in entries[name]:
                entries[name] = {None: sum(entries[name].values())}
            before = set(last[name])
            for op in state.ops:
                if isinstance(op, Extract) and op.header in position:
                    if any(position[h] >= position[op.header] for h in before):
                        self._scope.fixed_layout = False
                    before = {op.header}
                elif isinstance(op, Extract | Advance):
                    self._scope.layout_changes = True
            for offset in entries[name]:
                after = self._walk_offsets(state, offset)
                for case in _select_cases(state, self._key_widths(state)):
                    if case.next_state is not None:
                        into = entries[case.next_state]
                        into[after] = into.get(after, 0) + 1
            for transition in state.transitions:
                if transition.next_state is not None:
                    last[transition.next_state] |= before
        return [
            _ParserNode(self._scope.program.states[name], offset, count > 1 or offset is None)
            for name in order
            for offset, count in entries[name].items()
        ]

    def _walk_offsets(self, state: ParseState, offset: int | None) -> int | None:
        for op in state.ops:
            if isinstance(op, Extract):
                self._scope.extracted.setdefault(op.header, set()).add(offset)
                if offset is not None:
                    offset += self._scope.program.headers[op.header].size
            elif isinstance(op, Advance):
                if offset is not None and isinstance(op.bits, Const) and op.bits.value % 8 == 0:
                    offset += op.bits.value // 8
                else:
                    offset = None
        return offset

    def _state_var(self) -> str:
        return self._scope.variable("state", "state_id")

    def _cursor_var(self) -> str:
        return self._scope.variable("cursor", "cursor")

    def _parser_state(self, node: _ParserNode) -> Body:
        return self._parser_ops(node.state, list(node.state.ops), node.offset)

    def _stop(self, offset: int | None, error: str | None = None) -> Body:
        """End of parsing at `offset`, with the code of `error` if it is given."""
        at = self._cursor_var() if offset is None else str(offset)
        body: Body = [Assign(self._scope.payload_var(), at)]
        target = self._scope.program.architecture_field("standard_metadata", "parser_error")
        if error is not None and target is not None:
            body.append(Assign(self._scope.field_var(target), error))
        return body

    def _too_short(self, offset: int | None) -> Body:
        return self._stop(offset, str(self._scope.program.errors.get("PacketTooShort", 1)))

    def _parser_ops(self, state: ParseState, ops: list[ParserOp], offset: int | None) -> Body:
        body: Body = []
        cursor = self._cursor_var()
        for index, op in enumerate(ops):
            rest = ops[index + 1 :]
            if isinstance(op, Extract):
                size = self._scope.program.headers[op.header].size
                room = (
                    f"end >= {offset + size}"
                    if offset is not None
                    else (f"end >= {cursor} + {size}")
                )
                taken = self._extract(op.header, offset)
                after = None if offset is None else offset + size
                if offset is None:
                    taken.append(Assign(cursor, f"{cursor} + {size}"))
                inside = [*taken, *self._parser_ops(state, rest, after)]
                return [*body, *choose(room, inside, self._too_short(offset))]
            if isinstance(op, Verify):
                condition = self._scope.expr.condition(op.condition, (), op.where)
                code = self._scope.expr.data(op.error, (), op.where).text
                inside = self._parser_ops(state, rest, offset)
                return [*body, *choose(condition, inside, self._stop(offset, code))]
            if isinstance(op, Advance):
                return [*body, *self._advance(state, op, rest, offset)]
            if op.op == "assign" and isinstance(op.args[1], Lookahead):
                ahead = op.args[1]
                value = self._peek(ahead, offset)
                inside = [
                    *self._statements.assign(op.args[0], value),
                    *self._parser_ops(state, rest, offset),
                ]
                room = self._room(ahead, offset)
                return [*body, *choose(room, inside, self._too_short(offset))]
            body.extend(self._statements.call(op))
        return [*body, *self._select(state, offset)]

    def _advance(
        self, state: ParseState, op: Advance, rest: list[ParserOp], offset: int | None
    ) -> Body:
        cursor = self._cursor_var()
        bits = self._scope.expr.data(op.bits, (), op.where)
        at = cursor if offset is None else str(offset)
        if bits.constant is not None and bits.constant % 8 == 0 and offset is not None:
            after = offset + bits.constant // 8
            inside = [Assign(self._scope.moved(), "1"), *self._parser_ops(state, rest, after)]
            return choose(f"end >= {after}", inside, self._too_short(offset))
        step = self._scope.expr.temporary()
        invalid = str(self._scope.program.errors.get("ParserInvalidArgument", 7))
        inside = [
            Assign(self._scope.moved(), "1"),
            Assign(cursor, f"{at} + {step} // 8"),
            *self._parser_ops(state, rest, None),
        ]
        return [
            Effect(f"{step} = {bits.text}"),
            Branch(
                [
                    (f"{step} % 8", self._stop(offset, invalid)),
                    (f"{at} + {step} // 8 <= end", inside),
                ],
                self._too_short(offset),
            ),
        ]

    def _room(self, ahead: Lookahead, offset: int | None) -> str:
        # BMv2 asks for as many bytes as the peeked bits need from the cursor on; bits that start
        # later need more, or it would read behind the packet.
        need = (ahead.offset + ahead.width + 7) // 8
        return (
            f"end >= {offset + need}"
            if offset is not None
            else (f"end >= {self._cursor_var()} + {need}")
        )

    def _peek(self, ahead: Lookahead, offset: int | None) -> Value:
        first, last = ahead.offset // 8, (ahead.offset + ahead.width + 7) // 8
        base = "" if offset is not None else f"{self._cursor_var()} + "
        low, high = first + (offset or 0), last + (offset or 0)
        if high - low == 1:
            text = f"data[{base}{low}]"
        else:
            text = f'int.from_bytes(data[{base}{low}:{base}{high}], "big")'
        shift = 8 * last - ahead.offset - ahead.width
        if shift:
            text = f"{text} >> {shift}"
        top = (1 << ahead.width) - 1
        if ahead.width + shift < 8 * (last - first):
            text = f"{text} & {top:#x}"
        return Value(text, 0, top)

    def _extract(self, name: str, offset: int | None) -> Body:
        header = self._scope.program.headers[name]
        variables = {n: self._scope.field_var(FieldRef(name, n)) for n in header.fields}
        at = self._cursor_var() if offset is None else str(offset)

        def take(live: frozenset[str]) -> list[str]:
            wanted = {n: v for n, v in variables.items() if v in live}
            return self._unpack_lines(layout.plan_unpack(header, wanted), at)

        body: Body = [Take(tuple(variables.values()), take, at)]
        body.append(Assign(self._scope.valid_var(name), "1"))
        if name not in self._scope.program.deparser:
            body.append(Assign(self._scope.moved(), "1"))
        where = self._scope.at_var(name)
        if where in self._scope.vars:
            body.append(Assign(where, at))
        if self._scope.is_written(name):
            body.append(Assign(self._scope.dirty_var(name), "0"))
        return body

    def _unpack_lines(self, plan: layout.UnpackPlan, at: str) -> list[str]:
        targets = plan.targets
        if set(plan.fmt) <= set("x0123456789B") and len(targets) <= 2:
            places, skipped = [], 0
            for count, code in re.findall(r"(\d*)([xB])", plan.fmt):
                skipped += int(count or 1)
                if code == "B":
                    places.append(skipped - 1)
            lines = [
                f"{target} = data[{plus(at, place)}]"
                for target, place in zip(targets, places, strict=True)
            ]
        else:
            unpack = self._scope.struct(plan.fmt, "unpack_from")
            lines = [f"{', '.join(targets)}{',' * (len(targets) == 1)} = {unpack}(data, {at})"]
        return [*lines, *plan.after]

    def _select(self, state: ParseState, offset: int | None) -> Body:
        arms: list[tuple[str, Body]] = []
        otherwise: Body | None = None
        keys: list[str] = []
        room: str | None = None
        for part in state.key:
            if isinstance(part, Lookahead):
                keys.append(self._peek(part, offset).inner)
                room = self._room(part, offset)
            else:
                keys.append(self._unsigned(part))
        widths = self._key_widths(state)
        for transition in _select_cases(state, widths):
            target = self._go(transition.next_state, offset)
            if transition.values is None:
                otherwise = target
                break
            condition = _case_condition(keys, widths, transition.values)
            if condition == "True":
                otherwise = target
                break
            arms.append((condition, target))
        body: Body
        if otherwise is None:
            otherwise = self._stop(offset)
        body = [Branch(arms, otherwise)] if arms else otherwise
        return body if room is None else choose(room, body, self._too_short(offset))

    def _key_widths(self, state: ParseState) -> list[int]:
        return [
            part.width
            if isinstance(part, Lookahead)
            else (1 if part.name == VALID else self._scope.program.field(part).width)
            for part in state.key
        ]

    def _unsigned(self, ref: FieldRef) -> str:
        text = self._scope.field_value(ref).text
        if ref.name != VALID and self._scope.program.field(ref).signed:
            return f"({text} & {(1 << self._scope.program.field(ref).width) - 1:#x})"
        return text

    def _go(self, name: str | None, offset: int | None) -> Body:
        if name is None:
            return self._stop(offset)
        key = (name, offset)
        if key not in self._index:
            key = (name, None)
        index, node = self._index[key]
        if not node.shared:
            return self._parser_state(node)
        body: Body = [Assign(self._state_var(), str(index))]
        if node.offset is None and offset is not None:
            body.append(Assign(self._cursor_var(), str(offset)))
        return body


def _select_cases(state: ParseState, widths: list[int]) -> list[_Cases]:
    """The state's transitions, those to the same state put together where their order allows it.

    Cases that compare the whole key exclude one another, so among those the order is free.
    """
    result: list[_Cases] = []
    full = [(1 << w) - 1 for w in widths]
    seen: set[tuple[tuple[int, int], ...]] = set()
    for transition in state.transitions:
        if transition.cases is None:
            result.append(_Cases(None, transition.next_state))
            break
        exact = all(m == f for (_, m), f in zip(transition.cases, full, strict=True))
        if exact and transition.cases in seen:
            continue
        seen.add(transition.cases)
        home: _Cases | None = None
        for earlier in reversed(result):
            if earlier.next_state == transition.next_state:
                home = earlier
                break
            if not (exact and earlier.exact):
                break
        if home is None:
            home = _Cases([], transition.next_state, exact)
            result.append(home)
        assert home.values is not None
        home.values.append(transition.cases)
        home.exact = home.exact and exact
    return result


def _case_condition(
    keys: list[str], widths: list[int], values: list[tuple[tuple[int, int], ...]]
) -> str:
    if len(keys) == 1 and len(values) > 1:
        full = (1 << widths[0]) - 1
        if all(cases[0][1] == full for cases in values):
            return f"{keys[0]} in {{{', '.join(f'{cases[0][0]:#x}' for cases in values)}}}"
    options = []
    for cases in values:
        tests = []
        for key, width, (value, mask) in zip(keys, widths, cases, strict=True):
            if mask == (1 << width) - 1:
                tests.append(f"{key} == {value:#x}")
            elif mask:
                tests.append(f"{key} & {mask:#x} == {value:#x}")
        if not tests:
            return "True"
        options.append(" and ".join(tests))
    return options[0] if len(options) == 1 else " or ".join(f"({o})" for o in options)
