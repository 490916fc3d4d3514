"""One P4Runtime session with one switch: arbitration, pipeline, read, write, packet I/O.

finsy describes the P4Info and encodes the entities. The session itself is written here: finsy's
own switch class waits ten seconds after a quick failure, sends no liveness probe, and reports a
refused pipeline only to its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import grpc
import grpc.aio
from finsy import P4ClientError, P4CounterEntry, P4PacketOut
from finsy.grpcutil import GRPC_EOF
from finsy.p4client import P4RpcStatus
from finsy.p4entity import decode_entity, decode_stream
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

from ringstep.controller.cancelling import being_cancelled
from ringstep.controller.channels import ChannelTls, open_channel
from ringstep.controller.codec import (
    CodecError,
    codec_of,
    decode_into,
    encode_lookup,
    encode_update,
)
from ringstep.controller.entries import SwitchTables
from ringstep.controller.pace import Pace
from ringstep.controller.pipeline import JOB_COUNTERS, Pipeline
from ringstep.controller.plan import EntryUpdate, Update
from ringstep.controller.refusals import Refusal, WriteRefusedError
from ringstep.controller.tlsprobe import explain_tls_failure
from ringstep.protocol.inband import OP_READ_STATE, ReadRequest, StateReply
from ringstep.protocol.limits import CPU_PORT, T2NA_TICK_NS

LOGGER = logging.getLogger(__name__)

BATCH_UPDATES: Final = 100
"""Updates per write and entities decoded at once: the event loop, which also serves
registrations, is held up for a few milliseconds at most."""
_STATE_ATTEMPTS: Final = 3
_TERM_BITS: Final = 32
_MIN_KEEPALIVE_S: Final = 10.0
"""gRPC servers end a connection whose client pings much more often ("too_many_pings")."""
_PROBE_S: Final = 2.0
"""For finding out why a TLS connection failed."""
_MAX_REQUEST_ID: Final = (1 << 32) - 1


class SessionError(Exception):
    """The session with a switch failed or could not start; ``unreachable``: nobody answered."""

    def __init__(self, text: str, *, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable


class PipelineRefusedError(SessionError):
    """The switch does not take the program."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and intervals of a session, in seconds."""

    connect_s: float = 5.0
    """Until the first answer of a switch."""
    rpc_s: float = 10.0
    """Of one read, write or pipeline request."""
    state_s: float = 1.0
    """Of one in-band read; it is tried three times."""
    heartbeat_s: float = 5.0
    """Between probes that tell whether the switch still answers and runs our program."""
    audit_s: float = 30.0
    """Between full reads that find what others wrote."""
    retry_min_s: float = 0.2
    retry_max_s: float = 5.0


def election_id_in(term: int, configured: int) -> int:
    """Return the P4Runtime election id of the controller that leads in a term.

    ``configured`` decides among controllers of different stores. Among those of one store the one
    that led last wins, also where the one before does not know yet that it leads no more.
    """
    return (configured << _TERM_BITS) + term


