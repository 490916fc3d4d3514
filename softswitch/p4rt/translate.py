"""P4Info-driven translation between P4Runtime messages and the switch's own table objects.

Specification sections "TableEntry", "ActionProfileMember & ActionProfileGroup". Everything here is
pure: it reads messages and the schema and touches no state. Every refusal names the table, field
or action and says what would be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from finsy.proto import p4r

from ringstep.softswitch import tables as t
from ringstep.softswitch.p4rt import bytestrings
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError, invalid, unimplemented
from ringstep.softswitch.p4rt.schema import (
    Action,
    Field,
    MatchField,
    MatchKind,
    Profile,
    Schema,
    Scope,
    Table,
)

MAX_INT64 = (1 << 63) - 1

# ------------------------------------------------------------------------------------ match keys


def _exact(match: p4r.FieldMatch, field: MatchField, where: str) -> t.Match:
    return t.Exact(bytestrings.decode(match.exact.value, field.width, where))


def _lpm(match: p4r.FieldMatch, field: MatchField, where: str) -> t.Match:
    value = bytestrings.decode(match.lpm.value, field.width, where)
    length = match.lpm.prefix_len
    if length == 0:
        raise invalid(f"{where}: prefix length 0 is don't care; leave the field out instead")
    if not 0 < length <= field.width:
        raise invalid(f"{where}: prefix length {length} is not in 1..{field.width}")
    if value & ((1 << (field.width - length)) - 1):
        raise invalid(f"{where}: {value:#x} has bits set below its /{length} prefix")
    return t.Lpm(value, length)


def _ternary(match: p4r.FieldMatch, field: MatchField, where: str) -> t.Match:
    value = bytestrings.decode(match.ternary.value, field.width, where)
    mask = bytestrings.decode(match.ternary.mask, field.width, f"{where} (mask)")
    if mask == 0:
        raise invalid(f"{where}: mask 0 is don't care; leave the field out instead")
    if value & ~mask:
        raise invalid(f"{where}: {value:#x} has bits set outside its mask {mask:#x}")
    return t.Ternary(value, mask)


def _range(match: p4r.FieldMatch, field: MatchField, where: str) -> t.Match:
    low = bytestrings.decode(match.range.low, field.width, f"{where} (low)")
    high = bytestrings.decode(match.range.high, field.width, f"{where} (high)")
    if low > high:
        raise invalid(f"{where}: low {low:#x} is above high {high:#x}")
    if low == 0 and high == _top(field):
        raise invalid(f"{where}: the full range is don't care; leave the field out instead")
    return t.Range(low, high)


def _optional(match: p4r.FieldMatch, field: MatchField, where: str) -> t.Match:
    return t.Ternary(bytestrings.decode(match.optional.value, field.width, where), _top(field))


_DECODERS: Mapping[MatchKind, Callable[[p4r.FieldMatch, MatchField, str], t.Match]] = {
    MatchKind.EXACT: _exact,
    MatchKind.LPM: _lpm,
    MatchKind.TERNARY: _ternary,
    MatchKind.RANGE: _range,
    MatchKind.OPTIONAL: _optional,
}


def _top(field: MatchField) -> int:
    return (1 << field.width) - 1


def _dont_care(field: MatchField, table: Table) -> t.Match:
    if field.kind is MatchKind.EXACT:
        raise invalid(
            f"table {table.alias}: exact match field {field.name} (id {field.id}) is missing"
        )
    if field.kind is MatchKind.LPM:
        return t.Lpm(0, 0)
    if field.kind is MatchKind.RANGE:
        return t.Range(0, _top(field))
    return t.Ternary(0, 0)


def decode_match(table: Table, match: Iterable[p4r.FieldMatch]) -> tuple[t.Match, ...]:
    """Return the key of an entry in key order; fields left out are don't care.

    Raises INVALID_ARGUMENT (unknown or repeated field, wrong kind, missing exact field, don't care
    written out) or OUT_OF_RANGE (value too wide or empty).
    """
    by_id = {field.id: field for field in table.match_fields}
    given: dict[int, t.Match] = {}
    for one in match:
        field = by_id.get(one.field_id)
        if field is None:
            known = ", ".join(f"{f.name} ({f.id})" for f in table.match_fields) or "none"
            raise invalid(
                f"table {table.alias}: no match field has id {one.field_id}; it has {known}"
            )
        where = f"table {table.alias}, match field {field.name}"
        if field.id in given:
            raise invalid(f"{where}: given twice")
        kind = one.WhichOneof("field_match_type")
        if kind != field.kind.name.lower():
            raise invalid(
                f"{where}: is matched {field.kind.name}, the entry gives "
                f"{kind.upper() if kind else 'no value'}"
            )
        given[field.id] = _DECODERS[field.kind](one, field, where)
    return tuple(
        given[field.id] if field.id in given else _dont_care(field, table)
        for field in table.match_fields
    )


def encode_match(table: Table, match: Iterable[t.Match]) -> list[p4r.FieldMatch]:
    """Return the canonical form of a key: shortest bytestrings, don't care left out."""
    message = p4r.TableEntry()
    put_match(message, table, match)
    return list(message.match)


