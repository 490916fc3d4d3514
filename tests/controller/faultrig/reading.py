"""What a switch holds, read by somebody else: raw P4Runtime, the P4Info, and nothing in between.

Values are integers, so that it makes no difference how a switch pads its bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format

Key = tuple[tuple[str, Any], ...]
"""(field, value) by name of the field; an LPM value is (value, length), a ternary (value, mask)."""
_MESSAGE_BYTES = 128 << 20
_ELECTION_ID_OF_INTRUDERS = 1 << 60


class ReadError(Exception):
    """A switch did not answer, or not what the P4Info describes."""


@dataclass(frozen=True)
class Action:
    """An action by name with its parameters, or a reference into an action profile."""

    name: str
    params: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        return dict(self.params)[name]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.params)})"


@dataclass
class Contents:
    """Tables as table -> key -> action; ``group`` and ``member`` stand for actions of a profile."""

    tables: dict[str, dict[Key, Action]] = field(default_factory=dict)
    defaults: dict[str, Action] = field(default_factory=dict)
    members: dict[int, Action] = field(default_factory=dict)
    groups: dict[int, dict[int, int]] = field(default_factory=dict)

    def table(self, name: str) -> dict[Key, Action]:
        return self.tables.get(name, {})

    @property
    def size(self) -> int:
        """Table entries, members and groups."""
        return sum(map(len, self.tables.values())) + len(self.members) + len(self.groups)


class Names:
    """Ids of a P4Info by name and back."""

    def __init__(self, text: str) -> None:
        self.info = text_format.Parse(text, p4i.P4Info())
        self.tables = {table.preamble.id: table for table in self.info.tables}
        self.actions = {action.preamble.id: action for action in self.info.actions}
        self.table_ids = {table.preamble.alias: key for key, table in self.tables.items()}
        self.action_ids = {action.preamble.alias: key for key, action in self.actions.items()}

    def action(self, call: Any) -> Action:
        known = self.actions[call.action_id]
        names = {param.id: param.name for param in known.params}
        values = {names[p.param_id]: int.from_bytes(p.value, "big") for p in call.params}
        return Action(known.preamble.alias, tuple(sorted(values.items())))

    def table_action(self, value: Any) -> Action:
        match value.WhichOneof("type"):
            case "action":
                return self.action(value.action)
            case "action_profile_group_id":
                return Action("group", (("id", value.action_profile_group_id),))
            case "action_profile_member_id":
                return Action("member", (("id", value.action_profile_member_id),))
            case kind:
                return Action(str(kind))

    def key(self, entry: Any) -> Key:
        names = {match.id: match.name for match in self.tables[entry.table_id].match_fields}
        found: dict[str, Any] = {}
        for match in entry.match:
            name = names[match.field_id].rpartition(".")[2]
            match match.WhichOneof("field_match_type"):
                case "exact":
                    found[name] = int.from_bytes(match.exact.value, "big")
                case "lpm":
                    found[name] = (int.from_bytes(match.lpm.value, "big"), match.lpm.prefix_len)
                case "ternary":
                    found[name] = (
                        int.from_bytes(match.ternary.value, "big"),
                        int.from_bytes(match.ternary.mask, "big"),
                    )
                case kind:
                    raise ReadError(f"match of kind {kind}")
        return tuple(sorted(found.items()))

    def entry(self, table: str, key: dict[str, int], action: str, **params: int) -> Any:
        """Return an entry of a table with exact matches."""
        described = self.tables[self.table_ids[table]]
        called = self.actions[self.action_ids[action]]
        message = p4r.TableEntry(table_id=described.preamble.id)
        for match in described.match_fields:
            value = key[match.name.rpartition(".")[2]]
            message.match.add(field_id=match.id).exact.value = value.to_bytes(
                (match.bitwidth + 7) // 8, "big"
            )
        message.action.action.action_id = called.preamble.id
        for param in called.params:
            message.action.action.params.add(
                param_id=param.id,
                value=params[param.name].to_bytes((param.bitwidth + 7) // 8, "big"),
            )
        return message


def program_names(uec: bool = False) -> Names:
    """Return the names of the program that comes with Ringstep."""
    name = "ringstep_v1model_uec" if uec else "ringstep_v1model"
    return Names((files("ringstep") / "p4build" / f"{name}.p4info.txtpb").read_text())


def open_channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.max_metadata_size", 4 << 20),
            ("grpc.absolute_max_metadata_size", 4 << 20),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )


def read_switch(
    address: str, device_id: int, names: Names | None = None, timeout_s: float = 60.0
) -> Contents:
    """Read all tables, default actions and the action profile, as a client without a role.

    Raises:
        ReadError: the switch does not answer, or runs no program.
    """
    known = names or program_names()
    wanted: list[Any] = []
    for table in known.tables.values():
        wanted.append(p4r.Entity(table_entry=p4r.TableEntry(table_id=table.preamble.id)))
    for name in ("switch_config", "route_v4", "route_v6"):
        default = p4r.TableEntry(table_id=known.table_ids[name], is_default_action=True)
        wanted.append(p4r.Entity(table_entry=default))
    wanted.append(p4r.Entity(action_profile_member=p4r.ActionProfileMember()))
    wanted.append(p4r.Entity(action_profile_group=p4r.ActionProfileGroup()))
    contents = Contents()
    for entity in _read(address, device_id, wanted, timeout_s):
        _put(contents, entity, known)
    return contents


def _read(address: str, device_id: int, wanted: list[Any], timeout_s: float) -> Iterator[Any]:
    request = p4r.ReadRequest(device_id=device_id, entities=wanted)
    with open_channel(address) as channel:
        try:
            for reply in p4r_grpc.P4RuntimeStub(channel).Read(request, timeout=timeout_s):
                yield from reply.entities
        except grpc.RpcError as error:
            raise ReadError(f"{address}: {error.code().name} ({error.details()})") from None


def _put(contents: Contents, entity: Any, names: Names) -> None:
    match entity.WhichOneof("entity"):
        case "table_entry":
            entry = entity.table_entry
            table = names.tables[entry.table_id]
            if entry.is_default_action:
                contents.defaults[table.preamble.alias] = names.table_action(entry.action)
            elif not table.is_const_table and not entry.is_const:
                of_table = contents.tables.setdefault(table.preamble.alias, {})
                of_table[names.key(entry)] = names.table_action(entry.action)
        case "action_profile_member":
            member = entity.action_profile_member
            contents.members[member.member_id] = names.action(member.action)
        case "action_profile_group":
            group = entity.action_profile_group
            contents.groups[group.group_id] = {m.member_id: m.weight for m in group.members}


class Intruder:
    """Another P4Runtime client that becomes primary of a switch, and writes what it likes.

    A context manager. The controller's own session is deposed while it is there.

    Raises:
        ReadError: the switch does not answer, or does not make it primary.
    """

    def __init__(
        self,
        address: str,
        device_id: int,
        names: Names,
        timeout_s: float = 10.0,
    ) -> None:
        self._address = address
        self._device_id = device_id
        self._names = names
        self._timeout_s = timeout_s
        # Higher than that of any intruder before: a controller that was deposed bids what it saw.
        self._election = p4r.Uint128(low=_ELECTION_ID_OF_INTRUDERS + time.monotonic_ns())

    def __enter__(self) -> Intruder:
        self._channel = open_channel(self._address)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        bid = p4r.StreamMessageRequest(
            arbitration=p4r.MasterArbitrationUpdate(
                device_id=self._device_id, election_id=self._election
            )
        )
        # The request iterator must not end, or the stream does.
        self._end = threading.Event()
        self._stream = self._stub.StreamChannel(
            _once_then_wait(bid, self._end), timeout=self._timeout_s
        )
        try:
            reply = next(self._stream)
        except (grpc.RpcError, StopIteration) as error:
            self.__exit__()
            why = error.details() if isinstance(error, grpc.RpcError) else "the stream ended"
            raise ReadError(f"{self._address}: no arbitration ({why})") from None
        if reply.arbitration.status.code:
            self.__exit__()
            raise ReadError(f"{self._address}: {reply.arbitration.status.message}")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        self._stream.cancel()
        self._channel.close()

    def write(self, updates: list[tuple[int, Any]]) -> None:
        """Write (kind of update, table entry) each.

        Raises:
            ReadError: the switch refuses, or does not answer.
        """
        request = p4r.WriteRequest(
            device_id=self._device_id,
            election_id=self._election,
            updates=[
                p4r.Update(type=kind, entity=p4r.Entity(table_entry=entry))  # type: ignore[arg-type]
                for kind, entry in updates
            ],
        )
        self._call(self._stub.Write, request)

    def entries(self, table: str) -> list[Any]:
        """Return the entries of a table as they are on the wire."""
        wanted = p4r.Entity(table_entry=p4r.TableEntry(table_id=self._names.table_ids[table]))
        found = _read(self._address, self._device_id, [wanted], self._timeout_s)
        return [entity.table_entry for entity in found]

    def load_program(self, cookie: int) -> None:
        """Load the program that the switch runs anew, which empties it, under another cookie.

        Raises:
            ReadError: as :meth:`write`.
        """
        wanted = p4r.GetForwardingPipelineConfigRequest(device_id=self._device_id)
        config = self._call(self._stub.GetForwardingPipelineConfig, wanted).config
        config.cookie.cookie = cookie
        self.set_program(config)

    def set_program(self, config: Any) -> None:
        """Load a program. Raises ReadError as :meth:`write`."""
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=self._election,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=config,
        )
        self._call(self._stub.SetForwardingPipelineConfig, request)

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise ReadError(f"{self._address}: {error.code().name} ({error.details()})") from None


def _once_then_wait(message: Any, end: threading.Event) -> Iterator[Any]:
    yield message
    end.wait()