class Session:
    """An open session in which we are primary; an async context manager.

    Raises:
        SessionError: on entry and from every method, when the switch does not answer, refuses, or
            another controller is primary.
    """

    def __init__(
        self,
        address: str,
        device_id: int,
        pipeline: Pipeline,
        *,
        election_id: int = 1,
        timing: Timing | None = None,
        tls: ChannelTls | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._address = address
        self._device_id = device_id
        self._pipeline = pipeline
        self._schema = pipeline.schema
        self._election_id = election_id
        self._timing = timing or Timing()
        self._tls = tls
        self._pace = pace or Pace()
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._stream: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._next_request_id = 1
        self._waiting: dict[int, asyncio.Future[StateReply]] = {}
        self._send_lock = asyncio.Lock()
        self._sending: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        # The probes of the programmer come more often; this one also watches long requests.
        keepalive_s = max(_MIN_KEEPALIVE_S, self._timing.heartbeat_s + self._timing.connect_s)
        self._channel = open_channel(self._address, self._tls, keepalive_s=keepalive_s)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        try:
            await self._become_primary()
        except BaseException:
            await self._close()
            raise
        self._reader = asyncio.create_task(self._read_stream())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(SessionError(f"{self._address}: the session has ended"))
        try:
            if self._reader is not None:
                await stop_task(self._reader)
        finally:
            for task in list(self._sending):
                await stop_task(task)
            if self._stream is not None:
                self._stream.cancel()
            if self._channel is not None:
                await self._channel.close(None)

    @property
    def reader(self) -> asyncio.Task[None]:
        """Task that ends, with a SessionError, when the session does."""
        assert self._reader is not None, "the session is not open"
        return self._reader

    async def _become_primary(self) -> None:
        self._stream = self._stub.StreamChannel()
        reply = await self._bid(self._election_id)
        highest = U128.decode(reply.election_id)
        if reply.status.code == rpc_code.NOT_FOUND and highest > self._election_id:
            # Nobody is primary and ours is below the highest id the switch has seen (P4Runtime
            # specification 1.4, section 5.3): bid that one. Not a higher one, so that whoever is
            # elected next by the store is above it.
            self._election_id = highest
            reply = await self._bid(self._election_id)
        # A server of the first election scheme says OK with the id of the one it promoted, which
        # may be below one it has seen (p4lang/PI#553): only the status counts.
        if reply.status.code == rpc_code.NOT_FOUND:
            raise SessionError(
                f"{self._address} has no primary and does not take election id "
                f"{self._election_id}; start this controller with a higher p4runtime.election_id"
            )
        if reply.status.code != rpc_code.OK:
            raise SessionError(
                f"another controller is primary at {self._address} with election id "
                f"{U128.decode(reply.election_id)}, ours is {self._election_id}; stop it, or "
                "start this controller with a higher p4runtime.election_id"
            )

    async def _bid(self, election_id: int) -> p4r.MasterArbitrationUpdate:
        request = p4r.StreamMessageRequest(
            arbitration=p4r.MasterArbitrationUpdate(
                device_id=self._device_id, election_id=U128.encode(election_id)
            )
        )
        try:
            async with asyncio.timeout(self._timing.connect_s):
                await self._stream.write(request)
                while True:
                    message = await self._stream.read()
                    if message is GRPC_EOF:
                        await self._explain_tls(await self._stream.code())
                        await self._raise_stream_end()
                    if message.WhichOneof("update") == "arbitration":
                        reply: p4r.MasterArbitrationUpdate = message.arbitration
                        return reply
        except TimeoutError:
            if self._tls is not None:
                await self._explain_tls()
            raise SessionError(
                f"{self._address} did not answer within {self._timing.connect_s:g} s; is a "
                "P4Runtime server running there?",
                unreachable=True,
            ) from None
        except grpc.RpcError as error:
            await self._explain_tls(error.code())
            raise self._stream_error(error.code(), error.details()) from None
        except asyncio.InvalidStateError:
            await self._explain_tls(await self._stream.code())
            await self._raise_stream_end()

    async def _explain_tls(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """Raise what is wrong with the certificates, if that is why there is no connection."""
        if code is not grpc.StatusCode.UNAVAILABLE:
            return
        reason = await explain_tls_failure(
            self._address, self._tls, min(self._timing.connect_s, _PROBE_S)
        )
        if reason:
            raise SessionError(f"{self._address}: {reason}", unreachable=True)

    async def _raise_stream_end(self) -> NoReturn:
        raise self._stream_error(await self._stream.code(), await self._stream.details())

    def _stream_error(self, code: grpc.StatusCode, details: str | None) -> SessionError:
        if code is grpc.StatusCode.INVALID_ARGUMENT and "lection" in (details or ""):
            return SessionError(
                f"{self._address} refused election id {self._election_id} ({details}); another "
                "controller holds it: stop it, or set another p4runtime.election_id"
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return SessionError(
                f"{self._address} cannot be reached ({details}); is a P4Runtime server running "
                "there?",
                unreachable=True,
            )
        return SessionError(f"{self._address} closed the stream: {code.name} ({details})")

    async def _read_stream(self) -> None:
        try:
            while True:
                message = await self._stream.read()
                if message is GRPC_EOF:
                    await self._raise_stream_end()
                self._on_message(message)
        except grpc.RpcError as error:
            raise self._stream_error(error.code(), error.details()) from None

    def _on_message(self, message: p4r.StreamMessageResponse) -> None:
        match message.WhichOneof("update"):
            case "arbitration":
                status = message.arbitration.status.code
                if status != rpc_code.OK:
                    raise SessionError(
                        f"another controller became primary at {self._address} with election id "
                        f"{U128.decode(message.arbitration.election_id)}, ours is "
                        f"{self._election_id}; stop it, or start this controller with a higher "
                        "p4runtime.election_id"
                    )
            case "packet":
                self._on_packet(message)
            case "error":
                LOGGER.warning(
                    "%s: stream error %s: %s",
                    self._address,
                    message.error.canonical_code,
                    message.error.message,
                )
            case _:
                pass

    def _on_packet(self, message: p4r.StreamMessageResponse) -> None:
        try:
            packet = decode_stream(message, self._schema)
            if packet.metadata.get("op") != OP_READ_STATE:
                return
            reply = StateReply.decode(packet.payload)
        except ValueError as error:
            LOGGER.warning("%s: unreadable packet-in ignored: %s", self._address, error)
            return
        future = self._waiting.get(reply.request_id)
        if future is not None and not future.done():
            future.set_result(reply)

    # -- pipeline ----------------------------------------------------------------------------

    async def runs_our_pipeline(self) -> bool:
        """Say whether the switch runs our program, by its cookie. Serves as liveness probe.

        Raises:
            SessionError: the switch does not answer.
        """
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            response_type=p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY,
        )
        try:
            reply = await self._stub.GetForwardingPipelineConfig(
                request, timeout=self._timing.connect_s
            )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return False
            raise _session_error(error, self._address, "asking for its pipeline") from None
        return bool(
            reply.config.HasField("cookie") and reply.config.cookie.cookie == self._pipeline.cookie
        )

    async def push_pipeline(self) -> None:
        """Load our program; tables, counters and registers of the switch are empty afterwards.

        RECONCILE_AND_COMMIT is not used: BMv2 fails half-way with any indirect counter.

        Raises:
            PipelineRefusedError: the switch does not take it.
            SessionError: the switch does not answer.
        """
        refusal = await self._set_pipeline(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT)
        if refusal is not None and _is_half_swapped(refusal):
            # Somebody saved a program and never committed it; until that is done the switch takes
            # no other (p4lang/behavioral-model#869). Ours replaces it at once.
            LOGGER.warning(
                "%s holds a program that was saved and not committed; finishing that first",
                self._address,
            )
            await self._set_pipeline(p4r.SetForwardingPipelineConfigRequest.COMMIT)
            refusal = await self._set_pipeline(
                p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
            )
        if refusal is not None:
            raise PipelineRefusedError(
                f"{self._address} refuses the program {self._pipeline.source}: "
                f"{refusal.code().name} ({refusal.details()}); "
                + (
                    "another controller saved a program there without committing it: let it "
                    "commit, or restart the switch"
                    if _is_half_swapped(refusal)
                    else "the P4Info and the JSON must come from one run of p4c on the sources of "
                    "this version ('make p4')"
                )
            )
        if not await self.runs_our_pipeline():
            raise PipelineRefusedError(
                f"{self._address} accepted the program {self._pipeline.source} but reports another "
                "cookie; another controller may be loading its own"
            )

    async def _set_pipeline(
        self, action: p4r.SetForwardingPipelineConfigRequest.Action.ValueType
    ) -> grpc.RpcError | None:
        """Send one pipeline request; return the switch's refusal, if any."""
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            action=action,
        )
        if action != p4r.SetForwardingPipelineConfigRequest.COMMIT:
            request.config.CopyFrom(self._schema.get_pipeline_config())
        try:
            await self._stub.SetForwardingPipelineConfig(request, timeout=self._timing.rpc_s)
        except grpc.RpcError as error:
            if error.code() in _REFUSALS:
                return error
            raise _session_error(error, self._address, "loading the program") from None
        return None

    # -- tables ------------------------------------------------------------------------------

    async def read_tables(self) -> SwitchTables:
        """Return all that the switch holds, default actions included.

        Raises:
            SessionError: the switch does not answer, or holds what the program does not describe.
        """
        wanted: list[p4r.Entity] = []
        for table in self._schema.tables:
            if not table.is_const:
                wanted.append(p4r.Entity(table_entry=p4r.TableEntry(table_id=table.id)))
            # A wildcard read leaves default entries out (p4lang/p4runtime#160).
            if table.const_default_action is None and table.action_profile is None:
                default = p4r.TableEntry(table_id=table.id, is_default_action=True)
                wanted.append(p4r.Entity(table_entry=default))
        for profile in self._schema.action_profiles:
            member = p4r.ActionProfileMember(action_profile_id=profile.id)
            group = p4r.ActionProfileGroup(action_profile_id=profile.id)
            wanted.append(p4r.Entity(action_profile_member=member))
            wanted.append(p4r.Entity(action_profile_group=group))
        tables = SwitchTables()
        await self._read_into(tables, wanted)
        return tables

    async def read_back(
        self, updates: Iterable[Update], whole_tables: Collection[str] = ()
    ) -> SwitchTables:
        """Return what the switch holds under the keys of ``updates``.

        Tables in ``whole_tables`` are read whole instead of key by key.

        Raises:
            SessionError: as :meth:`read_tables`.
        """
        tables = SwitchTables()
        codec = codec_of(self._schema)
        wanted: list[p4r.Entity] = []
        for name in whole_tables:
            wanted.append(p4r.Entity())
            codec.put_wildcard(wanted[-1].table_entry, name)
        for position, update in enumerate(updates):
            if position % BATCH_UPDATES == 0:
                await self._pace.turn()
            if isinstance(update, EntryUpdate) and update.key.table in whole_tables:
                continue
            wanted.append(encode_lookup(update, self._schema))
            if len(wanted) >= BATCH_UPDATES:
                await self._read_into(tables, wanted)
                wanted = []
        if wanted:
            await self._read_into(tables, wanted)
        return tables

    async def _read_into(self, tables: SwitchTables, wanted: Sequence[p4r.Entity]) -> None:
        async for entities in self._read(wanted):
            for start in range(0, len(entities), BATCH_UPDATES):
                try:
                    decode_into(tables, entities[start : start + BATCH_UPDATES], self._schema)
                except CodecError as error:
                    raise SessionError(f"{self._address}: {error}") from None
                await self._pace.turn()

    async def _read(self, wanted: Sequence[p4r.Entity]) -> AsyncIterator[Sequence[p4r.Entity]]:
        """Yield what the switch sends, message by message; each must come in time."""
        call = self._stub.Read(p4r.ReadRequest(device_id=self._device_id, entities=wanted))
        try:
            while True:
                async with asyncio.timeout(self._timing.rpc_s):
                    reply = await call.read()
                if reply is GRPC_EOF:
                    return
                yield reply.entities
        except TimeoutError:
            raise SessionError(
                f"{self._address} did not answer in time while reading its tables",
                unreachable=True,
            ) from None
        except grpc.RpcError as error:
            raise _session_error(error, self._address, "reading its tables") from None
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            # The channel was closed under the call.
            raise SessionError(f"{self._address}: the session has ended") from None
        finally:
            call.cancel()

    async def write(self, updates: Sequence[Update], on_written: Callable[[Update], None]) -> None:
        """Write updates in batches and call ``on_written`` for each that took effect.

        Raises:
            WriteRefusedError: some updates were refused, which are named; all others took effect.
            SessionError: the switch does not answer.
        """
        refusals: list[Refusal] = []
        request, batch = self._encode(updates, 0, refusals)
        done = 0
        while done < len(updates):
            done += BATCH_UPDATES
            call = self._stub.Write(request, timeout=self._timing.rpc_s)
            # The next batch is made while the switch works on this one.
            await self._pace.turn()
            next_request, next_batch = self._encode(updates, done, refusals)
            refused = await self._outcome(call, len(batch), "writing its tables")
            for index, update in enumerate(batch):
                if index in refused:
                    refusals.append(Refusal(update, *refused[index]))
                else:
                    on_written(update)
            request, batch = next_request, next_batch
        if refusals:
            raise WriteRefusedError(refusals, len(updates))

    def _encode(
        self, updates: Sequence[Update], start: int, refusals: list[Refusal]
    ) -> tuple[p4r.WriteRequest, list[Update]]:
        request, batch = self._write_request(), []
        for update in updates[start : start + BATCH_UPDATES]:
            try:
                request.updates.append(encode_update(update, self._schema))
            except ValueError as error:
                refusals.append(Refusal(update, "not sent", str(error)))
            else:
                batch.append(update)
        return request, batch

    def _write_request(self) -> p4r.WriteRequest:
        return p4r.WriteRequest(
            device_id=self._device_id, election_id=U128.encode(self._election_id)
        )

    async def _outcome(self, call: Any, count: int, doing: str) -> dict[int, tuple[str, str]]:
        """Await a write; return code and message of each update refused, by its index."""
        try:
            await call
        except grpc.RpcError as error:
            status = P4RpcStatus.from_rpc_error(error)
            if status.details:
                return {
                    index: (detail.canonical_code.name, detail.message)
                    for index, detail in status.details.items()
                }
            if count == 1 and error.code() in _REFUSALS:
                return {0: (error.code().name, error.details() or "")}
            if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                raise SessionError(
                    f"{self._address} takes no writes from us ({error.details()}); another "
                    f"controller is primary, ours has election id {self._election_id}"
                ) from None
            raise _session_error(error, self._address, doing) from None
        return {}

    # -- state of a job ----------------------------------------------------------------------

    async def read_state(self, job_id: int, block: int, port: int = CPU_PORT) -> StateReply:
        """Ask the data plane for one state block, in-band; times are in microseconds.

        ``port`` is :meth:`Pipeline.state_port` of the block's egress ports.

        Raises:
            SessionError: no answer after three tries.
        """
        for _ in range(_STATE_ATTEMPTS):
            async with self._expected_reply() as (request_id, future):
                payload = ReadRequest(request_id, job_id, block).encode()
                packet = P4PacketOut(payload, egress_port=port, op=OP_READ_STATE)
                try:
                    async with asyncio.timeout(self._timing.state_s):
                        await self._send(packet.encode_update(self._schema))
                        return self._in_microseconds(await future)
                except TimeoutError:
                    continue
                except (grpc.RpcError, asyncio.InvalidStateError):
                    raise SessionError(f"{self._address}: the stream is closed") from None
                except asyncio.CancelledError:
                    if being_cancelled():
                        raise
                    raise SessionError(f"{self._address}: the session has ended") from None
        raise SessionError(
            f"{self._address}: the data plane did not answer {_STATE_ATTEMPTS} reads of block "
            f"{block} within {self._timing.state_s:g} s each; "
            + (
                f"is its CPU port {CPU_PORT}?"
                if port == CPU_PORT
                else f"is recirculation enabled on its port {port}?"
            )
        )

    async def _send(self, message: p4r.StreamMessageRequest) -> None:
        """Write to the stream, to the end: grpc.aio ends a stream when a write is cancelled.

        A client that hangs up while its state is being read must not cost the session.
        """

        async def write() -> None:
            # grpc.aio allows one write at a time on a stream.
            async with self._send_lock:
                await self._stream.write(message)

        task = asyncio.create_task(write())
        self._sending.add(task)
        task.add_done_callback(self._sent)
        await asyncio.shield(task)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            # Looked at, so that a failure that nobody waits for is not reported as lost.
            task.exception()

    def _in_microseconds(self, reply: StateReply) -> StateReply:
        if not self._pipeline.is_t2na:
            return reply
        return replace(
            reply,
            now=reply.now * T2NA_TICK_NS // 1000,
            win_start=reply.win_start * T2NA_TICK_NS // 1000,
        )

    @asynccontextmanager
    async def _expected_reply(self) -> AsyncIterator[tuple[int, asyncio.Future[StateReply]]]:
        request_id = self._next_request_id
        self._next_request_id = request_id % _MAX_REQUEST_ID + 1
        future: asyncio.Future[StateReply] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            yield request_id, future
        finally:
            del self._waiting[request_id]

    async def read_job_counters(self, job_id: int) -> dict[str, int]:
        """Return the packet counters of a job by counter name.

        Raises:
            SessionError: the switch does not answer.
        """
        wanted = [P4CounterEntry(name, index=job_id).encode(self._schema) for name in JOB_COUNTERS]
        counters = dict.fromkeys(JOB_COUNTERS, 0)
        async for entities in self._read(wanted):
            for message in entities:
                entity = decode_entity(message, self._schema)
                if isinstance(entity, P4CounterEntry) and entity.index == job_id:
                    counters[entity.counter_id] = entity.packet_count
        return counters

    async def reset_job_counters(self, job_ids: Sequence[int]) -> None:
        """Set the packet counters of jobs to zero; a switch that refuses is only logged.

        Counting starts anew for the sake of people; it is no reason to leave a job without rules.

        Raises:
            SessionError: the switch does not answer.
        """
        codec = codec_of(self._schema)
        cells = [(name, job_id) for job_id in job_ids for name in JOB_COUNTERS]
        for start in range(0, len(cells), BATCH_UPDATES):
            request = self._write_request()
            for name, job_id in cells[start : start + BATCH_UPDATES]:
                update = request.updates.add(type=p4r.Update.MODIFY)
                codec.put_counter(update.entity.counter_entry, name, job_id)
            call = self._stub.Write(request, timeout=self._timing.rpc_s)
            refused = await self._outcome(call, len(request.updates), "setting counters to zero")
            if refused:
                code, message = next(iter(refused.values()))
                LOGGER.warning(
                    "%s: %d counters were not set to zero, they go on from their last job's: "
                    "%s (%s)",
                    self._address,
                    len(refused),
                    code,
                    message,
                )


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, whatever that is.

    Awaiting the task itself would mix up its cancellation with the caller's own.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        # Looked at, so that the event loop does not report it as never retrieved.
        task.exception()


_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)
"""Codes by which a switch refuses a request for what it says, not for who asks or when."""


def _is_half_swapped(refusal: grpc.RpcError) -> bool:
    """Whether BMv2 refuses a program because another one was saved and not committed."""
    return "first phase" in (refusal.details() or "")


def _session_error(error: grpc.RpcError, address: str, doing: str) -> SessionError:
    wrapped = P4ClientError(error, doing)
    code, message = wrapped.code.name, wrapped.message
    if code == "UNAVAILABLE":
        return SessionError(
            f"{address} cannot be reached ({message}); is a P4Runtime server running there?",
            unreachable=True,
        )
    if code == "DEADLINE_EXCEEDED":
        return SessionError(f"{address} did not answer in time while {doing}", unreachable=True)
    return SessionError(f"{address}: {doing} failed: {code} ({message})")
