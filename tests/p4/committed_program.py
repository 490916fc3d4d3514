"""The committed P4 program with its tables by short names: in the software switch in memory
(`Bench`), and on any engine over P4Runtime (`WireBench`)."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from engines import Engine
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from ringstep.protocol.inband import OP_READ_STATE, ReadRequest, StateReply
from ringstep.protocol.marker import MarkerParams
from ringstep.softswitch.engine import Switch, compile_pipeline
from ringstep.softswitch.p4rt import translate
from ringstep.softswitch.p4rt.schema import Schema, build_schema
from ringstep.softswitch.queueing import QueueConfig
from ringstep.softswitch.tables import (
    ActionCall,
    Entry,
    Exact,
    GroupRef,
    Lpm,
    MemberRef,
    Pipeline,
    Ternary,
)

INGRESS_PORT = 500
STATE = ("step_min", "psn_rec", "alpha", "cnt_total", "cnt_op", "win_start", "generation")
JOB_COUNTERS = {
    "data": "job_data",
    "marks": "job_marks",
    "red_marks": "job_red_marks",
    "corrections": "job_corrections",
    "advances": "job_advances",
}
"""Field of the reference's JobCounters -> counter of the program."""

Address = IPv4Address | IPv6Address

MAIN_PROGRAM = "ringstep_v1model"


def _artefacts(program: str) -> tuple[str, str]:
    """P4Info and BMv2 JSON."""
    build = importlib.resources.files("ringstep") / "p4build"
    return (
        (build / f"{program}.p4info.txtpb").read_text(),
        (build / f"{program}.json").read_text(),
    )


@functools.cache
def _compiled(program: str) -> Pipeline:
    return compile_pipeline(*_artefacts(program))


@functools.cache
def _config(program: str) -> tuple[p4r.ForwardingPipelineConfig, Schema]:
    """What is pushed to a switch, and what it says; changed by nobody."""
    info, text = _artefacts(program)
    p4info = text_format.Parse(info, p4i.P4Info())
    config = p4r.ForwardingPipelineConfig(p4info=p4info, p4_device_config=text.encode())
    return config, build_schema(p4info)


def key_of(address: Address) -> int:
    """Return an address as the 128-bit keys of the job tables hold it: IPv4 as ::ffff:a.b.c.d."""
    return int(address) if address.version == 6 else 0xFFFF << 32 | int(address)


def host(port: int, v6: bool = False) -> Address:
    """Return the address of the host behind a port."""
    return ip_address(f"2001:db8:1::{port:x}" if v6 else f"10.1.0.{port}")


@dataclass
class Draw:
    """The injected random source: returns ``value`` and counts how often it was asked."""

    value: int = 0
    calls: int = 0

    def __call__(self, low: int, high: int) -> int:
        assert (low, high) == (0, 0xFFFF)
        self.calls += 1
        return self.value


