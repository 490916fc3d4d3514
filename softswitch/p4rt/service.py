"""The P4Runtime v1 service: what each RPC does with one software switch.

Specification: P4Runtime 1.5. What is implemented and what is refused, requirement by requirement,
stands in docs/softswitch-p4runtime.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import grpc
from finsy.proto import U128, p4r, p4r_grpc, rpc_status

from ringstep.softswitch.p4rt import packet_io
from ringstep.softswitch.p4rt.arbitration import Arbiter, Notification
from ringstep.softswitch.p4rt.digests import encode_list
from ringstep.softswitch.p4rt.errors import (
    Code,
    P4RuntimeError,
    batch_status,
    invalid,
    not_found,
)
from ringstep.softswitch.p4rt.pipeline import Compiler, ConfigStore, Loaded, SwitchLike
from ringstep.softswitch.p4rt.read import Reader, chunks
from ringstep.softswitch.p4rt.stream import Session
from ringstep.softswitch.p4rt.write import Writer

log = logging.getLogger(__name__)

API_VERSION = "1.5.0"
MAX_STREAMS = 16

PacketOutSink = Callable[[bytes], None]
"""Takes a frame, packet_out header in front, into the switch at its CPU port."""


class P4RuntimeService(p4r_grpc.P4RuntimeServicer):
    """The servicer. One write lock serialises Write, Read and SetForwardingPipelineConfig.

    Lock order: arbitration lock, write lock, the switch's lock.
    """

    def __init__(
        self,
        switch: SwitchLike,
        compiler: Compiler,
        packet_out: PacketOutSink,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self._switch = switch
        self._packet_out = packet_out
        self._max_streams = max_streams
        self._store = ConfigStore(switch, compiler)
        self._arbiter = Arbiter(switch.device_id, max_streams)
        self._arbitration_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._sessions_lock = threading.Lock()
        self._stopping = False
        self.packet_ins_dropped = 0
        self.digest_lists_dropped = 0
        self._digest_added = threading.Condition()
        self.digest_sender = threading.Thread(
            target=self._send_due_digests, name="p4rt-digests", daemon=True
        )
        self.digest_sender.start()

    # --------------------------------------------------------------------------------- data plane

    def deliver_packet_in(self, frame: bytes) -> None:
        """Send a frame that left at the CPU port to the primary of each role; never blocks.

        A frame that no primary takes, or that does not fit the program's packet_in header, is
        dropped and counted in `packet_ins_dropped`.
        """
        running = self._store.running
        sessions = [one for one in self._arbiter.primaries() if isinstance(one, Session)]
        if running is None or not sessions:
            self.packet_ins_dropped += 1
            return
        try:
            packet = packet_io.decode_packet_in(running.schema, frame)
        except P4RuntimeError as error:
            log.warning("%s", error.message)
            self.packet_ins_dropped += 1
            return
        message = p4r.StreamMessageResponse(packet=packet)
        for session in sessions:
            if not session.outbox.put_packet(message):
                self.packet_ins_dropped += 1

    def deliver_digest(self, name: str, values: tuple[int, ...]) -> None:
        """Take in a digest message of the data plane; never blocks for a client.

        It is dropped unless a client asked for this digest (DigestEntry).
        """
        running = self._store.running
        if running is None:
            return
        for digest in running.schema.digests.values():
            if digest.name == name:
                self._send_digests(running, running.digests.take(digest.id, values))
        with self._digest_added:
            self._digest_added.notify()

    def _send_due_digests(self) -> None:
        """Send lists whose time has come, until the server stops; a thread of its own."""
        while not self._stopping:
            running = self._store.running
            if running is not None:
                self._send_digests(running, running.digests.due())
            with self._digest_added:
                running = self._store.running
                due = None if running is None else running.digests.next_due_ns()
                if not self._stopping:
                    self._digest_added.wait(None if due is None else due / 1e9)

    def _send_digests(
        self, running: Loaded, ready: list[tuple[int, int, list[tuple[int, ...]]]]
    ) -> None:
        sessions = [one for one in self._arbiter.primaries() if isinstance(one, Session)]
        for digest_id, list_id, messages in ready:
            layout = running.schema.digests[digest_id].layout
            message = encode_list(layout, digest_id, list_id, messages)
            sent = [session.outbox.put_packet(message) for session in sessions]
            if not all(sent) or not sent:
                self.digest_lists_dropped += 1

    def close_streams(self) -> None:
        """End every stream with UNAVAILABLE and take no more; part of a graceful stop."""
        with self._sessions_lock:
            self._stopping = True
            sessions = list(self._sessions)
        with self._digest_added:
            self._digest_added.notify()
        for session in sessions:
            session.outbox.close(P4RuntimeError(Code.UNAVAILABLE, "the switch is stopping"))

    # -------------------------------------------------------------------------------- unary calls

    def Capabilities(  # noqa: N802 - the name of the RPC
        self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4r.CapabilitiesResponse:
        """Say which version of the specification is served."""
        with _aborting(context):
            if request.device_id:
                self._check_device(request.device_id)
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Verify, save or commit a pipeline (primary only)."""
        with _aborting(context):
            self._check_device_and_role(request.device_id, request.role)
            with self._write_lock:
                self._check_primary(request)
                self._store.set(request)
        return p4r.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(  # noqa: N802
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Return the pipeline in force, whole or in part; without one `config` is unset."""
        with _aborting(context):
            self._check_device(request.device_id)
            with self._write_lock:
                config = self._store.get(request.response_type)
        return p4r.GetForwardingPipelineConfigResponse(config=config)

    def Write(  # noqa: N802
        self, request: p4r.WriteRequest, context: grpc.ServicerContext
    ) -> p4r.WriteResponse:
        """Apply a batch of updates (primary only)."""
        with _aborting(context):
            self._check_device_and_role(request.device_id, request.role)
            with self._write_lock:
                self._check_primary(request)
                writer = Writer(self._loaded(), self._switch.lock)
                if request.atomicity == p4r.WriteRequest.CONTINUE_ON_ERROR:
                    results = writer.apply_each(request.updates)
                elif request.atomicity in p4r.WriteRequest.Atomicity.values():
                    results = writer.apply_all(request.updates)
                else:
                    raise invalid(f"atomicity {request.atomicity} is not one of the specification")
        with self._digest_added:
            # A digest may have got another timeout.
            self._digest_added.notify()
        _abort_batch(context, results, "update")
        return p4r.WriteResponse()

    def Read(  # noqa: N802
        self, request: p4r.ReadRequest, context: grpc.ServicerContext
    ) -> Iterator[p4r.ReadResponse]:
        """Stream the entities that a request's filters select."""
        # `role` filters by the role an entity belongs to; every role here has every entity.
        with _aborting(context):
            self._check_device(request.device_id)
            with self._write_lock:
                found, results = Reader(self._loaded(), self._switch.lock).collect(request.entities)
        yield from chunks(found)
        _abort_batch(context, results, "request")

    # ------------------------------------------------------------------------------------- stream

    def StreamChannel(  # noqa: N802
        self,
        request_iterator: Iterable[p4r.StreamMessageRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[p4r.StreamMessageResponse]:
        """Serve one client's arbitration and packet I/O until either side ends the stream."""
        with _aborting(context):
            session = self._open_session(str(context.peer()))
        if not context.add_callback(session.outbox.close):
            session.outbox.close()
        threading.Thread(
            target=self._read_stream,
            args=(session, request_iterator),
            name=f"p4rt-stream-{session.peer}",
            daemon=True,
        ).start()
        try:
            while (message := session.outbox.get()) is not None:
                yield message
        finally:
            self._close_session(session)
        if session.outbox.error is not None:
            _abort(context, session.outbox.error)

    def _open_session(self, peer: str) -> Session:
        session = Session(peer)
        with self._sessions_lock:
            if self._stopping:
                raise P4RuntimeError(Code.UNAVAILABLE, "the switch is stopping")
            if len(self._sessions) >= self._max_streams:
                raise P4RuntimeError(
                    Code.RESOURCE_EXHAUSTED,
                    f"{len(self._sessions)} streams are open, the most this switch takes",
                )
            self._sessions.add(session)
        return session

    def _close_session(self, session: Session) -> None:
        session.outbox.close()
        with self._sessions_lock:
            self._sessions.discard(session)
        with self._arbitration_lock:
            session.left = True
            self._notify(self._arbiter.leave(session))

    def _read_stream(self, session: Session, requests: Iterable[p4r.StreamMessageRequest]) -> None:
        try:
            for request in requests:
                self._handle_stream_message(session, request)
        except P4RuntimeError as error:
            session.outbox.close(error)
        except grpc.RpcError:
            session.outbox.close()
        except Exception as error:  # a defect here must end this stream, not leave it hanging
            log.exception("stream of %s failed", session.peer)
            session.outbox.close(P4RuntimeError(Code.INTERNAL, f"{type(error).__name__}: {error}"))
        else:
            session.outbox.close()

    def _handle_stream_message(self, session: Session, request: p4r.StreamMessageRequest) -> None:
        match request.WhichOneof("update"):
            case "arbitration":
                self._arbitrate(session, request.arbitration)
            case "packet":
                try:
                    self._send_packet_out(session, request.packet)
                except P4RuntimeError as error:
                    details = p4r.PacketOutError(packet_out=request.packet)
                    _report(session, error, p4r.StreamError(packet_out=details))
            case "digest_ack":
                try:
                    self._acknowledge(session, request.digest_ack)
                except P4RuntimeError as error:
                    details_ack = p4r.DigestListAckError(digest_list_ack=request.digest_ack)
                    _report(session, error, p4r.StreamError(digest_list_ack=details_ack))
            case _:
                refusal = P4RuntimeError(
                    Code.INVALID_ARGUMENT,
                    "the stream message is none of arbitration, packet, digest_ack",
                )
                _report(session, refusal, p4r.StreamError(other=p4r.StreamOtherError()))

    def _arbitrate(self, session: Session, update: p4r.MasterArbitrationUpdate) -> None:
        election_id = U128.decode(update.election_id) if update.HasField("election_id") else None
        with self._arbitration_lock:
            if session.left:
                # The stream ended while this message was on its way: it must not come back to life.
                return
            notifications = self._arbiter.update(
                session,
                update.device_id,
                update.role.name,
                election_id,
                has_role_config=update.role.HasField("config"),
            )
            self._notify(notifications)

    def _notify(self, notifications: list[Notification]) -> None:
        """Send advisories; a new primary hears last, once writes in flight are done (rule 3.b)."""
        for one in notifications:
            if one.code is Code.OK:
                with self._write_lock:
                    log.info("role %r: election id %d is primary", one.role, one.election_id)
            assert isinstance(one.stream, Session)
            one.stream.outbox.put_control(self._advisory(one))

    def _advisory(self, one: Notification) -> p4r.StreamMessageResponse:
        texts = {
            Code.OK: "you are the primary",
            Code.ALREADY_EXISTS: "another client is the primary",
            Code.NOT_FOUND: "there is no primary",
        }
        update = p4r.MasterArbitrationUpdate(
            device_id=self._switch.device_id,
            role=p4r.Role(name=one.role) if one.role else None,
            election_id=None if one.election_id is None else U128.encode(one.election_id),
            status=rpc_status.Status(code=one.code, message=texts[one.code]),
        )
        return p4r.StreamMessageResponse(arbitration=update)

    def _send_packet_out(self, session: Session, packet: p4r.PacketOut) -> None:
        if not self._arbiter.is_primary_stream(session):
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, "packet-out: only the primary may send packets"
            )
        running = self._store.running
        if running is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, _NO_PIPELINE)
        self._packet_out(packet_io.encode_packet_out(running.schema, packet))

    def _acknowledge(self, session: Session, ack: p4r.DigestListAck) -> None:
        if not self._arbiter.is_primary_stream(session):
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, "digest ack: only the primary may acknowledge"
            )
        running = self._store.running
        if running is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, _NO_PIPELINE)
        if ack.digest_id not in running.schema.digests:
            raise invalid(f"digest ack: no digest has id {ack.digest_id} in the P4Info")
        running.digests.acknowledge(ack.digest_id, ack.list_id)

    # ------------------------------------------------------------------------------------- checks

    def _check_device(self, device_id: int) -> None:
        if device_id != self._switch.device_id:
            raise not_found(
                f"device id {device_id} is not served here, this switch is device "
                f"{self._switch.device_id}"
            )

    def _check_device_and_role(self, device_id: int, role: str) -> None:
        self._check_device(device_id)
        if not self._arbiter.knows_role(role):
            raise not_found(f"role {role!r} is not known; no client has arbitrated for it")

    def _check_primary(
        self, request: p4r.WriteRequest | p4r.SetForwardingPipelineConfigRequest
    ) -> None:
        election_id = U128.decode(request.election_id) if request.HasField("election_id") else None
        if not self._arbiter.is_primary(request.role, election_id):
            given = "no election id" if election_id is None else f"election id {election_id}"
            raise P4RuntimeError(
                Code.PERMISSION_DENIED,
                f"not primary: {given} is not that of the primary of role {request.role!r}",
            )

    def _loaded(self) -> Loaded:
        if self._store.current is None:
            raise P4RuntimeError(Code.FAILED_PRECONDITION, _NO_PIPELINE)
        return self._store.current


_NO_PIPELINE = "no forwarding pipeline config is set; send SetForwardingPipelineConfig first"


@contextmanager
def _aborting(context: grpc.ServicerContext) -> Iterator[None]:
    """Turn a P4RuntimeError raised inside the block into the call's gRPC status."""
    try:
        yield
    except P4RuntimeError as error:
        _abort(context, error)


def _abort(context: grpc.ServicerContext, error: P4RuntimeError) -> NoReturn:
    context.abort(error.code.grpc, error.message)
    raise AssertionError("abort returns never")


def _abort_batch(
    context: grpc.ServicerContext, results: list[P4RuntimeError | None], noun: str
) -> None:
    if all(error is None for error in results):
        return
    status = batch_status(results, noun)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(Code.UNKNOWN.grpc, status.message)


def _report(session: Session, error: P4RuntimeError, message: p4r.StreamError) -> None:
    message.canonical_code = error.code
    message.message = error.message
    session.outbox.put_packet(p4r.StreamMessageResponse(error=message))
