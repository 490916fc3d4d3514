"""The Tofino 2 program, run from its source, with its tables by short names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from committed_program import Address, host, key_of
from p4_source import Cell, Exit, Packet, Program, Reject, Struct, StructType, TableEntry

from ringstep.protocol.limits import MAX_BLOCKS

SOURCE = Path(__file__).resolve().parents[2] / "p4src" / "ringstep_t2na.p4"

ARCHITECTURE = """
struct ingress_intrinsic_metadata_t { bit<9> ingress_port; }
struct ingress_intrinsic_metadata_from_parser_t { bit<48> global_tstamp; bit<16> parser_err; }
struct ingress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; }
struct ingress_intrinsic_metadata_for_tm_t { bit<9> ucast_egress_port; }
struct egress_intrinsic_metadata_t { bit<9> egress_port; bit<19> deq_qdepth; }
struct egress_intrinsic_metadata_from_parser_t { bit<48> global_tstamp; }
struct egress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; }
struct egress_intrinsic_metadata_for_output_port_t { bit<1> update_delay_on_tx; }
const bit<32> PORT_METADATA_SIZE = 0;
"""
"""Of t2na.p4 what the program uses; the bench stands for the hardware that sets and reads it."""

PARTIAL_HEADER = 2
"""PARSER_ERROR_PARTIAL_HDR of t2na.p4."""
INGRESS_PORT = 1 << 7 | 8
CLOCK_BITS = 48
WORD = 0xFFFFFFFF
MARKER = "RingstepEgress.marker"
BLOCK_REGISTERS = (
    "block_generation", "window_start", "outpaced", "block_alpha",
)  # fmt: skip
HALVED_REGISTERS = ("position", "window")
"""Each in two registers, of half of the blocks."""


class Pipe:
    """Parsers, controls and deparsers of one pipe, and a traffic manager that queues nothing."""

    def __init__(
        self, random: Callable[[str, int], int], defines: dict[str, str] | None = None
    ) -> None:
        self.program = Program(SOURCE, ARCHITECTURE, random, defines)
        p = self.program
        self.things: dict[str, dict[str, Any]] = {}
        """By gress: the parameters of its controls."""
        self._parse: dict[str, Callable[[Packet], None]] = {}
        self._run: dict[str, Callable[[], None]] = {}
        self._emit: dict[str, Callable[[], bytes]] = {}
        for gress in ("Ingress", "Egress"):
            name = f"Ringstep{gress}"
            things: dict[str, Any] = {}
            for _, kind, parameter in p.declared[name][3]:
                of = p.resolve(kind, p.top)
                things[parameter] = Struct(of) if isinstance(of, StructType) else Cell(of)
            self.things[gress] = things
            self._parse[gress] = p.parser(f"{name}Parser", things)
            self._run[gress] = p.instantiate(name, name, list(things.values()))
            self._emit[gress] = p.deparser(f"{name}Deparser", things["hdr"])

    def _pass(self, gress: str, data: bytes, intrinsic: Mapping[str, Mapping[str, int]]) -> bytes:
        things = self.things[gress]
        for thing in things.values():
            thing.reset()
        for name, fields in intrinsic.items():
            for member, value in fields.items():
                things[name][member] = value
        packet = Packet(data)
        self.program.accessed.clear()
        try:
            self._parse[gress](packet)
        except Reject:
            things["ig_prsr_md"]["parser_err"] = PARTIAL_HEADER
        with suppress(Exit):
            self._run[gress]()
        return self._emit[gress]() + packet.rest

    def ingress(self, data: bytes, port: int) -> tuple[int, bytes] | None:
        """Return (port to leave by, what goes to egress) for a frame; None: it was dropped."""
        inner = self._pass("Ingress", data, {"ig_intr_md": {"ingress_port": port}})
        things = self.things["Ingress"]
        if things["ig_dprsr_md"]["drop_ctl"] & 1:
            return None
        return things["ig_tm_md"]["ucast_egress_port"], inner

    def egress(self, inner: bytes, port: int, now_ns: int, qdepth_cells: int) -> bytes:
        """Return the frame that leaves through a port."""
        return self._pass(
            "Egress",
            inner,
            {
                "eg_intr_md": {"egress_port": port, "deq_qdepth": qdepth_cells},
                "eg_prsr_md": {"global_tstamp": now_ns % (1 << CLOCK_BITS)},
            },
        )


_PIPES: dict[tuple[tuple[str, str], ...], Pipe] = {}


class Bench:
    """A pipe with fresh state. One Bench lives at a time: all share the resolved program."""

    def __init__(self, defines: dict[str, str] | None = None) -> None:
        key = tuple((defines or {}).items())
        if key not in _PIPES:
            _PIPES[key] = Pipe(lambda path, width: _PIPES[key].bench.random(path, width), defines)  # type: ignore[attr-defined]
        self.pipe = _PIPES[key]
        self.pipe.bench = self  # type: ignore[attr-defined]
        self.program = self.pipe.program
        self.program.reset()
        self.draw = 0
        """What every random number is."""
        self.draws = 0

    def random(self, path: str, width: int) -> int:
        self.draws += 1
        return self.draw

    # -- tables

    def table(self, alias: str) -> Any:
        """Return a table by the last component of its name."""
        found = [t for name, t in self.program.tables.items() if name.split(".")[-1] == alias]
        assert len(found) == 1, (alias, found)
        return found[0]

    def route(self, prefix: str, nexthop: int) -> None:
        address, _, length = prefix.partition("/")
        ip = ip_address(address)
        table = self.table("route_v4" if ip.version == 4 else "route_v6")
        table.add({"dst_addr": (int(ip), int(length))}, "set_nexthop", nexthop_id=nexthop)

    def nexthop(self, nexthop: int, *ports: int) -> None:
        """Make a next hop of one or several ports (ECMP)."""
        self.table("nexthop").groups[nexthop] = [
            TableEntry(
                "forward",
                {
                    "port": port,
                    "src_mac": 0x020000000A00 + port,
                    "dst_mac": 0x020000000B00 + port,
                },
            )
            for port in ports
        ]

    def hosts(self, *ports: int) -> None:
        """Route host(port) to each port, IPv4 and IPv6."""
        for port in ports:
            self.nexthop(port, port)
            self.route(f"{host(port)}/32", port)
            self.route(f"{host(port, v6=True)}/128", port)

    def job_by_dst_qp(self, dst: Address, qp: int, job: int, path: int = 0) -> None:
        key = {"dst_addr": key_of(dst), "dst_qp": qp}
        self.table("job_by_dst_qp").add(key, "set_job", job=job, path_id=path)

    def set_params(self, job: int, params: dict[str, int]) -> None:
        self.table("job_params").add({"job": job}, "set_params", **params)

    def block_map(self, job: int, port: int, block: int) -> None:
        self.table("block_map").add({"job": job, "egress_port": port}, "set_block", block=block)

    def red(self, port: int, q_min: int, q_max: int, p_max: int, gap: int = 0) -> None:
        key = {"egress_port": port}
        self.table("red").add(key, "set_red", q_min=q_min, q_max=q_max, p_max=p_max, gap=gap)

    # -- state

    def register(self, alias: str) -> Any:
        return self.program.registers[f"{MARKER}.{alias}"]

    def block(self, block: int, step_bits: int) -> dict[str, int]:
        """Return a block under the reference's names; ``win_start`` in ticks."""
        r = {name: self.register(name).read(block) for name in BLOCK_REGISTERS}
        half, at = divmod(block, MAX_BLOCKS // 2)
        r |= {name: self.register(f"{name}_{half}").read(at) for name in HALVED_REGISTERS}
        return {
            "step_min": (r["position"]["step_min"] & WORD) >> (32 - step_bits),
            "psn_rec": r["position"]["psn_rec"] >> 7,
            "alpha": r["block_alpha"],
            "cnt_total": r["window"]["total"],
            "cnt_op": r["outpaced"],
            "win_start": r["window_start"] & WORD,
            "generation": r["block_generation"],
        }

    def anchor(self, job: int, slot: int) -> tuple[int, int, int]:
        """Return (generation, step, base) of an anchor."""
        anchor = self.register(f"anchors_{slot}").read(job)
        return anchor["owner"] >> 24, anchor["owner"] & 0xFFFF, anchor["base"] >> 8

    def state(self) -> dict[str, dict[int, Any]]:
        """Return a copy of every register."""
        return {name: dict(r.cells) for name, r in self.program.registers.items()}

    def counter(self, alias: str, index: int) -> int:
        found = [c for name, c in self.program.counters.items() if name.split(".")[-1] == alias]
        assert len(found) == 1, (alias, found)
        return int(found[0].get(index, 0))

    # -- packets

    @property
    def mark(self) -> bool:
        """The marker's word on the last packet."""
        return bool(self.pipe.things["Egress"]["meta"]["marker_mark"])

    def send(
        self, data: bytes, port: int = INGRESS_PORT, now_ns: int = 0, qdepth_cells: int = 0
    ) -> tuple[int, bytes] | None:
        """Send a frame through; return (port, frame), or None if it was dropped."""
        inner = self.pipe.ingress(data, port)
        if inner is None:
            return None
        leaves_by, bridged = inner
        return leaves_by, self.pipe.egress(bridged, leaves_by, now_ns, qdepth_cells)