class Programmed(ABC):
    """A switch that runs the program; what can be written into its tables, by short names."""

    @abstractmethod
    def insert(
        self, alias: str, match: tuple[Any, ...], action: str, *args: int, priority: int = 0
    ) -> None:
        """Insert or replace an entry whose action is given by its short name."""

    @abstractmethod
    def parameters(self, alias: str, action: str) -> list[str]:
        """Return the names of the parameters of a table's action."""

    @abstractmethod
    def delete(self, alias: str, match: tuple[Any, ...]) -> None:
        """Delete an entry of a table without priorities."""

    @abstractmethod
    def seed(self, value: int) -> None:
        """Set the seed of the switch's ECMP choices."""

    @abstractmethod
    def nexthop(self, nexthop: int, *ports: int) -> None:
        """Make a next hop of one or several ports (ECMP)."""

    @abstractmethod
    def send(self, frame: bytes, now: int = 0, port: int = INGRESS_PORT) -> list[tuple[int, bytes]]:
        """Take a frame in and return what left because of it."""

    @abstractmethod
    def send_all(self, frames: Sequence[bytes]) -> list[list[tuple[int, bytes]]]:
        """Take frames in one after the other and return what left because of each."""

    @abstractmethod
    def block(self, block: int) -> dict[str, int]:
        """Return the registers of a block by name."""

    @abstractmethod
    def anchor(self, job: int, slot: int) -> tuple[int, int, int]:
        """Return (generation, step, base) of an anchor."""

    @abstractmethod
    def all_state(self) -> object:
        """Return something that is equal as long as no job's state changes."""

    @abstractmethod
    def counter(self, alias: str, index: int) -> int:
        """Return the packets of a counter cell."""

    @abstractmethod
    def ingress_drops(self) -> int:
        """Return how many packets the program has dropped and counted in ingress."""

    def route(self, prefix: str, nexthop: int) -> None:
        """Route a prefix (a.b.c.d/len or IPv6) to a next hop."""
        address, _, length = prefix.partition("/")
        ip = ip_address(address)
        alias = "route_v4" if ip.version == 4 else "route_v6"
        self.insert(alias, (Lpm(int(ip), int(length)),), "set_nexthop", nexthop)

    def hosts(self, *ports: int) -> None:
        """Route host(port) to each port, IPv4 and IPv6, with an exact next hop each."""
        for port in ports:
            self.nexthop(port, port)
            self.route(f"{host(port)}/32", port)
            self.route(f"{host(port, v6=True)}/128", port)

    def job_by_dst_qp(self, dst: Address, qp: int, job: int, path: int = 0) -> None:
        self.insert("job_by_dst_qp", (Exact(key_of(dst)), Exact(qp)), "set_job", job, path)

    def job_by_pair(self, src: Address, dst: Address, job: int, path: int = 0) -> None:
        match = (Exact(key_of(src)), Exact(key_of(dst)))
        self.insert("job_by_pair", match, "set_job", job, path)

    def job_by_tag(
        self,
        job: int,
        sport: tuple[int, int] = (0, 0),
        resv6a: tuple[int, int] = (0, 0),
        dscp: tuple[int, int] = (0, 0),
        priority: int = 10,
    ) -> None:
        match = (Ternary(*sport), Ternary(*resv6a), Ternary(*dscp))
        self.insert("job_by_tag", match, "set_job", job, 0, priority=priority)

    def job_by_uec_id(self, uec_id: int, job: int) -> None:
        """Of the program with Ultra Ethernet only."""
        self.insert("job_by_uec_id", (Exact(uec_id),), "set_job", job, 0)

    def job_params(self, job: int, params: MarkerParams) -> None:
        wanted = params.to_table()
        names = self.parameters("job_params", "set_params")
        assert names == list(wanted), "to_table() and set_params differ"
        self.insert("job_params", (Exact(job),), "set_params", *wanted.values())

    def block_map(self, job: int, port: int, block: int) -> None:
        self.insert("block_map", (Exact(job), Exact(port)), "set_block", block)

    def red(self, port: int, q_min: int, q_max: int, p_max: int, gap: int = 0) -> None:
        self.insert("red", (Exact(port),), "set_red", q_min, q_max, p_max, gap)


