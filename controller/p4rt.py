"""One P4Runtime session with one switch: arbitration, pipeline, read, write, packet I/O.

finsy describes the P4Info and encodes the entities. The session itself is written here: finsy's
own switch class waits ten seconds after a quick failure, sends no liveness probe, and reports a
refused pipeline only to its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import grpc
import grpc.aio
from finsy import (
    P4ActionProfileGroup,
    P4ActionProfileMember,
    P4ClientError,
    P4CounterData,
    P4CounterEntry,
    P4PacketOut,
    P4TableEntry,
)
from finsy.grpcutil import GRPC_EOF
from finsy.p4client import P4RpcStatus
from finsy.p4entity import decode_entity, decode_stream
from finsy.proto import U128, p4r, p4r_grpc, rpc_code

from ringstep.controller.channels import open_channel
from ringstep.controller.codec import CodecError, decode_into, encode_lookup, encode_update
from ringstep.controller.entries import SwitchTables
from ringstep.controller.pipeline import JOB_COUNTERS, Pipeline
from ringstep.controller.plan import DefaultUpdate, EntryUpdate, GroupUpdate, MemberUpdate, Update
from ringstep.protocol.inband import OP_READ_STATE, ReadRequest, StateReply
from ringstep.protocol.limits import CPU_PORT, T2NA_TICK_NS

LOGGER = logging.getLogger(__name__)

BATCH_UPDATES: Final = 250
"""Updates per write: small enough that a refused one is found in a short answer."""
_MAX_REFUSALS_SHOWN: Final = 5
_STATE_ATTEMPTS: Final = 3
_MAX_REQUEST_ID: Final = (1 << 32) - 1


class SessionError(Exception):
    """The session with a switch failed or could not start; ``unreachable``: nobody answered."""

    def __init__(self, text: str, *, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable


class PipelineRefusedError(SessionError):
    """The switch does not take the program."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One update that a switch refused, and its reason."""

    update: Update
    code: str
    message: str

    def __str__(self) -> str:
        reason = f"{self.code} ({self.message})" if self.message else self.code
        return f"{self.update}: {reason}"


