"""Digests: how their values are written as P4Data, and when lists of them are sent.

Specification sections "DigestEntry" and "P4Data in p4runtime.proto".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from finsy.proto import p4d, p4r, p4t

from ringstep.softswitch.p4rt import bytestrings
from ringstep.softswitch.p4rt.errors import invalid

MAX_LIST = 1024
"""Messages in one list where the client sets no limit."""

Values = tuple[int, ...]
Clock = Callable[[], int]
"""Nanoseconds, never backwards."""

# --------------------------------------------------------------------------------------------
# Values as P4Data
# --------------------------------------------------------------------------------------------


class Layout:
    """How the flat values of a digest become one P4Data. `widths` are those of the values in bits.

    An enum without underlying type, and `error`, is 32 bits in BMv2: the position of its member.
    Raises INVALID_ARGUMENT for a type that a digest of this switch cannot have.
    """

    def __init__(self, name: str, spec: p4t.P4DataTypeSpec, types: p4t.P4TypeInfo) -> None:
        self._name = name
        self._types = types
        self._spec = spec
        self.widths = tuple(self._widths(spec))

    def encode(self, values: Sequence[int]) -> p4d.P4Data:
        """The digest's P4Data; `values` in the order of `widths`."""
        return self._encode(self._spec, iter(values))

    def _members(self, spec: p4t.P4DataTypeSpec) -> list[p4t.P4DataTypeSpec] | None:
        """The types within a struct or tuple; None for any other type."""
        match spec.WhichOneof("type_spec"):
            case "tuple":
                return list(spec.tuple.members)
            case "struct":
                if spec.struct.name not in self._types.structs:
                    raise invalid(f"P4Info: digest {self._name}: no struct {spec.struct.name!r}")
                return [one.type_spec for one in self._types.structs[spec.struct.name].members]
        return None

    def _widths(self, spec: p4t.P4DataTypeSpec) -> Iterator[int]:
        members = self._members(spec)
        if members is not None:
            for member in members:
                yield from self._widths(member)
            return
        kind = spec.WhichOneof("type_spec")
        match kind:
            case "bitstring" if spec.bitstring.WhichOneof("type_spec") == "bit":
                yield spec.bitstring.bit.bitwidth
            case "bool":
                yield 1
            case "serializable_enum":
                underlying = self._types.serializable_enums[spec.serializable_enum.name]
                yield underlying.underlying_type.bitwidth
            case "enum" | "error":
                yield 32
            case "new_type":
                new = self._types.new_types[spec.new_type.name]
                if new.WhichOneof("representation") != "original_type":
                    raise invalid(
                        f"P4Info: digest {self._name}: type {spec.new_type.name} is translated; "
                        "this switch sends types as they are in the program"
                    )
                yield from self._widths(new.original_type)
            case _:
                raise invalid(
                    f"P4Info: digest {self._name} has a value of type {kind}; this switch sends "
                    "bit<W>, bool, enums, error, and structs and tuples of them"
                )

    def _encode(self, spec: p4t.P4DataTypeSpec, values: Iterator[int]) -> p4d.P4Data:
        members = self._members(spec)
        data = p4d.P4Data()
        kind = spec.WhichOneof("type_spec")
        if members is not None:
            into = data.struct if kind == "struct" else data.tuple
            into.SetInParent()
            into.members.extend(self._encode(member, values) for member in members)
            return data
        if kind == "new_type":
            return self._encode(self._types.new_types[spec.new_type.name].original_type, values)
        value = next(values)
        match kind:
            case "bool":
                data.bool = bool(value)
            case "serializable_enum":
                data.enum_value = bytestrings.encode(value)
            case "enum":
                names = [one.name for one in self._types.enums[spec.enum.name].members]
                data.enum = names[value] if value < len(names) else str(value)
            case "error":
                errors = self._types.error.members
                data.error = errors[value] if value < len(errors) else str(value)
            case _:
                data.bitstring = bytestrings.encode(value)
        return data