def put_match(message: p4r.TableEntry, table: Table, match: Iterable[t.Match]) -> None:
    """Add the canonical form of a key to an entry without one.

    Messages are filled where they stand: protobuf copies what is made aside, and a large table
    would spend most of its time on that.
    """
    encode = bytestrings.encode
    for field, value in zip(table.match_fields, match, strict=True):
        match value:
            case t.Exact():
                one = message.match.add()
                one.exact.value = encode(value.value)
            case t.Lpm():
                if value.prefix_len == 0:
                    continue
                one = message.match.add()
                one.lpm.value = encode(value.value)
                one.lpm.prefix_len = value.prefix_len
            case t.Ternary():
                if value.mask == 0:
                    continue
                one = message.match.add()
                if field.kind is MatchKind.OPTIONAL:
                    one.optional.value = encode(value.value)
                else:
                    one.ternary.value = encode(value.value)
                    one.ternary.mask = encode(value.mask)
            case t.Range():
                if value.low == 0 and value.high == _top(field):
                    continue
                one = message.match.add()
                one.range.low = encode(value.low)
                one.range.high = encode(value.high)
        one.field_id = field.id


def check_priority(table: Table, priority: int) -> int:
    """Return the priority of an entry to write. Raises INVALID_ARGUMENT where it may not be so."""
    if table.needs_priority and priority <= 0:
        raise invalid(
            f"table {table.alias}: priority {priority}; a table with ternary, range or optional "
            "fields needs a priority above 0"
        )
    if not table.needs_priority and priority != 0:
        raise invalid(
            f"table {table.alias}: priority {priority}; a table with exact and lpm fields only "
            "takes none (0)"
        )
    return priority


# --------------------------------------------------------------------------------------- actions


def decode_action(
    owner: str,
    allowed: Mapping[int, tuple[Action, Scope]],
    message: p4r.Action,
    *,
    as_default: bool = False,
) -> t.ActionCall:
    """Return an action with its arguments in declaration order; `owner` names the table.

    Raises INVALID_ARGUMENT (action not of the table, parameters missing, unknown or repeated),
    PERMISSION_DENIED (the table may not use it there), OUT_OF_RANGE (argument too wide or empty).
    """
    found = allowed.get(message.action_id)
    if found is None:
        known = ", ".join(f"{a.alias} ({a.id})" for a, _ in allowed.values()) or "none"
        raise invalid(f"{owner}: no action of it has id {message.action_id}; it has {known}")
    action, scope = found
    if scope is (Scope.TABLE_ONLY if as_default else Scope.DEFAULT_ONLY):
        place = "as the default action" if as_default else "in an entry"
        raise P4RuntimeError(
            Code.PERMISSION_DENIED,
            f"{owner}: action {action.alias} may not be used {place} (scope {scope.name})",
        )
    return t.ActionCall(action.name, _arguments(owner, action, message))


