"""Actions as Python: primitives, hashes and checksums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringstep.protocol.limits import DROP_PORT
from ringstep.softswitch.errors import PipelineError, UnsupportedConstruct
from ringstep.softswitch.expressions import Value, constant
from ringstep.softswitch.hashes import ALGORITHMS
from ringstep.softswitch.meters import RED
from ringstep.softswitch.model import (
    Calculation,
    Call,
    Checksum,
    Expr,
    FieldRef,
    HeaderRef,
    If,
    Statement,
)
from ringstep.softswitch.pyir import Assign, Body, Branch, Effect
from ringstep.softswitch.replication import MAX_SESSION
from ringstep.softswitch.scope import Scope, choose


class Statements:
    """Translates the statements of one program. `arguments` are those of the action at hand.

    p4c puts most operands into temporaries first. So within an action the range of what was
    assigned is remembered: it proves that an index lies within its array, and saves asking.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.arguments: tuple[Value, ...] = ()
        self._in_action = False

    def action(self, body: tuple[Statement, ...], arguments: tuple[Value, ...]) -> Body:
        """A whole action with its arguments."""
        assert not self._in_action
        self.arguments, self._in_action = arguments, True
        result = self.block(body)
        self.arguments, self._in_action = (), False
        self._scope.known.clear()
        return result

    def _learn(self, variable: str, value: Value | None) -> None:
        """`variable` has just been assigned; None: of a value nothing is known of."""
        if self._in_action and value is not None and None not in (value.low, value.high):
            assert value.low is not None
            assert value.high is not None
            self._scope.known[variable] = value.low, value.high
        else:
            self._scope.known.pop(variable, None)

    def assign(self, target: FieldRef, value: Value) -> Body:
        """`target` takes `value`, truncated to its width."""
        stored = self._scope.expr.store(value, self._scope.program.field(target))
        variable = self._scope.field_var(target)
        body: Body = [Assign(variable, stored.text)]
        self._learn(variable, stored)
        if not self._scope.program.headers[target.header].metadata:
            body.append(Assign(self._scope.dirty_var(target.header), "1"))
        return body

    def block(self, body: tuple[Statement, ...]) -> Body:
        """The statements of an action or of one of its branches."""
        result: Body = []
        for statement in body:
            if isinstance(statement, If):
                condition = self._scope.expr.condition(statement.condition, self.arguments)
                before = dict(self._scope.known)
                then = self.block(statement.then)
                after_then, self._scope.known = self._scope.known, before
                otherwise = self.block(statement.otherwise)
                self._scope.known = _either(after_then, self._scope.known)
                result.extend(choose(condition, then, otherwise))
            else:
                result.extend(self.call(statement))
        return result

    def call(self, call: Call) -> Body:
        """One primitive."""
        handler: Callable[[Call], Body] = getattr(self, f"_do_{call.op}")
        return handler(call)

    def _data(self, expr: Expr, call: Call) -> Value:
        return self._scope.expr.data(expr, self.arguments, call.where)

    def _do_assign(self, call: Call) -> Body:
        return self.assign(call.args[0], self._data(call.args[1], call))

    _do_modify_field = _do_assign

    def _do_assign_header(self, call: Call) -> Body:
        to, source = call.args[0].name, call.args[1].name
        names = self._scope.program.headers[to].fields
        for name in names:
            self._learn(self._scope.field_var(FieldRef(to, name)), None)
        copies: Body = [
            Assign(
                self._scope.field_var(FieldRef(to, n)), self._scope.field_var(FieldRef(source, n))
            )
            for n in names
        ]
        if self._scope.program.headers[to].metadata:
            return copies
        valid = self._scope.valid_var(to)
        moved: Body = [Assign(self._scope.moved(), "1")]
        copies = [*copies, Assign(self._scope.dirty_var(to), "1"), Assign(valid, "1")]
        return [
            Branch([(f"{self._scope.valid_var(source)}", copies)], [Assign(valid, "0")]),
            *moved,
        ]

    _do_copy_header = _do_assign_header

    def _do_add_header(self, call: Call) -> Body:
        name = call.args[0].name
        header = self._scope.program.headers[name]
        if header.metadata:
            return []
        valid = self._scope.valid_var(name)
        for one in header.fields:
            self._learn(self._scope.field_var(FieldRef(name, one)), None)
        fresh: Body = [Assign(self._scope.field_var(FieldRef(name, n)), "0") for n in header.fields]
        fresh += [
            Assign(valid, "1"),
            Assign(self._scope.dirty_var(name), "1"),
            Assign(self._scope.moved(), "1"),
            Assign(self._scope.length(), f"{self._scope.length()} + {header.size}"),
        ]
        return [Branch([(f"not {valid}", fresh)])]

    def _do_remove_header(self, call: Call) -> Body:
        name = call.args[0].name
        header = self._scope.program.headers[name]
        if header.metadata:
            return []
        valid = self._scope.valid_var(name)
        return [
            Branch(
                [
                    (
                        valid,
                        [
                            Assign(valid, "0"),
                            Assign(self._scope.moved(), "1"),
                            Assign(self._scope.length(), f"{self._scope.length()} - {header.size}"),
                        ],
                    )
                ]
            )
        ]

    def _do_mark_to_drop(self, call: Call) -> Body:
        # The metadata header is an argument: it may be a copy of standard_metadata.
        header = self._scope.program.headers[call.args[0].name]
        if "egress_spec" not in header.fields:
            raise PipelineError(f"mark_to_drop: {header.name!r} has no egress_spec ({call.where})")
        body = self.assign(FieldRef(header.name, "egress_spec"), constant(DROP_PORT))
        if self._scope.multicast is not None and "mcast_grp" in header.fields:
            body += self.assign(FieldRef(header.name, "mcast_grp"), constant(0))
        return body

    def _do_drop(self, call: Call) -> Body:
        body = self.assign(self._scope.egress_spec(), constant(DROP_PORT))
        if self._scope.multicast is not None:
            body += self.assign(self._scope.multicast, constant(0))
        return body

    def _do_clone_ingress_pkt_to_egress(self, call: Call) -> Body:
        # Either primitive clones at the end of the control that it is called in.
        session = self._data(call.args[0], call)
        valid = MAX_SESSION + 1
        return [
            Assign(
                self._scope.request("clone_session"),
                str(session.constant & MAX_SESSION | valid)
                if session.constant is not None
                else f"{session.inner} & {MAX_SESSION:#x} | {valid:#x}",
            ),
            Assign(self._scope.request("clone_list"), str(call.args[1])),
        ]

    _do_clone_egress_pkt_to_egress = _do_clone_ingress_pkt_to_egress

    def _do_resubmit(self, call: Call) -> Body:
        return [Assign(self._scope.request("resubmit_list"), str(call.args[0]))]

    def _do_recirculate(self, call: Call) -> Body:
        return [Assign(self._scope.request("recirculate_list"), str(call.args[0]))]

    def _do_generate_digest(self, call: Call) -> Body:
        return [Assign(self._scope.request("learn_list"), str(call.args[1]))]

    def _do_truncate(self, call: Call) -> Body:
        # Of several lengths the shortest counts.
        length = self._data(call.args[0], call)
        so_far = self._scope.request("truncate_to")
        return [Assign(so_far, f"min({so_far} or {length.inner} + 1, {length.inner} + 1)")]

    def _do_no_op(self, call: Call) -> Body:
        return []

    _do_NoAction = _do_no_op  # noqa: N815 - the primitive's name

    def _do_exit(self, call: Call) -> Body:
        # BMv2 finishes the action, and looks at the mark before the next table or condition.
        return [Assign(self._scope.exit_flag(), "1")]

    def _in_bounds(self, index: Value, size: int) -> bool:
        return index.within(0, size - 1)

    def _do_register_read(self, call: Call) -> Body:
        target, register, index = call.args
        definition = self._scope.program.registers[register.name]
        array = self._scope.bind("register", register.name, f"REG_{register.name}")
        at = self._data(index, call)
        top = (1 << definition.width) - 1
        if self._in_bounds(at, definition.size):
            return self.assign(target, Value(f"{array}[{at.text}]", 0, top, True))
        # Out of range leaves the target as it was.
        name = self._scope.expr.temporary()
        old = self._scope.field_value(target)
        text = f"{array}[{name}] if 0 <= ({name} := {at.text}) < {definition.size} else {old.text}"
        low, high = min(old.low or 0, 0), max(top, old.high or 0)
        return self.assign(target, Value(text, low, high))

    def _do_register_write(self, call: Call) -> Body:
        register, index, value = call.args
        definition = self._scope.program.registers[register.name]
        array = self._scope.bind("register", register.name, f"REG_{register.name}")
        at = self._data(index, call)
        top = (1 << definition.width) - 1
        new = self._data(value, call)
        text = new.text if new.within(0, top) else f"{new.inner} & {top:#x}"
        if self._in_bounds(at, definition.size):
            return [Effect(f"{array}[{at.text}] = {text}")]
        name = self._scope.expr.temporary()
        return [
            Branch(
                [
                    (
                        f"0 <= ({name} := {at.text}) < {definition.size}",
                        [Effect(f"{array}[{name}] = {text}")],
                    )
                ]
            )
        ]

    def _do_count(self, call: Call) -> Body:
        counter, index = call.args
        definition = self._scope.program.counters[counter.name]
        if definition.table is not None:
            return []
        at = self._data(index, call)
        unit = self._scope.units.get(counter.name, "both")

        def increments(position: str) -> Body:
            lines: Body = []
            if unit in ("packets", "both"):
                packets = self._scope.bind("counter.packets", counter.name, f"PKT_{counter.name}")
                lines.append(Effect(f"{packets}[{position}] += 1"))
            if unit in ("bytes", "both"):
                octets = self._scope.bind("counter.bytes", counter.name, f"BYT_{counter.name}")
                lines.append(Effect(f"{octets}[{position}] += len(data)"))
            return lines

        if self._in_bounds(at, definition.size):
            return increments(at.text)
        name = self._scope.expr.temporary()
        return [Branch([(f"0 <= ({name} := {at.text}) < {definition.size}", increments(name))])]

    def _do_execute_meter(self, call: Call) -> Body:
        meter, index, target = call.args
        definition = self._scope.program.meters[meter.name]
        if definition.table is not None:
            return []
        execute = self._scope.bind("meter", meter.name, f"METER_{meter.name}")
        at = self._data(index, call)
        if self._in_bounds(at, definition.size):
            return self.metered(target, f"{execute}({at.text}, len(data), now)")
        name = self._scope.expr.temporary()
        inside = self.metered(target, f"{execute}({name}, len(data), now)")
        return [Branch([(f"0 <= ({name} := {at.text}) < {definition.size}", inside)])]

    def metered(self, target: FieldRef, colour: str) -> Body:
        """`target` takes a colour, which must be asked for even where nobody reads it."""
        kind = self._scope.program.field(target)
        stored = self._scope.expr.store(Value(colour, 0, RED), kind)
        variable = self._scope.field_var(target)
        self._learn(variable, None)
        body: Body = [Effect(f"{variable} = {stored.text}", (variable,))]
        if not self._scope.program.headers[target.header].metadata:
            body.append(Assign(self._scope.dirty_var(target.header), "1"))
        return body

    def _do_modify_field_rng_uniform(self, call: Call) -> Body:
        target, low, high = call.args
        random = self._scope.bind("runtime", "rng", "RANDOM")
        a, b = self._data(low, call), self._data(high, call)
        kind = self._scope.program.field(target)
        value = Value(f"{random}({a.text}, {b.text})", a.low, b.high)
        stored = self._scope.expr.store(value, kind)
        variable = self._scope.field_var(target)
        self._learn(variable, None)
        draw: Body = [Effect(f"{variable} = {stored.text}", (variable,))]
        if not self._scope.program.headers[target.header].metadata:
            draw.append(Assign(self._scope.dirty_var(target.header), "1"))
        if a.high is not None and b.low is not None and a.high <= b.low:
            return draw
        # BMv2 leaves the target alone where the bounds are crossed.
        return [Branch([(f"{a.inner} <= {b.inner}", draw)])]

    def _do_modify_field_with_hash_based_offset(self, call: Call) -> Body:
        target, base, calculation, size = call.args
        body, text = self._hash(self._scope.program.calculations[calculation.name], call.where)
        b, n = self._data(base, call), self._data(size, call)
        if n.constant is not None:
            count = n.constant or 1
            value = f"{text} % {count}"
            top: int | None = count - 1
            if count == 1:
                value, body = "0", []
        else:
            value, top = f"{text} % ({n.text} or 1)", None
        high = None if top is None or b.high is None else top + b.high
        if b.constant != 0:
            value = f"{b.inner} + {value}"
        return [*body, *self.assign(target, Value(value, b.low, high))]

    def _do_log_msg(self, call: Call) -> Body:
        text, values = call.args
        log = self._scope.bind("runtime", "log", "LOG")
        arguments = "".join(f", {self._data(v, call).text}" for v in values)
        return [Effect(f"{log}({text!r}{arguments})")]

    def _do_assert(self, call: Call) -> Body:
        condition = self._scope.expr.condition(call.args[0], self.arguments, call.where)
        failed = self._scope.bind("runtime", "assertion", "ASSERTION_FAILED")
        return [Branch([(f"not ({condition})", [Effect(f"{failed}({call.where!r})")])])]

    _do_assume = _do_assert

    # -- hashes and checksums

    def _concatenate(self, inputs: tuple[Any, ...], where: str) -> tuple[Body, str, str]:
        """(statements, source of the input as one integer, source of its length in bits).

        Fields of invalid headers are left out, as BMv2 does.
        """
        groups: list[tuple[str | None, list[tuple[str, int]]]] = []

        def add(header: str | None, text: str, width: int) -> None:
            if not groups or groups[-1][0] != header:
                groups.append((header, []))
            groups[-1][1].append((text, width))

        for item in inputs:
            if isinstance(item, tuple):
                add(None, str(item[0]), item[1])
                continue
            header = self._scope.program.headers[
                item.header if isinstance(item, FieldRef) else item.name
            ]
            names = [item.name] if isinstance(item, FieldRef) else list(header.fields)
            for name in names:
                kind = header.fields[name]
                text = self._scope.field_var(FieldRef(header.name, name))
                if kind.signed:
                    text = f"({text} & {(1 << kind.width) - 1:#x})"
                add(None if header.metadata else header.name, text, kind.width)

        def joined(parts: list[tuple[str, int]]) -> tuple[str, int]:
            total = sum(w for _, w in parts)
            left, terms = total, []
            for text, width in parts:
                left -= width
                terms.append(f"{text} << {left}" if left else text)
            return " | ".join(terms) or "0", total

        if all(header is None for header, _ in groups):
            text, total = joined([p for _, parts in groups for p in parts])
            return [], text, str(total)
        acc, bits = self._scope.vars.add("acc"), self._scope.vars.add("bits")
        body: Body = [Assign(acc, "0"), Assign(bits, "0")]
        for header_name, parts in groups:
            text, total = joined(parts)
            lines: Body = [
                Assign(acc, f"{acc} << {total} | {text}"),
                Assign(bits, f"{bits} + {total}"),
            ]
            if header_name is None:
                body.extend(lines)
            else:
                body.append(Branch([(self._scope.valid_var(header_name), lines)]))
        return body, acc, bits

    def _hash(self, calculation: Calculation, where: str) -> tuple[Body, str]:
        if calculation.with_payload:
            raise UnsupportedConstruct(
                f"payload in calculation {calculation.name!r}", f"at calculations; {where}"
            )
        return self.hash_of(calculation.algorithm, calculation.inputs, where)

    def hash_of(self, algorithm: str, inputs: tuple[Any, ...], where: str) -> tuple[Body, str]:
        """(statements to run before, source of the hash of `inputs`)."""
        if algorithm not in ALGORITHMS:
            raise UnsupportedConstruct(f"hash algorithm {algorithm!r}", where)
        function = self._scope.bind("hash", algorithm, f"HASH_{algorithm}")
        body, text, bits = self._concatenate(inputs, where)
        if bits.isdigit():
            width = int(bits)
            pad = -width % 8
            value = f"({text}) << {pad}" if pad else text
            return body, f"{function}({value}, {(width + pad) // 8})"
        return body, f"{function}({text} << -{bits} % 8, ({bits} + 7) // 8)"

    def _checksum(self, checksum: Checksum) -> tuple[Body, str]:
        calculation = self._scope.program.calculations[checksum.calculation]
        where = f"at checksums[{checksum.name}]"
        if calculation.algorithm == "csum16" and not calculation.with_payload:
            sum_text = self._aligned_sum(calculation, checksum.target.header)
            if sum_text is not None:
                acc = self._scope.vars.add("acc")
                body: Body = [Assign(acc, sum_text)]
                return body, f"0xffff - ({acc} % 0xffff or (0xffff if {acc} else 0))"
        return self._hash(calculation, where)

    def _aligned_sum(self, calculation: Calculation, valid_header: str) -> str | None:
        """The sum of the input's 16-bit words modulo 2^16 - 1, unless other headers are in it.

        All of the input belongs to one header that is known to be valid, so every field stands
        at a known place, and since 2^16 is 1 it moves by 15 bits at most.
        """
        width = 0
        parts: list[tuple[str, int, int]] = []
        for item in calculation.inputs:
            if isinstance(item, HeaderRef):
                return None
            if isinstance(item, tuple):
                text, size = str(item[0]), item[1]
            else:
                if item.header != valid_header:
                    return None
                kind = self._scope.program.field(item)
                if kind.signed:
                    return None
                text, size = self._scope.field_var(item), kind.width
            parts.append((text, width, size))
            width += size
        terms = []
        for text, start, size in parts:
            shift = -(start + size) % 16
            terms.append(f"({text} << {shift})" if shift else text)
        return " + ".join(terms) if terms else "0"

    def verify_checksums(self) -> Body:
        """Sets checksum_error where a checksum of the packet is wrong."""
        target = self._scope.program.architecture_field("standard_metadata", "checksum_error")
        body: Body = []
        if target is None:
            return body
        error = self._scope.field_var(target)
        for checksum in self._scope.program.checksums:
            if checksum.verify:
                lines, text = self._checksum(checksum)
                stored = self._scope.field_var(checksum.target)
                lines = [*lines, Assign(error, f"1 if {stored} != ({text}) else {error}")]
                body.extend(choose(self._checksum_guard(checksum), lines, []))
        return body

    def _checksum_guard(self, checksum: Checksum) -> str:
        valid = self._scope.valid_var(checksum.target.header)
        if checksum.condition is None:
            return "True" if valid == "1" else valid
        condition = self._scope.expr.condition(checksum.condition, (), f"checksum {checksum.name}")
        implied = condition == valid or condition.startswith(f"({valid}) and ")
        if valid == "1" or implied or condition == "False":
            return condition
        return valid if condition == "True" else f"{valid} and ({condition})"

    def update_checksums(self) -> Body:
        """Brings the checksums up to date."""
        body: Body = []
        for checksum in self._scope.program.checksums:
            if checksum.update:
                lines, text = self._checksum(checksum)
                lines = [*lines, *self.assign(checksum.target, Value(text, 0, None))]
                body.extend(choose(self._checksum_guard(checksum), lines, []))
        return body


def _either(
    one: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """What is known where two branches meet."""
    return {
        name: (min(one[name][0], other[name][0]), max(one[name][1], other[name][1]))
        for name in one.keys() & other.keys()
    }
