"""The test rig: a server on 127.0.0.1, plain gRPC clients, and names instead of ids."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import grpc
from finsy.proto import U128, p4i, p4r, p4r_grpc, rpc_status
from google.protobuf import text_format

from ringstep.softswitch.engine import Switch
from ringstep.softswitch.p4rt import serve

DATA = Path(__file__).parents[1] / "data"
TIMEOUT_S = 20.0


def load_p4info(name: str = "entities") -> p4i.P4Info:
    return text_format.Parse((DATA / f"{name}.p4info.txtpb").read_text(), p4i.P4Info())


def load_json(name: str = "entities") -> bytes:
    return (DATA / f"{name}.json").read_bytes()


class Names:
    """Ids of a P4Info by alias."""

    def __init__(self, p4info: p4i.P4Info) -> None:
        self.p4info = p4info
        self.ids: dict[str, int] = {}
        for group in (
            p4info.tables,
            p4info.actions,
            p4info.action_profiles,
            p4info.counters,
            p4info.direct_counters,
            p4info.meters,
            p4info.direct_meters,
            p4info.registers,
            p4info.digests,
        ):
            for one in group:
                self.ids[one.preamble.alias] = one.preamble.id

    def __getitem__(self, alias: str) -> int:
        return self.ids[alias]

    def action(self, alias: str, *args: int) -> p4r.Action:
        message = p4r.Action(action_id=self[alias])
        for position, value in enumerate(args):
            message.params.add(param_id=position + 1, value=short(value))
        return message

    def does(self, alias: str, *args: int) -> p4r.TableAction:
        return p4r.TableAction(action=self.action(alias, *args))


def short(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


NAMES = Names(load_p4info())
COPIES = Names(load_p4info("copies"))


def exact(field_id: int, value: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, exact=p4r.FieldMatch.Exact(value=short(value)))


def lpm(field_id: int, value: int, length: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(
        field_id=field_id, lpm=p4r.FieldMatch.LPM(value=short(value), prefix_len=length)
    )


def ternary(field_id: int, value: int, mask: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(
        field_id=field_id, ternary=p4r.FieldMatch.Ternary(value=short(value), mask=short(mask))
    )


def between(field_id: int, low: int, high: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(
        field_id=field_id, range=p4r.FieldMatch.Range(low=short(low), high=short(high))
    )


def optional(field_id: int, value: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field_id, optional=p4r.FieldMatch.Optional(value=short(value)))


def entry(
    table: str,
    match: list[p4r.FieldMatch] | None = None,
    action: p4r.TableAction | None = None,
    **fields: object,
) -> p4r.Entity:
    return p4r.Entity(
        table_entry=p4r.TableEntry(table_id=NAMES[table], match=match, action=action, **fields)  # type: ignore[arg-type]
    )


def ethernet(dst_addr: int, payload: bytes = b"", ether_type: int = 0x88B5) -> bytes:
    return dst_addr.to_bytes(6, "big") + bytes(6) + ether_type.to_bytes(2, "big") + payload


def ipv4(dst_addr: int, src_addr: int = 0, protocol: int = 6) -> bytes:
    """A bare IPv4 packet in a frame to address 0; the program does not look at checksums."""
    header = b"\x45\x00" + (20).to_bytes(2, "big") + bytes(4) + bytes([64, protocol]) + bytes(2)
    addresses = src_addr.to_bytes(4, "big") + dst_addr.to_bytes(4, "big")
    return ethernet(0, header + addresses, 0x0800)


class Stream:
    """One StreamChannel of a client."""

    def __init__(self, stub: p4r_grpc.P4RuntimeStub, timeout: float | None) -> None:
        self._requests: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self.call = stub.StreamChannel(iter(self._requests.get, None), timeout=timeout)

    def send(self, request: p4r.StreamMessageRequest) -> None:
        self._requests.put(request)

    def receive(self) -> p4r.StreamMessageResponse:
        return next(self.call)

    def arbitrate(
        self, election_id: int | None, device_id: int = 1, role: str = "", config: bool = False
    ) -> None:
        update = p4r.MasterArbitrationUpdate(device_id=device_id)
        if election_id is not None:
            update.election_id.CopyFrom(U128.encode(election_id))
        if role:
            update.role.name = role
        if config:
            update.role.config.Pack(rpc_status.Status())
        self.send(p4r.StreamMessageRequest(arbitration=update))

    def advisory(self) -> tuple[int, int | None]:
        """The (status code, highest election id) of the next arbitration update."""
        message = self.receive()
        assert message.WhichOneof("update") == "arbitration", message
        update = message.arbitration
        highest = U128.decode(update.election_id) if update.HasField("election_id") else None
        return update.status.code, highest

    def end(self) -> grpc.RpcError:
        """The error that ends the stream, whatever comes before it."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return error
        raise AssertionError("the stream ended without an error")

    def close(self) -> None:
        self._requests.put(None)
        for _ in self.call:
            pass