class Bench(Programmed):
    """A switch with fresh state. One Bench lives at a time: all share the compiled program."""

    def __init__(
        self, rng: Callable[[int, int], int] | None = None, program: str = MAIN_PROGRAM
    ) -> None:
        self.draw = Draw()
        self.pipeline = _compiled(program)
        self.pipeline.reset()
        self.switch = Switch(1, rng=rng or self.draw)
        self.switch.commit(self.pipeline)

    # -- tables

    def table(self, alias: str) -> Any:
        """Return a table by the last component of its name."""
        return self._by_alias(self.pipeline.tables, alias)

    def insert(
        self, alias: str, match: tuple[Any, ...], action: str, *args: int, priority: int = 0
    ) -> None:
        """Insert or replace an entry whose action is given by its short name."""
        table = self.table(alias)
        entry = Entry(match, priority, self._call(table, action, args))
        if table.get(match, priority) is None:
            table.insert(entry)
        else:
            table.modify(entry)

    def parameters(self, alias: str, action: str) -> list[str]:
        (info,) = (a for a in self.table(alias).actions if a.name.split(".")[-1] == action)
        return [name for name, _ in info.params]

    def delete(self, alias: str, match: tuple[Any, ...]) -> None:
        self.table(alias).delete(match)

    def seed(self, value: int) -> None:
        table = self.table("switch_config")
        table.set_default(self._call(table, "set_switch", (value,)))

    def nexthop(self, nexthop: int, *ports: int) -> None:
        """Make a next hop of one or several ports (ECMP)."""
        profile = self._by_alias(self.pipeline.action_profiles, "ecmp")
        table = self.table("nexthop")
        for port in ports:
            if port not in profile.members():
                args = (port, 0x020000000A00 + port, 0x020000000B00 + port)
                profile.insert_member(port, self._call(table, "forward", args))
        if len(ports) == 1:
            ref: MemberRef | GroupRef = MemberRef(ports[0])
        else:
            profile.insert_group(nexthop, [(port, 1) for port in ports])
            ref = GroupRef(nexthop)
        table.insert(Entry((Exact(nexthop),), 0, ref))

    def queue(self, port: int, rate_pps: float, capacity: int = 1024) -> None:
        self.switch.configure_queue(port, QueueConfig(rate_pps=rate_pps, capacity=capacity))

    # -- state

    def ingress_drops(self) -> int:
        return sum(self.counter("ingress_drops", reason) for reason in range(4))

    def register(self, alias: str) -> list[int]:
        """Return the cells of a register."""
        values: list[int] = self._by_alias(self.pipeline.registers, alias).values
        return values

    def block(self, block: int) -> dict[str, int]:
        """Return the registers of a block by name."""
        return {name: self.register(name)[block] for name in STATE}

    def anchor(self, job: int, slot: int) -> tuple[int, int, int]:
        """Return (generation, step, base) of an anchor."""
        word = self.register("anchors")[job * 4 + slot]
        return word >> 40, word >> 24 & 0xFFFF, word & 0xFFFFFF

    def all_state(self) -> dict[str, list[int]]:
        """Return a copy of every register."""
        return {name: list(self.register(name)) for name in (*STATE, "anchors")}

    def counter(self, alias: str, index: int) -> int:
        """Return the packets of a counter cell."""
        packets: int = self._by_alias(self.pipeline.counters, alias).packets[index]
        return packets

    # -- packets

    def send(self, frame: bytes, now: int = 0, port: int = INGRESS_PORT) -> list[tuple[int, bytes]]:
        """Take a frame in and return what left by ``now``."""
        self.switch.receive(port, frame, now)
        out = self.switch.advance(now)
        assert self.switch.stats.error_drops == 0, self.switch.stats.last_error
        return out

    def send_all(self, frames: Sequence[bytes]) -> list[list[tuple[int, bytes]]]:
        return [self.send(frame) for frame in frames]

    @staticmethod
    def _by_alias(things: dict[str, Any], alias: str) -> Any:
        found = [thing for name, thing in things.items() if name.split(".")[-1] == alias]
        assert len(found) == 1, f"{alias}: {len(found)} of that name"
        return found[0]

    @staticmethod
    def _call(table: Any, action: str, args: tuple[int, ...]) -> ActionCall:
        (name,) = (a.name for a in table.actions if a.name.split(".")[-1] == action)
        return ActionCall(name, tuple(args))