# --------------------------------------------------------------------------------------------
# Lists
# --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Learning:
    """One digest that a client asked for: what waits to be sent, what waits for its ack."""

    config: p4r.DigestEntry.Config
    waiting: dict[Values, None] = field(default_factory=dict)
    first_at: int = 0
    sent: dict[int, tuple[int, frozenset[Values]]] = field(default_factory=dict)

    def expire(self, now: int) -> None:
        """Forget lists whose time for an ack is over."""
        limit = self.config.ack_timeout_ns
        for list_id, (at, _) in list(self.sent.items()):
            if now - at >= limit:
                del self.sent[list_id]

    def due(self, now: int) -> bool:
        """Whether what waits is to be sent now."""
        most = self.config.max_list_size or MAX_LIST
        return bool(self.waiting) and (
            now - self.first_at >= self.config.max_timeout_ns or len(self.waiting) >= most
        )


class DigestBook:
    """The digests of one loaded config by digest id; thread-safe.

    `take` and `due` return lists that are ready, as (digest id, list id, messages); whoever gets
    them sends them.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._learning: dict[int, _Learning] = {}
        self._next_list = 1

    def configs(self) -> dict[int, p4r.DigestEntry.Config]:
        """The configuration of each digest that is asked for."""
        with self._lock:
            return {one: state.config for one, state in self._learning.items()}

    def configure(self, digest_id: int, config: p4r.DigestEntry.Config | None) -> None:
        """Ask for a digest, or change how, or with None no longer ask."""
        with self._lock:
            state = self._learning.get(digest_id)
            if config is None:
                self._learning.pop(digest_id, None)
            elif state is None:
                self._learning[digest_id] = _Learning(config)
            else:
                state.config = config

    def take(self, digest_id: int, values: Values) -> list[tuple[int, int, list[Values]]]:
        """Take in a digest message from the data plane; one that nobody asked for is dropped."""
        now = self._clock()
        with self._lock:
            state = self._learning.get(digest_id)
            if state is None:
                return []
            state.expire(now)
            if values in state.waiting or any(values in data for _, data in state.sent.values()):
                return []
            if not state.waiting:
                state.first_at = now
            state.waiting[values] = None
            return [self._send(digest_id, state, now)] if state.due(now) else []

    def due(self) -> list[tuple[int, int, list[Values]]]:
        """The lists whose time has come."""
        now = self._clock()
        with self._lock:
            return [
                self._send(digest_id, state, now)
                for digest_id, state in self._learning.items()
                if state.due(now)
            ]

    def next_due_ns(self) -> int | None:
        """In how many nanoseconds the next list is to be sent; None where nothing waits."""
        now = self._clock()
        with self._lock:
            times = [
                max(state.first_at + state.config.max_timeout_ns - now, 0)
                for state in self._learning.values()
                if state.waiting
            ]
        return min(times, default=None)

    def acknowledge(self, digest_id: int, list_id: int) -> None:
        """A client has the list: its messages may be sent again. Late acks change nothing."""
        with self._lock:
            state = self._learning.get(digest_id)
            if state is not None:
                state.sent.pop(list_id, None)

    def _send(self, digest_id: int, state: _Learning, now: int) -> tuple[int, int, list[Values]]:
        messages = list(state.waiting)
        state.waiting.clear()
        list_id = self._next_list
        self._next_list += 1
        if state.config.ack_timeout_ns > 0:
            state.sent[list_id] = now, frozenset(messages)
        return digest_id, list_id, messages


def check_config(where: str, config: p4r.DigestEntry.Config) -> None:
    """Raise INVALID_ARGUMENT for a negative number."""
    for name in ("max_timeout_ns", "max_list_size", "ack_timeout_ns"):
        if getattr(config, name) < 0:
            raise invalid(f"{where}: {name} is {getattr(config, name)}; it must not be negative")


def encode_list(
    layout: Layout, digest_id: int, list_id: int, messages: Sequence[Values]
) -> p4r.StreamMessageResponse:
    """The stream message of a list, stamped with the time of day."""
    return p4r.StreamMessageResponse(
        digest=p4r.DigestList(
            digest_id=digest_id,
            list_id=list_id,
            data=[layout.encode(values) for values in messages],
            timestamp=time.time_ns(),
        )
    )