class Client:
    """A P4Runtime client; `election_id` rides on its writes."""

    def __init__(self, address: str, election_id: int | None, options: object = ()) -> None:
        self.channel = grpc.insecure_channel(address, options=options)  # type: ignore[arg-type]
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.election_id = election_id
        self.streams: list[Stream] = []

    def stream(self, timeout: float | None = TIMEOUT_S) -> Stream:
        """A new stream, which ends after `timeout` seconds."""
        self.streams.append(Stream(self.stub, timeout))
        return self.streams[-1]

    def push(
        self,
        action: int = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        program: str = "entities",
    ) -> None:
        self.set_config(
            action,
            p4r.ForwardingPipelineConfig(
                p4info=load_p4info(program),
                p4_device_config=load_json(program),
                cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=77),
            ),
        )

    def set_config(
        self,
        action: int,
        config: p4r.ForwardingPipelineConfig | None,
        device_id: int = 1,
        role: str = "",
    ) -> None:
        self.stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=device_id,
                role=role,
                election_id=self._election_id(),
                action=action,  # type: ignore[arg-type]
                config=config,
            ),
            timeout=TIMEOUT_S,
        )

    def get_config(self, response_type: int = 0) -> p4r.GetForwardingPipelineConfigResponse:
        return self.stub.GetForwardingPipelineConfig(
            p4r.GetForwardingPipelineConfigRequest(
                device_id=1,
                response_type=response_type,  # type: ignore[arg-type]
            ),
            timeout=TIMEOUT_S,
        )

    def insert(self, *entities: p4r.Entity, **fields: object) -> None:
        self.write(p4r.Update.INSERT, *entities, **fields)

    def modify(self, *entities: p4r.Entity, **fields: object) -> None:
        self.write(p4r.Update.MODIFY, *entities, **fields)

    def delete(self, *entities: p4r.Entity, **fields: object) -> None:
        self.write(p4r.Update.DELETE, *entities, **fields)

    def write(self, kind: int, *entities: p4r.Entity, **fields: object) -> None:
        self.write_updates(
            [p4r.Update(type=kind, entity=one) for one in entities],  # type: ignore[arg-type]
            **fields,
        )

    def write_updates(self, updates: list[p4r.Update], **fields: object) -> None:
        values: dict[str, object] = {"device_id": 1, "election_id": self._election_id()}
        self.stub.Write(
            p4r.WriteRequest(updates=updates, **(values | fields)),  # type: ignore[arg-type]
            timeout=TIMEOUT_S,
        )

    def read(self, *queries: p4r.Entity, device_id: int = 1) -> list[p4r.Entity]:
        return [one for reply in self.replies(*queries, device_id=device_id) for one in reply]

    def replies(self, *queries: p4r.Entity, device_id: int = 1) -> Iterator[list[p4r.Entity]]:
        request = p4r.ReadRequest(device_id=device_id, entities=queries)
        for reply in self.stub.Read(request, timeout=TIMEOUT_S):
            yield list(reply.entities)

    def close(self) -> None:
        for stream in self.streams:
            stream.call.cancel()
        self.channel.close()

    def _election_id(self) -> p4r.Uint128 | None:
        return None if self.election_id is None else U128.encode(self.election_id)


def details(error: grpc.RpcError) -> list[p4r.Error]:
    """The per-update errors of a failed batch."""
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            status = rpc_status.Status.FromString(value)
            assert status.code == error.code().value[0]
            assert status.message == error.details()
            errors = []
            for one in status.details:
                errors.append(p4r.Error())
                assert one.Unpack(errors[-1])
            return errors
    raise AssertionError("no grpc-status-details-bin")


class Rig:
    """A switch with its server and every client opened through the rig.

    Frames that leave the switch are in `sent` as (port, frame); those of the CPU port go to the
    server as packet-ins.
    """

    def __init__(self, switch: Switch | None = None, **options: object) -> None:
        self.switch = switch or Switch(device_id=1)
        self.server = serve(
            self.switch,
            "127.0.0.1:0",
            packet_out=lambda frame: self.receive(self.switch.cpu_port, frame),
            **options,  # type: ignore[arg-type]
        )
        self.sent: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._clients: list[Client] = []

    def receive(self, port: int, frame: bytes) -> None:
        """Take a frame in at a port and let everything leave that it causes."""
        with self.switch.lock:
            self.switch.receive(port, frame, 0)
            departed = self.switch.advance(0)
            digests = self.switch.take_digests()
        for name, values in digests:
            self.server.digest(name, values)
        for out, data in departed:
            if out == self.switch.cpu_port:
                self.server.packet_in(data)
            else:
                self.sent.put((out, data))

    def client(self, election_id: int | None = None, options: object = ()) -> Client:
        self._clients.append(Client(self.server.address, election_id, options))
        return self._clients[-1]

    def primary(self, election_id: int, options: object = ()) -> Client:
        """A client whose first stream has become primary."""
        one = self.client(election_id, options)
        stream = one.stream()
        stream.arbitrate(election_id)
        assert stream.advisory() == (0, election_id)
        return one

    def close(self) -> None:
        for one in self._clients:
            one.close()
        self.server.stop(grace_s=0)
