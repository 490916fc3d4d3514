"""Table entries between plain values and P4Runtime protobufs, without a detour.

An object per field, as a general P4Runtime library makes them, costs some 80 µs per entry and
direction: with 16,000 rules the event loop would stand still for seconds. Here ids, widths and
match kinds are looked up once per program. What comes out equals what finsy makes
(``tests/controller/test_codec.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from finsy import P4Schema
from finsy.proto import p4i, p4r

from ringstep.controller.entries import (
    ActionCall,
    ActionSet,
    EntryKey,
    EntryValue,
    Exact,
    FieldValue,
    GroupRef,
    Lpm,
    MemberRef,
    Range,
    Ternary,
)

_CACHED_PARAMS: Final = 3
"""Actions with more parameters are remembered whole: many jobs share theirs."""
_CACHE_SIZE: Final = 4096
_EXACT: Final = p4i.MatchField.EXACT
_LPM: Final = p4i.MatchField.LPM
_TERNARY: Final = p4i.MatchField.TERNARY
_RANGE: Final = p4i.MatchField.RANGE
_OPTIONAL: Final = p4i.MatchField.OPTIONAL
_Field = tuple[str, int, int, int]
"""Name, id, width in bits, match kind."""
_N = TypeVar("_N")


class CodecError(Exception):
    """A switch sent an entity that the P4Info does not describe."""


def _encode(value: int, width: int, what: str) -> bytes:
    """Return the canonical (shortest) bytestring of a value."""
    if value < 0 or value >> width:
        raise ValueError(f"{what}: {value:#x} does not fit in {width} bits")
    return value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")


def _decode(data: bytes, width: int, what: str) -> int:
    """Return the value of a bytestring, which may be padded."""
    value = int.from_bytes(data, "big")
    if value >> width or not data:
        raise CodecError(f"{what}: {data.hex() or 'an empty string'} is no value of {width} bits")
    return value


class _Action:
    """One action of the program, its parameters in the order of their names."""

    __slots__ = ("by_param", "id", "name", "params", "sorted_names")

    def __init__(self, info: p4i.Action) -> None:
        self.id = info.preamble.id
        self.name = info.preamble.alias
        self.params = tuple((param.name, param.id, param.bitwidth) for param in info.params)
        self.by_param = {param.id: (param.name, param.bitwidth) for param in info.params}
        self.sorted_names = tuple(sorted(name for name, _, _ in self.params))


class _Table:
    """One table of the program."""

    __slots__ = ("action_ids", "alias", "by_field", "by_name", "fields", "id", "is_const")

    def __init__(self, info: p4i.Table) -> None:
        self.id = info.preamble.id
        self.alias = info.preamble.alias
        self.is_const = info.is_const_table
        self.fields = tuple(
            (field.name, field.id, field.bitwidth, field.match_type) for field in info.match_fields
        )
        self.by_name = {field[0]: field for field in self.fields}
        self.by_field = {field[1]: field for field in self.fields}
        self.action_ids = frozenset(reference.id for reference in info.action_refs)


class TableCodec:
    """Encodes and decodes the table entries of one program."""

    def __init__(self, schema: P4Schema) -> None:
        info = schema.p4info
        self._tables = {table.preamble.alias: _Table(table) for table in info.tables}
        self._table_ids = {table.id: table for table in self._tables.values()}
        self._actions = {action.preamble.alias: _Action(action) for action in info.actions}
        self._action_ids = {action.id: action for action in self._actions.values()}
        self._profiles = {one.preamble.alias: one.preamble.id for one in info.action_profiles}
        self._profile_ids = {number: name for name, number in self._profiles.items()}
        self._counters = {one.preamble.alias: one.preamble.id for one in info.counters}
        self._encoded: dict[ActionCall, p4r.Action] = {}
        self._decoded: dict[bytes, ActionCall] = {}

    # -- to the switch -----------------------------------------------------------------------

    def put_entry(self, entry: p4r.TableEntry, key: EntryKey, value: EntryValue | None) -> None:
        """Fill an empty message with an entry; without ``value``, with its key only.

        Raises:
            ValueError: the entry does not fit the P4Info.
        """
        table = _named(self._tables, key.table, "table")
        entry.table_id = table.id
        for name, match in key.match:
            field = table.by_name.get(name)
            if field is None:
                raise ValueError(f"table {key.table} has no match field {name}")
            _put_match(entry, field, match, key.table)
        if len(key.match) < len(table.fields):
            _check_exact_given(table, key)
        if key.priority:
            entry.priority = key.priority
        if value is not None:
            self._put_value(entry.action, table, value)

    def put_default(self, entry: p4r.TableEntry, table_name: str, call: ActionCall | None) -> None:
        """Fill an empty message with a default entry; without ``call``, to ask for it.

        Raises:
            ValueError: the action does not fit the P4Info.
        """
        table = _named(self._tables, table_name, "table")
        entry.table_id = table.id
        entry.is_default_action = True
        if call is not None:
            self._put_action(entry.action.action, table, call)

    def put_call(self, message: p4r.Action, call: ActionCall) -> None:
        """Fill an empty message with the action of an action profile's member.

        Raises:
            ValueError: the action does not fit the P4Info.
        """
        _put_params(message, _named(self._actions, call.name, "action"), call)

    def profile_id(self, name: str) -> int:
        """Return the id of an action profile.

        Raises:
            ValueError: the program has none of that name.
        """
        return _named(self._profiles, name, "action profile")

    def put_wildcard(self, entry: p4r.TableEntry, table_name: str) -> None:
        """Fill an empty message so that it asks for all entries of a table."""
        entry.table_id = _named(self._tables, table_name, "table").id

    def put_counter(self, entry: p4r.CounterEntry, counter: str, index: int) -> None:
        """Fill an empty message with one cell of a counter and a count of zero."""
        entry.counter_id = _named(self._counters, counter, "counter")
        entry.index.index = index
        entry.data.SetInParent()

    def _put_value(self, action: p4r.TableAction, table: _Table, value: EntryValue) -> None:
        match value:
            case ActionCall():
                self._put_action(action.action, table, value)
            case GroupRef():
                action.action_profile_group_id = value.group_id
            case MemberRef():
                action.action_profile_member_id = value.member_id
            case ActionSet():
                for call, weight in value.actions:
                    one = action.action_profile_action_set.action_profile_actions.add()
                    one.weight = weight
                    self._put_action(one.action, table, call)

    def _put_action(self, message: p4r.Action, table: _Table, call: ActionCall) -> None:
        action = _named(self._actions, call.name, "action")
        if action.id not in table.action_ids:
            raise ValueError(f"table {table.alias} has no action {call.name}")
        if len(call.args) <= _CACHED_PARAMS:
            _put_params(message, action, call)
            return
        known = self._encoded.get(call)
        if known is None:
            known = p4r.Action()
            _put_params(known, action, call)
            if len(self._encoded) >= _CACHE_SIZE:
                self._encoded.clear()
            self._encoded[call] = known
        message.CopyFrom(known)

    # -- from the switch ---------------------------------------------------------------------

    def key_of(self, entry: p4r.TableEntry) -> EntryKey | None:
        """Return the key of an entry; None for one of a const table.

        Raises:
            CodecError: the P4Info does not describe it.
        """
        table = self._table_of(entry)
        if table.is_const or entry.is_const:
            return None
        match = [_match_of(field, table) for field in entry.match]
        match.sort(key=_first)
        return EntryKey(table.alias, tuple(match), entry.priority)

    def value_of(self, entry: p4r.TableEntry) -> EntryValue:
        """Return what an entry does.

        Raises:
            CodecError: the P4Info does not describe it.
        """
        action = entry.action
        kind = action.WhichOneof("type")
        if kind == "action":
            return self.call_of(action.action)
        if kind == "action_profile_group_id":
            return GroupRef(action.action_profile_group_id)
        if kind == "action_profile_member_id":
            return MemberRef(action.action_profile_member_id)
        if kind == "action_profile_action_set":
            return ActionSet(
                tuple(
                    (self.call_of(one.action), one.weight)
                    for one in action.action_profile_action_set.action_profile_actions
                )
            )
        raise CodecError(f"table {self._table_of(entry).alias}: an entry has no action")

    def default_of(self, entry: p4r.TableEntry) -> tuple[str, ActionCall] | None:
        """Return table and action of a default entry; None where the switch says none.

        Raises:
            CodecError: the P4Info does not describe it.
        """
        table = self._table_of(entry)
        if entry.action.WhichOneof("type") != "action":
            return None
        return table.alias, self.call_of(entry.action.action)

    def _table_of(self, entry: p4r.TableEntry) -> _Table:
        table = self._table_ids.get(entry.table_id)
        if table is None:
            raise CodecError(f"no table has id {entry.table_id:#x}")
        return table

    def profile_name(self, number: int) -> str:
        """Return the name of an action profile.

        Raises:
            CodecError: the program has none of that id.
        """
        name = self._profile_ids.get(number)
        if name is None:
            raise CodecError(f"no action profile has id {number:#x}")
        return name

    def call_of(self, message: p4r.Action) -> ActionCall:
        """Return an action with its arguments.

        Raises:
            CodecError: the P4Info does not describe it.
        """
        if len(message.params) <= _CACHED_PARAMS:
            return self._decode_call(message)
        wire = message.SerializeToString()
        known = self._decoded.get(wire)
        if known is None:
            known = self._decode_call(message)
            if len(self._decoded) >= _CACHE_SIZE:
                self._decoded.clear()
            self._decoded[wire] = known
        return known

    def _decode_call(self, message: p4r.Action) -> ActionCall:
        action = self._action_ids.get(message.action_id)
        if action is None:
            raise CodecError(f"no action has id {message.action_id:#x}")
        args = []
        for param in message.params:
            known = action.by_param.get(param.param_id)
            if known is None:
                raise CodecError(f"action {action.name} has no parameter {param.param_id}")
            args.append((known[0], _decode(param.value, known[1], action.name)))
        args.sort()
        return ActionCall(action.name, tuple(args))


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _named(known: dict[str, _N], name: str, kind: str) -> _N:
    found = known.get(name)
    if found is None:
        raise ValueError(f"the program has no {kind} {name}")
    return found


def _check_exact_given(table: _Table, key: EntryKey) -> None:
    given = {name for name, _ in key.match}
    missing = [f[0] for f in table.fields if f[3] == _EXACT and f[0] not in given]
    if missing:
        raise ValueError(f"table {table.alias}: exact match field {missing[0]} is missing")


def _put_match(entry: p4r.TableEntry, field: _Field, match: FieldValue, table: str) -> None:
    """Add a match field; what matches everything is left out, as the specification wants it."""
    name, number, width, kind = field
    if kind == _EXACT and isinstance(match, Exact):
        message = entry.match.add()
        message.exact.value = _encode(match.value, width, name)
    elif kind == _LPM and isinstance(match, Lpm):
        if not 0 <= match.prefix_len <= width:
            raise ValueError(f"{name}: prefix length {match.prefix_len} is not in 0..{width}")
        if match.prefix_len == 0:
            return
        message = entry.match.add()
        below = (1 << (width - match.prefix_len)) - 1
        message.lpm.value = _encode(match.value & ~below, width, name)
        message.lpm.prefix_len = match.prefix_len
    elif kind == _TERNARY and isinstance(match, Ternary):
        if match.mask == 0:
            return
        message = entry.match.add()
        message.ternary.value = _encode(match.value, width, name)
        message.ternary.mask = _encode(match.mask, width, name)
    elif kind == _OPTIONAL and isinstance(match, Exact):
        message = entry.match.add()
        message.optional.value = _encode(match.value, width, name)
    elif kind == _RANGE and isinstance(match, Range):
        message = entry.match.add()
        message.range.low = _encode(match.low, width, name)
        message.range.high = _encode(match.high, width, name)
    else:
        wanted = p4i.MatchField.MatchType.Name(p4i.MatchField.MatchType.ValueType(kind))
        raise ValueError(
            f"table {table}: field {name} is matched {wanted}, the entry gives {match!r}"
        )
    message.field_id = number


def _match_of(message: p4r.FieldMatch, table: _Table) -> tuple[str, FieldValue]:
    field = table.by_field.get(message.field_id)
    if field is None:
        raise CodecError(f"table {table.alias} has no match field {message.field_id}")
    name, _, width, _ = field
    kind = message.WhichOneof("field_match_type")
    if kind == "exact":
        return name, Exact(_decode(message.exact.value, width, name))
    if kind == "lpm":
        lpm = message.lpm
        return name, Lpm(_decode(lpm.value, width, name), lpm.prefix_len)
    if kind == "ternary":
        ternary = message.ternary
        return name, Ternary(
            _decode(ternary.value, width, name), _decode(ternary.mask, width, name)
        )
    if kind == "optional":
        return name, Exact(_decode(message.optional.value, width, name))
    if kind == "range":
        bounds = message.range
        return name, Range(_decode(bounds.low, width, name), _decode(bounds.high, width, name))
    raise CodecError(f"table {table.alias}, field {name}: matched in no way that is known here")


def _put_params(message: p4r.Action, action: _Action, call: ActionCall) -> None:
    names: Iterable[str] = tuple(name for name, _ in call.args)
    if names != action.sorted_names:
        raise ValueError(
            f"action {action.name} takes {', '.join(action.sorted_names) or 'nothing'}, "
            f"not {', '.join(names) or 'nothing'}"
        )
    args = dict(call.args)
    message.action_id = action.id
    add = message.params.add
    for name, number, width in action.params:
        param = add()
        param.param_id = number
        param.value = _encode(args[name], width, name)