def _arguments(owner: str, action: Action, message: p4r.Action) -> tuple[int, ...]:
    by_id: dict[int, Field] = {param.id: param for param in action.params}
    given: dict[int, int] = {}
    for one in message.params:
        param = by_id.get(one.param_id)
        if param is None:
            known = ", ".join(f"{p.name} ({p.id})" for p in action.params) or "none"
            raise invalid(
                f"{owner}, action {action.alias}: no parameter has id {one.param_id}; "
                f"it has {known}"
            )
        where = f"{owner}, action {action.alias}, parameter {param.name}"
        if param.id in given:
            raise invalid(f"{where}: given twice")
        given[param.id] = bytestrings.decode(one.value, param.width, where)
    missing = [param.name for param in action.params if param.id not in given]
    if missing:
        raise invalid(f"{owner}, action {action.alias}: parameters missing: {', '.join(missing)}")
    return tuple(given[param.id] for param in action.params)


def encode_action(schema: Schema, call: t.ActionCall) -> p4r.Action:
    """Return the message of an action, arguments as shortest bytestrings."""
    message = p4r.Action()
    _put_action(message, schema, call)
    return message


def _put_action(message: p4r.Action, schema: Schema, call: t.ActionCall) -> None:
    action = schema.action_by_name[call.name]
    message.action_id = action.id
    add = message.params.add
    for param, value in zip(action.params, call.args, strict=True):
        one = add()
        one.param_id = param.id
        one.value = bytestrings.encode(value)


def decode_table_action(schema: Schema, table: Table, message: p4r.TableAction) -> t.ActionSpec:
    """Return what an entry does: an action, a member, a group or a one-shot set.

    Raises INVALID_ARGUMENT where the form does not fit the table's implementation.
    """
    kind = message.WhichOneof("type")
    owner = f"table {table.alias}"
    profile = schema.profiles[table.profile_id] if table.profile_id else None
    if profile is None:
        fitting: tuple[str, ...] = ("action",)
    elif profile.with_selector:
        fitting = (
            "action_profile_member_id",
            "action_profile_group_id",
            "action_profile_action_set",
        )
    else:
        fitting = ("action_profile_member_id",)
    if kind not in fitting:
        raise invalid(f"{owner}: gives {kind or 'no action'}; it takes {' or '.join(fitting)}")
    if profile is None:
        return decode_action(owner, table.actions, message.action)
    if kind == "action_profile_action_set":
        return _action_set(owner, table, profile, message.action_profile_action_set)
    number = (
        message.action_profile_member_id
        if kind == "action_profile_member_id"
        else message.action_profile_group_id
    )
    if number == 0:
        raise invalid(f"{owner}: {kind} is 0, which is not a valid id")
    return t.MemberRef(number) if kind == "action_profile_member_id" else t.GroupRef(number)


def encode_table_action(schema: Schema, action: t.ActionSpec) -> p4r.TableAction:
    """Return the message of what an entry does."""
    match action:
        case t.ActionCall():
            return p4r.TableAction(action=encode_action(schema, action))
        case t.MemberRef():
            return p4r.TableAction(action_profile_member_id=action.member_id)
        case t.GroupRef():
            return p4r.TableAction(action_profile_group_id=action.group_id)
        case t.ActionSet():
            return p4r.TableAction(
                action_profile_action_set=p4r.ActionProfileActionSet(
                    action_profile_actions=[
                        p4r.ActionProfileAction(action=encode_action(schema, call), weight=weight)
                        for call, weight in action.actions
                    ]
                )
            )


def _action_set(
    owner: str, table: Table, profile: Profile, message: p4r.ActionProfileActionSet
) -> t.ActionSet:
    actions = []
    for position, one in enumerate(message.action_profile_actions):
        where = f"{owner}, action {position} of the one-shot set"
        check_weight(where, profile, one.weight)
        check_watch_port(where, one.WhichOneof("watch_kind"))
        actions.append((decode_action(where, table.actions, one.action), one.weight))
    size = _size(profile, [weight for _, weight in actions])
    if profile.max_group_size and size > profile.max_group_size:
        raise invalid(
            f"{owner}: the one-shot set has size {size}, above max_group_size "
            f"{profile.max_group_size} of {profile.alias}"
        )
    return t.ActionSet(tuple(actions))