class WireBench(Programmed):
    """The program on an engine of its own or borrowed, with fresh state; everything over wires.

    State is read in-band. `all_state` holds the blocks that `block_map` was told of, with the
    anchors of their jobs, and what was never written.
    """

    def __init__(self, engine: Engine, program: str = MAIN_PROGRAM) -> None:
        self.engine = engine
        config, self._schema = _config(program)
        self._tables = {one.alias.split(".")[-1]: one for one in self._schema.tables.values()}
        self._written: set[Any] = set()
        self._mapped: list[tuple[int, int]] = [(0, 0)]
        engine.client.set_config(p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT, config)

    def parameters(self, alias: str, action: str) -> list[str]:
        (found,) = (
            one
            for one, _ in self._tables[alias].actions.values()
            if one.name.split(".")[-1] == action
        )
        return [param.name for param in found.params]

    def _action(self, table: Any, action: str, args: tuple[int, ...]) -> p4r.Action:
        name = next(
            one.name for one, _ in table.actions.values() if one.name.split(".")[-1] == action
        )
        return translate.encode_action(self._schema, ActionCall(name, tuple(args)))

    def _write(self, key: Any, entity: p4r.Entity) -> None:
        if key in self._written:
            self.engine.client.modify(entity)
        else:
            self.engine.client.insert(entity)
            self._written.add(key)

    def insert(
        self, alias: str, match: tuple[Any, ...], action: str, *args: int, priority: int = 0
    ) -> None:
        table = self._tables[alias]
        entry = p4r.TableEntry(
            table_id=table.id,
            match=translate.encode_match(table, match),
            priority=priority,
            action=p4r.TableAction(action=self._action(table, action, args)),
        )
        self._write((alias, match, priority), p4r.Entity(table_entry=entry))
        if alias == "block_map":
            self._mapped.append((match[0].value, args[0]))

    def delete(self, alias: str, match: tuple[Any, ...]) -> None:
        table = self._tables[alias]
        entry = p4r.TableEntry(table_id=table.id, match=translate.encode_match(table, match))
        self.engine.client.delete(p4r.Entity(table_entry=entry))
        self._written.discard((alias, match, 0))

    def seed(self, value: int) -> None:
        table = self._tables["switch_config"]
        entry = p4r.TableEntry(
            table_id=table.id,
            is_default_action=True,
            action=p4r.TableAction(action=self._action(table, "set_switch", (value,))),
        )
        self.engine.client.modify(p4r.Entity(table_entry=entry))

    def nexthop(self, nexthop: int, *ports: int) -> None:
        table = self._tables["nexthop"]
        for port in ports:
            if ("member", port) not in self._written:
                args = (port, 0x020000000A00 + port, 0x020000000B00 + port)
                member = p4r.ActionProfileMember(
                    action_profile_id=table.profile_id,
                    member_id=port,
                    action=self._action(table, "forward", args),
                )
                self._write(("member", port), p4r.Entity(action_profile_member=member))
        action = p4r.TableAction(action_profile_member_id=ports[0])
        if len(ports) > 1:
            group = p4r.ActionProfileGroup(
                action_profile_id=table.profile_id,
                group_id=nexthop,
                members=[p4r.ActionProfileGroup.Member(member_id=p, weight=1) for p in ports],
                max_size=16,
            )
            self._write(("group", nexthop), p4r.Entity(action_profile_group=group))
            action = p4r.TableAction(action_profile_group_id=nexthop)
        match = (Exact(nexthop),)
        entry = p4r.TableEntry(
            table_id=table.id, match=translate.encode_match(table, match), action=action
        )
        self._write(("nexthop", match), p4r.Entity(table_entry=entry))

    # -- state

    def read(self, job: int, block: int) -> StateReply:
        """Return a block and a job's anchors, read in-band."""
        packet = p4r.PacketOut(payload=ReadRequest(77, job, block).encode())
        for field in self._schema.packet_headers["packet_out"].fields:
            value = OP_READ_STATE if field.name == "op" else 0
            packet.metadata.add(metadata_id=field.id, value=value.to_bytes(1, "big"))
        self.engine.packet_out(packet)
        (payload,) = self.engine.packet_ins(1)
        reply = StateReply.decode(payload)
        assert (reply.request_id, reply.job, reply.block) == (77, job, block)
        return reply

    def block(self, block: int) -> dict[str, int]:
        reply = self.read(0, block)
        return {name: getattr(reply, name) for name in STATE}

    def anchor(self, job: int, slot: int) -> tuple[int, int, int]:
        return self.read(job, 0).anchors[slot]

    def all_state(self) -> object:
        # All but the time of the reading.
        return [dataclasses.replace(self.read(*one), now=0) for one in self._mapped]

    def counter(self, alias: str, index: int) -> int:
        counter = next(one for one in self._schema.counters.values() if one.alias == alias)
        query = p4r.CounterEntry(counter_id=counter.id, index=p4r.Index(index=index))
        (found,) = self.engine.client.read(p4r.Entity(counter_entry=query))
        return found.counter_entry.data.packet_count

    def ingress_drops(self) -> int:
        return sum(self.counter("ingress_drops", reason) for reason in range(4))

    # -- packets

    def send(self, frame: bytes, now: int = 0, port: int = INGRESS_PORT) -> list[tuple[int, bytes]]:
        return self.engine.exchange([(port, frame)])[0]

    def send_all(self, frames: Sequence[bytes]) -> list[list[tuple[int, bytes]]]:
        return self.engine.exchange([(INGRESS_PORT, frame) for frame in frames])
