"""P4 expressions as Python source, with the range of values each can take.

BMv2 computes with unbounded integers and truncates when a value is stored in a field, which is
what Python's integers do. Ranges are tracked so that truncation, and p4c's explicit `& mask`,
vanish where they cannot change the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringstep.softswitch.errors import UnsupportedConstruct
from ringstep.softswitch.model import (
    MAX_FIELD_WIDTH,
    BoolConst,
    Const,
    Expr,
    FieldRef,
    FieldType,
    HeaderRef,
    Local,
    Lookahead,
    Op,
    is_bool,
)

MAX_SHIFT = MAX_FIELD_WIDTH
"""A longer left shift leaves no bit of any field; it is cut to this, so that a shift amount out
of a packet cannot make a number that fills the memory."""

_PYTHON_OPS = {"and": "and", "or": "or"}


@dataclass(frozen=True, slots=True)
class Value:
    """Python source of a data expression, with inclusive bounds (None: unbounded)."""

    text: str
    low: int | None
    high: int | None
    atomic: bool = False

    @property
    def inner(self) -> str:
        """The text, fit to be an operand."""
        return self.text if self.atomic else f"({self.text})"

    @property
    def constant(self) -> int | None:
        """The value, if it is known."""
        return self.low if self.low is not None and self.low == self.high else None

    def within(self, low: int, high: int) -> bool:
        """True iff the value is known to lie in low..high."""
        return (
            self.low is not None and self.high is not None and low <= self.low and self.high <= high
        )


def constant(value: int) -> Value:
    """A literal."""
    text = str(value) if -10 < value < 1000 else hex(value)
    return Value(text if value >= 0 else f"({text})", value, value, True)


def _bits(value: int) -> int:
    return (1 << value.bit_length()) - 1


class Compiler:
    """Compiles expressions.

    `field_value` gives the source of a field, `header_valid` that of a header's validity,
    `headers_equal` that of the comparison of two headers.
    """

    def __init__(
        self,
        field_value: Callable[[FieldRef], Value],
        header_valid: Callable[[str], str],
        headers_equal: Callable[[str, str], str],
    ) -> None:
        self._field = field_value
        self._valid = header_valid
        self._headers_equal = headers_equal
        self._temporaries = 0

    def temporary(self) -> str:
        """A fresh name for a value used twice in one expression."""
        self._temporaries += 1
        return f"t{self._temporaries}"

    # -- booleans

    def condition(self, expr: Expr, args: tuple[Value, ...] = (), where: str = "") -> str:
        """Source of a boolean expression, safe to combine with and/or/not when parenthesised."""
        if isinstance(expr, BoolConst):
            return str(expr.value)
        if isinstance(expr, Op) and expr.op == "b2d":
            return self.condition(expr.args[0], args, where)
        if not is_bool(expr):
            # BMv2 wants d2b here; a data value in its place is taken as "not zero".
            value = self.data(expr, args, where)
            if value.constant is not None:
                return str(value.constant != 0)
            return f"{value.inner} != 0"
        assert isinstance(expr, Op)
        op, operands = expr.op, expr.args
        if op == "valid":
            assert isinstance(operands[0], HeaderRef)
            return self._valid(operands[0].name)
        if op == "d2b":
            if isinstance(operands[0], Op) and operands[0].op == "b2d":
                return self.condition(operands[0].args[0], args, where)
            value = self.data(operands[0], args, where)
            if value.constant is not None:
                return str(value.constant != 0)
            return value.inner if value.within(0, 1) else f"{value.inner} != 0"
        if op == "not":
            inner = self.condition(operands[0], args, where)
            return str(inner == "False") if inner in ("True", "False") else f"not ({inner})"
        if op in ("and", "or"):
            return self._connect(op, operands, args, where)
        if op == "?":
            cond, then, other = (self.condition(o, args, where) for o in operands)
            return f"(({then}) if ({cond}) else ({other}))"
        return self._comparison(op, operands, args, where)

    def _connect(
        self, op: str, operands: tuple[Expr, ...], args: tuple[Value, ...], where: str
    ) -> str:
        left = self.condition(operands[0], args, where)
        right = self.condition(operands[1], args, where)
        neutral, absorbing = ("True", "False") if op == "and" else ("False", "True")
        if absorbing in (left, right):
            return absorbing
        if left == neutral:
            return right
        if right == neutral:
            return left
        return f"({left}) {_PYTHON_OPS[op]} ({right})"

    def _comparison(
        self, op: str, operands: tuple[Expr, ...], args: tuple[Value, ...], where: str
    ) -> str:
        left, right = operands
        if isinstance(left, HeaderRef) and isinstance(right, HeaderRef) and op in ("==", "!="):
            equal = self._headers_equal(left.name, right.name)
            return equal if op == "==" else f"not ({equal})"
        if is_bool(left) or is_bool(right):
            first = self.condition(left, args, where)
            second = self.condition(right, args, where)
            return f"(not ({first})) {'is' if op == '==' else 'is not'} (not ({second}))"
        a, b = self.data(left, args, where), self.data(right, args, where)
        if a.constant is not None and b.constant is not None:
            x, y = a.constant, b.constant
            outcome = {
                "==": x == y,
                "!=": x != y,
                "<": x < y,
                "<=": x <= y,
                ">": x > y,
                ">=": x >= y,
            }
            return str(outcome[op])
        return f"{a.inner} {op} {b.inner}"

    # -- data

    def data(self, expr: Expr, args: tuple[Value, ...] = (), where: str = "") -> Value:
        """Source of a data expression. `args` are the arguments of the enclosing action."""
        if isinstance(expr, Const):
            return constant(expr.value)
        if isinstance(expr, FieldRef):
            return self._field(expr)
        if isinstance(expr, Local):
            return args[expr.index]
        if isinstance(expr, Lookahead):
            raise UnsupportedConstruct("lookahead inside an expression", where)
        if is_bool(expr):
            text = self.condition(expr, args, where)
            if text in ("True", "False"):
                return constant(int(text == "True"))
            return Value(f"1 if {text} else 0", 0, 1)
        if not isinstance(expr, Op):
            raise UnsupportedConstruct("a header used as a number", where)
        if expr.op == "b2d":
            return self.data(expr.args[0], args, where)
        if expr.op == "?":
            return self._choice(expr, args, where)
        if expr.op == "~":
            operand = self.data(expr.args[0], args, where)
            return Value(f"~{operand.inner}", _negate(operand.high, -1), _negate(operand.low, -1))
        left = self.data(expr.args[0], args, where)
        right = self.data(expr.args[1], args, where)
        if expr.op in ("two_comp_mod", "usat_cast", "sat_cast"):
            return self._cast(expr.op, left, right, where)
        return self._arithmetic(expr.op, left, right, where)

    def _choice(self, expr: Op, args: tuple[Value, ...], where: str) -> Value:
        cond = self.condition(expr.args[0], args, where)
        then, other = (self.data(e, args, where) for e in expr.args[1:])
        if cond in ("True", "False"):
            return then if cond == "True" else other
        low = None if then.low is None or other.low is None else min(then.low, other.low)
        high = None if then.high is None or other.high is None else max(then.high, other.high)
        return Value(f"{then.inner} if {cond} else {other.inner}", low, high)

    def _arithmetic(self, op: str, a: Value, b: Value, where: str) -> Value:
        if op == "<<":
            return self._shift_left(a, b)
        if op == ">>":
            return self._shift_right(a, b)
        x, y = a.constant, b.constant
        if op in "/%":
            if not (a.low is not None and a.low >= 0 and b.low is not None and b.low >= 0):
                raise UnsupportedConstruct(f"{op!r} on values that may be negative", where)
            python = "//" if op == "/" else "%"
            top = a.high if op == "/" or b.high is None else max(b.high - 1, 0)
            if y:
                return Value(f"{a.inner} {python} {b.inner}", 0, top)
            name = self.temporary()
            return Value(f"{a.inner} {python} {name} if ({name} := {b.text}) else 0", 0, top)
        if x is not None and y is not None:
            results = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}
            return constant(results[op])
        if op == "&":
            return self._bit_and(a, b)
        if op in "|^":
            if y == 0:
                return a
            if x == 0:
                return b
            non_negative = a.low is not None and a.low >= 0 and b.low is not None and b.low >= 0
            top = None if a.high is None or b.high is None else _bits(a.high) | _bits(b.high)
            low, high = (0, top) if non_negative else (None, None)
            return Value(f"{a.inner} {op} {b.inner}", low, high)
        if (op in "+-" and y == 0) or (op == "*" and y == 1):
            return a
        low, high = _bounds(op, a, b)
        return Value(f"{a.inner} {op} {b.inner}", low, high)

    @staticmethod
    def _bit_and(a: Value, b: Value) -> Value:
        for value, mask in ((a, b.constant), (b, a.constant)):
            if mask is None or mask < 0:
                continue
            if mask == 0:
                return constant(0)
            if mask & (mask + 1) == 0 and value.within(0, mask):
                return value
        bounds = [v.high for v in (a, b) if v.low is not None and v.low >= 0]
        known = [h for h in bounds if h is not None]
        low = 0 if bounds else None
        return Value(f"{a.inner} & {b.inner}", low, min(known) if known else None)

    @staticmethod
    def _shift_left(a: Value, b: Value) -> Value:
        amount = b.constant
        if amount is not None:
            amount = min(max(amount, 0), MAX_SHIFT)
            if amount == 0:
                return a
            if a.constant is not None:
                return constant(a.constant << amount)
            low = None if a.low is None else a.low << amount
            high = None if a.high is None else a.high << amount
            return Value(f"{a.inner} << {amount}", low, high)
        text = b.inner if b.within(0, MAX_SHIFT) else f"min(max({b.text}, 0), {MAX_SHIFT})"
        low = 0 if a.low is not None and a.low >= 0 else None
        top = MAX_SHIFT if b.high is None else min(b.high, MAX_SHIFT)
        high = None if a.high is None or low is None else a.high << top
        return Value(f"{a.inner} << {text}", low, high)

    @staticmethod
    def _shift_right(a: Value, b: Value) -> Value:
        amount = b.constant
        if amount is not None:
            amount = max(amount, 0)
            if amount == 0:
                return a
            if a.constant is not None:
                return constant(a.constant >> amount)
            low = None if a.low is None else a.low >> amount
            high = None if a.high is None else a.high >> amount
            return Value(f"{a.inner} >> {amount}", low, high)
        text = b.inner if b.low is not None and b.low >= 0 else f"max({b.text}, 0)"
        if a.low is not None and a.low >= 0:
            return Value(f"{a.inner} >> {text}", 0, a.high)
        return Value(f"{a.inner} >> {text}", None, None)

    def _cast(self, op: str, value: Value, width: Value, where: str) -> Value:
        bits = width.constant
        if bits is None or not 1 <= bits <= MAX_FIELD_WIDTH:
            raise UnsupportedConstruct(f"{op} to a computed width", where)
        if op == "usat_cast":
            return self.clamp(value, 0, (1 << bits) - 1)
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        if op == "sat_cast":
            return self.clamp(value, low, high)
        return self.wrap_signed(value, bits)

    def clamp(self, value: Value, low: int, high: int) -> Value:
        """`value`, saturated to low..high."""
        too_low = value.low is None or value.low < low
        too_high = value.high is None or value.high > high
        if not too_low and not too_high:
            return value
        if value.constant is not None:
            return constant(min(max(value.constant, low), high))
        name = self.temporary()
        parts = []
        if too_low:
            parts.append(f"{low} if ({name} := {value.text}) < {low} else")
        if too_high:
            first = name if too_low else f"({name} := {value.text})"
            parts.append(f"{high:#x} if {first} > {high:#x} else")
        # All of the range may lie on one side of the bounds.
        low_out = low if value.low is None else min(max(value.low, low), high)
        high_out = high if value.high is None else max(min(value.high, high), low)
        return Value(f"{' '.join(parts)} {name}", low_out, high_out)

    @staticmethod
    def wrap_signed(value: Value, bits: int) -> Value:
        """`value` as a two's-complement number of `bits` bits."""
        half = 1 << (bits - 1)
        if value.within(-half, half - 1):
            return value
        mask = (1 << bits) - 1
        return Value(f"({value.inner} + {half:#x} & {mask:#x}) - {half:#x}", -half, half - 1)

    def store(self, value: Value, field: FieldType) -> Value:
        """`value` as the field holds it after an assignment."""
        top = (1 << field.width) - 1
        if field.saturating:
            half = 1 << (field.width - 1)
            low, high = (-half, half - 1) if field.signed else (0, top)
            return self.clamp(value, low, high)
        if field.signed:
            return self.wrap_signed(value, field.width)
        if value.within(0, top):
            return value
        if value.constant is not None:
            return constant(value.constant & top)
        return Value(f"{value.inner} & {top:#x}", 0, top)


def _negate(value: int | None, plus: int) -> int | None:
    return None if value is None else -value + plus


def _bounds(op: str, a: Value, b: Value) -> tuple[int | None, int | None]:
    if op == "+":
        low = None if a.low is None or b.low is None else a.low + b.low
        high = None if a.high is None or b.high is None else a.high + b.high
        return low, high
    if op == "-":
        low = None if a.low is None or b.high is None else a.low - b.high
        high = None if a.high is None or b.low is None else a.high - b.low
        return low, high
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None, None
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)
