"""A P4Runtime server that holds entities and does as a test says.

It knows no P4: it stores what is written and gives it back. What it can do that a real switch
cannot be asked for: pad byte strings, refuse chosen updates, drop updates silently, lose its
memory, and stay silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from finsy.grpcutil import GRPC_EOF
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_code, rpc_status
from google.protobuf.any_pb2 import Any as AnyMessage

from ringstep.protocol.inband import ReadRequest, StateReply

Context = grpc.aio.ServicerContext[Any, Any]


def _strip(data: bytes) -> bytes:
    return data.lstrip(b"\0") or b"\0"


class FakeSwitch(p4r_grpc.P4RuntimeServicer):
    """A switch on a free loopback port; an async context manager.

    ``pad``: byte strings are given back with leading zeros. ``refuse``: says of an update whether
    to refuse it. ``lose``: says of an update whether to accept it and forget it.
    ``modern_election``: as P4Runtime 1.3 and later; otherwise as before, where the next highest
    is promoted. ``not_primary``: that many writes are refused as if another were primary.
    ``half_swapped``: a program was saved there and not committed.
    ``states``: what it answers about a block; ``states_at``: about a block, asked at a port.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        pad: bool = False,
        refuse: Callable[[p4r.Update], bool] | None = None,
        lose: Callable[[p4r.Update], bool] | None = None,
        refuse_pipeline: str = "",
        states: dict[int, StateReply] | None = None,
        states_at: dict[tuple[int, int], StateReply] | None = None,
        modern_election: bool = False,
        half_swapped: bool = False,
    ) -> None:
        self.pad = pad
        self.refuse = refuse or (lambda update: False)
        self.lose = lose or (lambda update: False)
        self.refuse_pipeline = refuse_pipeline
        self.states = states or {}
        self.states_at = states_at or {}
        self.port = port
        self.entities: dict[bytes, p4r.Entity] = {}
        self.defaults: dict[int, p4r.TableEntry] = {}
        self.counters: dict[tuple[int, int], int] = {}
        self.config: p4r.ForwardingPipelineConfig | None = None
        self.writes: list[p4r.Update] = []
        self.pushes = 0
        self.reads: list[p4r.Entity] = []
        self.modern_election = modern_election
        self.half_swapped = half_swapped
        self.not_primary = 0
        self.highest = 0
        self.commits = 0
        self.silent = asyncio.Event()
        self._resumed = asyncio.Event()
        self.state_requests: list[ReadRequest] = []
        self._streams: dict[int, tuple[int, Context]] = {}
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Close the port and cut all streams."""
        assert self._server is not None
        await self._server.stop(None)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wipe(self) -> None:
        """Forget program and entities, as a restarted switch does."""
        self.config = None
        self.counters.clear()
        self.entities.clear()
        self.defaults.clear()

    def lines(self) -> list[str]:
        """Return a comparable form of all that is held, byte strings canonical."""
        held = [
            entity.SerializeToString(deterministic=True).hex() for entity in self.entities.values()
        ]
        held += [
            entry.SerializeToString(deterministic=True).hex() for entry in self.defaults.values()
        ]
        return sorted(held)

    # -- P4Runtime ---------------------------------------------------------------------------

    async def StreamChannel(
        self, _requests: AsyncIterator[p4r.StreamMessageRequest], context: Context
    ) -> None:
        me = id(context)
        try:
            while True:
                message = await context.read()
                if message is GRPC_EOF:
                    return
                if message.HasField("arbitration"):
                    await self._arbitrate(me, U128.decode(message.arbitration.election_id), context)
                elif message.HasField("packet"):
                    await self._answer(message.packet, context)
        finally:
            self._streams.pop(me, None)

    async def _arbitrate(self, me: int, election_id: int, context: Context) -> None:
        others = [bid for other, (bid, _) in self._streams.items() if other != me]
        if election_id in others:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Election id already exists")
        self._streams[me] = (election_id, context)
        self.highest = max(self.highest, election_id)
        live = max(bid for bid, _ in self._streams.values())
        highest = self.highest if self.modern_election else live
        for bid, stream in self._streams.values():
            code = rpc_code.OK if bid == highest else rpc_code.ALREADY_EXISTS
            if self.modern_election and live != highest:
                code = rpc_code.NOT_FOUND
            await stream.write(
                p4r.StreamMessageResponse(
                    arbitration=p4r.MasterArbitrationUpdate(
                        device_id=1,
                        election_id=U128.encode(highest),
                        status=rpc_status.Status(code=code),
                    )
                )
            )

    async def _answer(self, packet: p4r.PacketOut, context: Context) -> None:
        request = ReadRequest.decode(packet.payload)
        self.state_requests.append(request)
        port = int.from_bytes(packet.metadata[0].value, "big")
        state = self.states_at.get((port, request.block), self.states.get(request.block))
        if state is None:
            return
        reply = StateReply(
            request.request_id,
            request.job,
            request.block,
            *(getattr(state, name) for name in list(StateReply.__dataclass_fields__)[3:]),
        )
        response = p4r.StreamMessageResponse(
            packet=p4r.PacketIn(
                payload=reply.encode(),
                metadata=[
                    p4r.PacketMetadata(metadata_id=1, value=b"\x01\xfe"),
                    p4r.PacketMetadata(metadata_id=2, value=b"\x01"),
                ],
            )
        )
        await context.write(response)

    async def _speak(self) -> None:
        if self.silent.is_set():
            await self._resumed.wait()
            self._resumed.clear()

    def resume(self) -> None:
        """End the silence and answer what was asked during it."""
        self.silent.clear()
        self._resumed.set()

    async def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: Context
    ) -> p4r.GetForwardingPipelineConfigResponse:
        await self._speak()
        if self.config is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set"
            )
        config = p4r.ForwardingPipelineConfig()
        assert self.config is not None
        config.cookie.CopyFrom(self.config.cookie)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    async def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: Context
    ) -> p4r.SetForwardingPipelineConfigResponse:
        if request.action == p4r.SetForwardingPipelineConfigRequest.COMMIT:
            self.half_swapped = False
            self.commits += 1
            return p4r.SetForwardingPipelineConfigResponse()
        if self.half_swapped:
            await context.abort(grpc.StatusCode.UNKNOWN, "Error in first phase of device update")
        if self.refuse_pipeline:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse_pipeline)
        self.wipe()
        self.config = request.config
        self.pushes += 1
        for table in request.config.p4info.tables:
            if not table.const_default_action_id and table.HasField("initial_default_action"):
                self._reset_default(table)
        return p4r.SetForwardingPipelineConfigResponse()

    def _reset_default(self, table: p4i.Table) -> None:
        initial = table.initial_default_action
        entry = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        entry.action.action.action_id = initial.action_id
        for argument in initial.arguments:
            entry.action.action.params.add(param_id=argument.param_id, value=_strip(argument.value))
        self.defaults[table.preamble.id] = entry

    async def Write(self, request: p4r.WriteRequest, context: Context) -> p4r.WriteResponse:
        await self._speak()
        primary = max((bid for bid, _ in self._streams.values()), default=0)
        self.not_primary -= 1
        if U128.decode(request.election_id) != primary or self.not_primary >= 0:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Not primary")
        errors = [self._update(update) for update in request.updates]
        if any(error.canonical_code for error in errors):
            status = rpc_status.Status(code=rpc_code.UNKNOWN, message="some updates failed")
            for error in errors:
                detail = AnyMessage()
                detail.Pack(error)
                status.details.append(detail)
            context.set_trailing_metadata(
                (("grpc-status-details-bin", status.SerializeToString()),)
            )
            await context.abort(grpc.StatusCode.UNKNOWN, "some updates failed")
        return p4r.WriteResponse()

    def _update(self, update: p4r.Update) -> p4r.Error:
        self.writes.append(update)
        if self.refuse(update):
            return p4r.Error(canonical_code=rpc_code.RESOURCE_EXHAUSTED, message="table is full")
        entity = update.entity
        if entity.HasField("counter_entry"):
            counter = entity.counter_entry
            assert update.type == p4r.Update.MODIFY, "the specification knows no other"
            cell = (counter.counter_id, counter.index.index)
            self.counters[cell] = counter.data.packet_count
            return p4r.Error()
        if entity.table_entry.is_default_action:
            self.defaults[entity.table_entry.table_id] = entity.table_entry
            return p4r.Error()
        key = _key(entity)
        if update.type == p4r.Update.INSERT and key in self.entities:
            return p4r.Error(canonical_code=rpc_code.ALREADY_EXISTS, message="duplicate")
        if update.type != p4r.Update.INSERT and key not in self.entities:
            return p4r.Error(canonical_code=rpc_code.NOT_FOUND, message="no such entry")
        if self.lose(update):
            return p4r.Error()
        if update.type == p4r.Update.DELETE:
            del self.entities[key]
        else:
            self.entities[key] = entity
        return p4r.Error()

    async def Read(
        self, request: p4r.ReadRequest, context: Context
    ) -> AsyncIterator[p4r.ReadResponse]:
        await self._speak()
        reply = p4r.ReadResponse()
        self.reads += request.entities
        for wanted in request.entities:
            reply.entities.extend(self._matching(wanted))
        if self.pad:
            for entity in reply.entities:
                _pad(entity)
        yield reply

    def _matching(self, wanted: p4r.Entity) -> list[p4r.Entity]:
        kind = wanted.WhichOneof("entity")
        if kind == "counter_entry":
            counter = wanted.counter_entry
            count = self.counters.get((counter.counter_id, counter.index.index), 0)
            found = p4r.Entity(counter_entry=counter)
            found.counter_entry.data.packet_count = count
            return [found]
        if kind == "table_entry" and wanted.table_entry.is_default_action:
            entry = self.defaults.get(wanted.table_entry.table_id)
            return [] if entry is None else [p4r.Entity(table_entry=entry)]
        held = [entity for entity in self.entities.values() if entity.WhichOneof("entity") == kind]
        if kind == "table_entry":
            if wanted.table_entry.match:
                exact = self.entities.get(_key(wanted))
                return [] if exact is None else [exact]
            table = wanted.table_entry.table_id
            return [entity for entity in held if entity.table_entry.table_id == table]
        identity = "member_id" if kind == "action_profile_member" else "group_id"
        number = getattr(getattr(wanted, str(kind)), identity)
        return [
            entity
            for entity in held
            if number in {0, getattr(getattr(entity, str(kind)), identity)}
        ]


def _key(entity: p4r.Entity) -> bytes:
    """Serialised identity of an entity: its key without its value."""
    match entity.WhichOneof("entity"):
        case "table_entry":
            entry = entity.table_entry
            fields = sorted(entry.match, key=lambda field: field.field_id)
            key = p4r.Entity(
                table_entry=p4r.TableEntry(
                    table_id=entry.table_id, match=fields, priority=entry.priority
                )
            )
        case "action_profile_member":
            member = entity.action_profile_member
            key = p4r.Entity(
                action_profile_member=p4r.ActionProfileMember(
                    action_profile_id=member.action_profile_id, member_id=member.member_id
                )
            )
        case "action_profile_group":
            group = entity.action_profile_group
            key = p4r.Entity(
                action_profile_group=p4r.ActionProfileGroup(
                    action_profile_id=group.action_profile_id, group_id=group.group_id
                )
            )
        case other:
            raise AssertionError(f"unexpected entity {other}")
    return key.SerializeToString(deterministic=True)


def _pad(entity: p4r.Entity) -> None:
    """Give numbers leading zeros, as servers older than P4Runtime 1.0's canonical form do."""
    actions = []
    if entity.HasField("table_entry"):
        for field in entity.table_entry.match:
            if field.HasField("exact"):
                field.exact.value = b"\0\0" + field.exact.value
        actions.append(entity.table_entry.action.action)
    if entity.HasField("action_profile_member"):
        actions.append(entity.action_profile_member.action)
    for action in actions:
        for param in action.params:
            param.value = b"\0\0" + param.value
