"""The committed P4 program in the in-memory software switch, with its tables by short names."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from ringstep.protocol.marker import MarkerParams
from ringstep.softswitch.engine import Switch, compile_pipeline
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


@functools.cache
def _compiled(program: str) -> Pipeline:
    build = importlib.resources.files("ringstep") / "p4build"
    return compile_pipeline(
        (build / f"{program}.p4info.txtpb").read_text(),
        (build / f"{program}.json").read_text(),
    )


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


class Bench:
    """A switch with fresh state. One Bench lives at a time: all share the compiled program."""

    def __init__(
        self, rng: Callable[[int, int], int] | None = None, program: str = "ringstep_v1model"
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

    def route(self, prefix: str, nexthop: int) -> None:
        """Route a prefix (a.b.c.d/len or IPv6) to a next hop."""
        address, _, length = prefix.partition("/")
        ip = ip_address(address)
        alias = "route_v4" if ip.version == 4 else "route_v6"
        self.insert(alias, (Lpm(int(ip), int(length)),), "set_nexthop", nexthop)

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
        table = self.table("job_params")
        wanted = params.to_table()
        (info,) = (a for a in table.actions if a.name.endswith(".set_params"))
        names = [name for name, _ in info.params]
        assert names == list(wanted), "to_table() and set_params differ"
        self.insert("job_params", (Exact(job),), "set_params", *(wanted[name] for name in names))

    def block_map(self, job: int, port: int, block: int) -> None:
        self.insert("block_map", (Exact(job), Exact(port)), "set_block", block)

    def red(self, port: int, q_min: int, q_max: int, p_max: int) -> None:
        self.insert("red", (Exact(port),), "set_red", q_min, q_max, p_max)

    def queue(self, port: int, rate_pps: float, capacity: int = 1024) -> None:
        self.switch.configure_queue(port, QueueConfig(rate_pps=rate_pps, capacity=capacity))

    # -- state

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

    @staticmethod
    def _by_alias(things: dict[str, Any], alias: str) -> Any:
        found = [thing for name, thing in things.items() if name.split(".")[-1] == alias]
        assert len(found) == 1, f"{alias}: {len(found)} of that name"
        return found[0]

    @staticmethod
    def _call(table: Any, action: str, args: tuple[int, ...]) -> ActionCall:
        (name,) = (a.name for a in table.actions if a.name.split(".")[-1] == action)
        return ActionCall(name, tuple(args))