# ---------------------------------------------------------------------------- members and groups


def check_weight(where: str, profile: Profile, weight: int) -> None:
    """Raise INVALID_ARGUMENT unless a member's weight may be so in this selector."""
    if profile.weights_disallowed:
        # An unset weight then means that the device weighs; this switch has no such selector.
        raise unimplemented(f"{where}: selector {profile.alias} is @weights_disallowed")
    if weight < 1:
        raise invalid(f"{where}: weight {weight}; a weight is 1 or more")
    if profile.sum_of_members and 0 < profile.max_member_weight < weight:
        raise invalid(
            f"{where}: weight {weight} is above max_member_weight {profile.max_member_weight}"
        )


def check_watch_port(where: str, watch_kind: str | None) -> None:
    """Raise UNIMPLEMENTED where a member's liveness is to follow a port."""
    if watch_kind is not None:
        raise unimplemented(f"{where}: {watch_kind}; this switch does not watch ports")


def _size(profile: Profile, weights: list[int]) -> int:
    return len(weights) if profile.sum_of_members else sum(weights)


def decode_group(
    profile: Profile, message: p4r.ActionProfileGroup
) -> tuple[list[tuple[int, int]], int]:
    """Return a group's (member id, weight) pairs and its max_size.

    Raises INVALID_ARGUMENT (weights, repeated members, max_size against max_group_size) or
    RESOURCE_EXHAUSTED (more members than max_size).
    """
    where = f"{profile.alias}, group {message.group_id}"
    members: dict[int, int] = {}
    for one in message.members:
        at = f"{where}, member {one.member_id}"
        if one.member_id in members:
            raise invalid(f"{at}: named twice; use its weight instead")
        check_weight(at, profile, one.weight)
        check_watch_port(at, one.WhichOneof("watch_kind"))
        members[one.member_id] = one.weight
    limit = profile.max_group_size
    if message.max_size < 0 or (limit and not 0 < message.max_size <= limit):
        wanted = f"1..{limit} (max_group_size)" if limit else "0 or more"
        raise invalid(f"{where}: max_size {message.max_size} is not {wanted}")
    size = _size(profile, list(members.values()))
    if message.max_size and size > message.max_size:
        raise P4RuntimeError(
            Code.RESOURCE_EXHAUSTED,
            f"{where}: size {size} is above its max_size {message.max_size}",
        )
    return list(members.items()), message.max_size


# --------------------------------------------------------------------------------------- entries


def encode_entry(schema: Schema, table: Table, entry: t.Entry) -> p4r.TableEntry:
    """Return the message of an entry, without direct resources."""
    message = p4r.TableEntry()
    put_entry(message, schema, table, entry)
    return message


def put_entry(message: p4r.TableEntry, schema: Schema, table: Table, entry: t.Entry) -> None:
    """Fill an empty message with an entry, without direct resources."""
    message.table_id = table.id
    put_match(message, table, entry.match)
    if isinstance(entry.action, t.ActionCall):
        _put_action(message.action.action, schema, entry.action)
    else:
        message.action.CopyFrom(encode_table_action(schema, entry.action))
    message.priority = entry.priority
    message.controller_metadata = entry.controller_metadata
    message.metadata = entry.metadata
    message.is_const = entry.is_const


def decode_counter(where: str, data: p4r.CounterData) -> tuple[int, int]:
    """Return (packets, bytes). Raises INVALID_ARGUMENT for a negative count."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"{where}: a counter cannot be negative")
    return data.packet_count, data.byte_count


def encode_counter(packets: int, byte_count: int) -> p4r.CounterData:
    """Return a counter's value; counts wrap at 2^63, where the message's int64 ends."""
    return p4r.CounterData(packet_count=packets & MAX_INT64, byte_count=byte_count & MAX_INT64)