class WriteRefusedError(Exception):
    """A write of which some updates were refused; the others took effect."""

    def __init__(self, refusals: Sequence[Refusal], total: int) -> None:
        self.refusals = tuple(refusals)
        shown = [str(refusal) for refusal in refusals[:_MAX_REFUSALS_SHOWN]]
        if len(refusals) > len(shown):
            shown.append(f"and {len(refusals) - len(shown)} more")
        super().__init__(f"{len(refusals)} of {total} updates refused: " + "; ".join(shown))


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
    ) -> None:
        self._address = address
        self._device_id = device_id
        self._pipeline = pipeline
        self._schema = pipeline.schema
        self._election_id = election_id
        self._timing = timing or Timing()
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._stream: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._next_request_id = 1
        self._waiting: dict[int, asyncio.Future[StateReply]] = {}
        self._send_lock = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._channel = open_channel(self._address)
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
        if reply.status.code == rpc_code.NOT_FOUND:
            # Nobody is primary and ours is below the highest id the switch has seen (P4Runtime
            # specification 1.4, section 5.3): bid that one.
            self._election_id = U128.decode(reply.election_id)
            reply = await self._bid(self._election_id)
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
                        await self._raise_stream_end()
                    if message.WhichOneof("update") == "arbitration":
                        reply: p4r.MasterArbitrationUpdate = message.arbitration
                        return reply
        except TimeoutError:
            raise SessionError(
                f"{self._address} did not answer within {self._timing.connect_s:g} s; is a "
                "P4Runtime server running there?",
                unreachable=True,
            ) from None
        except grpc.RpcError as error:
            raise self._stream_error(error.code(), error.details()) from None
        except asyncio.InvalidStateError:
            await self._raise_stream_end()

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
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=self._schema.get_pipeline_config(),
        )
        try:
            await self._stub.SetForwardingPipelineConfig(request, timeout=self._timing.rpc_s)
        except grpc.RpcError as error:
            if error.code() in {
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNKNOWN,
                grpc.StatusCode.INTERNAL,
            }:
                raise PipelineRefusedError(
                    f"{self._address} refuses the program {self._pipeline.source}: "
                    f"{error.code().name} ({error.details()}); the P4Info and the JSON must come "
                    "from one run of p4c on the sources of this version ('make p4')"
                ) from None
            raise _session_error(error, self._address, "loading the program") from None
        if not await self.runs_our_pipeline():
            raise PipelineRefusedError(
                f"{self._address} accepted the program {self._pipeline.source} but reports another "
                "cookie; another controller may be loading its own"
            )

    # -- tables ------------------------------------------------------------------------------

    async def read_tables(self) -> SwitchTables:
        """Return all that the switch holds, default actions included.

        Raises:
            SessionError: the switch does not answer, or holds what the program does not describe.
        """
        tables = SwitchTables()
        wanted: list[p4r.Entity] = []
        for table in self._schema.tables:
            if not table.is_const:
                wanted.append(P4TableEntry(table.alias).encode(self._schema))
            # A wildcard read leaves default entries out (p4lang/p4runtime#160).
            if table.const_default_action is None and table.action_profile is None:
                wanted.append(
                    P4TableEntry(table.alias, is_default_action=True).encode(self._schema)
                )
        for profile in self._schema.action_profiles:
            wanted.append(P4ActionProfileMember(profile.alias).encode(self._schema))
            wanted.append(P4ActionProfileGroup(profile.alias).encode(self._schema))
        await self._read_into(tables, wanted)
        return tables

    async def read_back(self, updates: Iterable[Update]) -> SwitchTables:
        """Return what the switch holds under the keys of ``updates``.

        Raises:
            SessionError: as :meth:`read_tables`.
        """
        tables = SwitchTables()
        wanted = [encode_lookup(update, self._schema) for update in updates]
        for start in range(0, len(wanted), BATCH_UPDATES):
            await self._read_into(tables, wanted[start : start + BATCH_UPDATES])
        return tables

    async def _read_into(self, tables: SwitchTables, wanted: Sequence[p4r.Entity]) -> None:
        async for entity in self._read(wanted):
            try:
                decode_into(tables, [entity], self._schema)
            except CodecError as error:
                raise SessionError(f"{self._address}: {error}") from None

    async def _read(self, wanted: Sequence[p4r.Entity]) -> AsyncIterator[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self._device_id, entities=wanted)
        try:
            async for reply in self._stub.Read(request, timeout=self._timing.rpc_s):
                for entity in reply.entities:
                    yield entity
        except grpc.RpcError as error:
            raise _session_error(error, self._address, "reading its tables") from None

    async def write(self, updates: Sequence[Update], on_written: Callable[[Update], None]) -> None:
        """Write updates in batches and call ``on_written`` for each that took effect.

        Raises:
            WriteRefusedError: the switch refused some updates of one batch, which are named; later
                batches were not sent.
            SessionError: the switch does not answer.
        """
        for start in range(0, len(updates), BATCH_UPDATES):
            batch = updates[start : start + BATCH_UPDATES]
            refused = await self._write_batch(batch)
            for index, update in enumerate(batch):
                if index not in refused:
                    on_written(update)
            if refused:
                raise WriteRefusedError(list(refused.values()), len(batch))

    async def _write_batch(self, batch: Sequence[Update]) -> dict[int, Refusal]:
        refused = await self._send(
            [encode_update(update, self._schema) for update in batch], "writing its tables"
        )
        return {
            index: Refusal(batch[index], code, message)
            for index, (code, message) in refused.items()
        }

    async def _send(self, updates: Sequence[p4r.Update], doing: str) -> dict[int, tuple[str, str]]:
        """Write one batch; return code and message of each update refused, by its index."""
        request = p4r.WriteRequest(
            device_id=self._device_id,
            election_id=U128.encode(self._election_id),
            updates=updates,
        )
        try:
            await self._stub.Write(request, timeout=self._timing.rpc_s)
        except grpc.RpcError as error:
            status = P4RpcStatus.from_rpc_error(error)
            if not status.details:
                raise _session_error(error, self._address, doing) from None
            return {
                index: (detail.canonical_code.name, detail.message)
                for index, detail in status.details.items()
            }
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
                        # grpc.aio allows one write at a time on a stream.
                        async with self._send_lock:
                            await self._stream.write(packet.encode_update(self._schema))
                        return self._in_microseconds(await future)
                except TimeoutError:
                    continue
                except (grpc.RpcError, asyncio.InvalidStateError):
                    raise SessionError(f"{self._address}: the stream is closed") from None
        raise SessionError(
            f"{self._address}: the data plane did not answer {_STATE_ATTEMPTS} reads of block "
            f"{block} within {self._timing.state_s:g} s each; "
            + (
                f"is its CPU port {CPU_PORT}?"
                if port == CPU_PORT
                else f"is recirculation enabled on its port {port}?"
            )
        )

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
        async for message in self._read(wanted):
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
        zero = P4CounterData(packet_count=0, byte_count=0)
        updates = [
            p4r.Update(
                type=p4r.Update.MODIFY,
                entity=P4CounterEntry(name, index=job_id, data=zero).encode(self._schema),
            )
            for job_id in job_ids
            for name in JOB_COUNTERS
        ]
        for start in range(0, len(updates), BATCH_UPDATES):
            refused = await self._send(
                updates[start : start + BATCH_UPDATES], "setting counters to zero"
            )
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


def missing_after_write(updates: Iterable[Update], found: SwitchTables) -> list[Update]:
    """Return the updates whose effect is not in what was read back."""
    held: dict[tuple[type[Update], Any], Any] = {
        **{(DefaultUpdate, table): call for table, call in found.defaults.items()},
        **{(MemberUpdate, key): call for key, call in found.members.items()},
        **{(GroupUpdate, key): members for key, members in found.groups.items()},
        **{(EntryUpdate, key): value for key, value in found.entries.items()},
    }
    return [
        update
        for update in updates
        if held.get(
            (type(update), update.table if isinstance(update, DefaultUpdate) else update.key)
        )
        != update.value
    ]


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
