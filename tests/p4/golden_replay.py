"""Sends the rows of a golden vector through a v1model program and knows its registers.

Real frames, real table entries, a queue whose depth is what the vector says: a port of 10^6
packets/s is kept busy until just before the row's time, the row's packet waits behind that with its
``qdepth`` followers behind it in turn, and at the row's time it leaves alone.
"""

from __future__ import annotations

import marker_vectors
from committed_program import STATE, Bench, host
from marker_reference import params_of
from marker_vectors import Packet, Settings
from sample_frames import frame
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from ringstep.protocol.rocev2 import Opcode, build

VECTORS = {vector.name: vector for vector in marker_vectors.load_all()}
RATE_PPS = 1_000_000
UNREGISTERED_QP = 0x99


def qp_of(job: int) -> int:
    return 0x10000 + job if job else UNREGISTERED_QP


def filler(port: int) -> bytes:
    """Return a small UDP packet of no job, for the same port."""
    return bytes(
        (Ether() / IP(src="10.9.9.9", dst=str(host(port))) / UDP(sport=9, dport=9) / b"x").build()
    )


class Replay:
    """Sends the rows of a vector through the switch and knows what the registers must hold."""

    program = "ringstep_v1model"

    def __init__(self, name: str, v6: bool) -> None:
        self.v6 = v6
        self.bench = Bench(program=self.program)
        self.packets = VECTORS[name].packets
        self.ports = sorted({packet.port for packet in self.packets})
        self.fillers = {port: filler(port) for port in self.ports}
        self.bench.hosts(*self.ports)
        for port in self.ports:
            self.bench.queue(port, RATE_PPS)
        self.turns = 0
        self.last_now = 0
        self.blocks: dict[int, dict[str, int]] = {}
        self.anchors: dict[int, tuple[int, int, int]] = {}

    def configure(self, settings: Settings, jobs: set[int]) -> None:
        """Write the table entries that changed."""
        for job in jobs:
            params = params_of(settings.jobs[job])
            self.bench.job_params(job, params)
            self.install(job)
        for (job, port), block in settings.blocks.items():
            self.bench.block_map(job, port, block)
        if settings.red_above is not None:
            for port in self.ports:
                self.bench.red(port, settings.red_above, settings.red_above, 0)

    def install(self, job: int) -> None:
        """Write the rules by which the job's packets are found."""
        for port in self.ports:
            self.bench.job_by_dst_qp(host(port, self.v6), qp_of(job), job)

    def frame(self, row: Packet) -> bytes:
        """Return the row's packet."""
        return build(
            frame(
                Opcode[row.opcode],
                v6=self.v6,
                dst_ip=host(row.port, self.v6),
                sport=row.sport,
                psn=row.psn,
                dest_qp=qp_of(row.job),
                ecn=row.ecn,
            )
        )

    def send(self, row: Packet) -> bytes:
        """Let the row's packet leave at its time with its queue behind it; return it."""
        # The data plane's 48-bit clock wraps, the switch's own does not.
        if row.now_us < self.last_now:
            self.turns += 1
        self.last_now = row.now_us
        now = row.now_us + (self.turns << 48)
        data = self.frame(row)
        switch = self.bench.switch
        self.bench.draw.value, self.bench.draw.calls = row.r, 0
        if row.qdepth == 0:
            out = self.bench.send(data, now)
        else:
            # One packet leaves at now - 1 and holds the port until now.
            assert len(self.bench.send(self.fillers[row.port], now - 1)) == 1
            switch.receive(1, data, now - 0.5)
            for _ in range(row.qdepth):
                switch.receive(1, self.fillers[row.port], now - 0.5)
            out = switch.advance(now)
        assert [port for port, _ in out] == [row.port]
        assert self.bench.draw.calls == row.followed
        drained = switch.advance(now + row.qdepth)
        assert len(drained) == row.qdepth
        return out[0][1]

    def expect(self, row: Packet, anchored: bool) -> None:
        """Note what the registers hold after the row."""
        if row.block is not None:
            self.blocks[row.block] = row.state
            if anchored:
                assert row.step is not None
                assert row.base is not None
                slot = row.job * 4 + row.step % 4
                self.anchors[slot] = row.state["generation"], row.step, row.base

    def check_known_state(self, where: str) -> None:
        for block, expected in self.blocks.items():
            assert self.bench.block(block) == expected, f"{where}, block {block}"
        for slot, anchor in self.anchors.items():
            assert self.bench.anchor(slot // 4, slot % 4) == anchor, f"{where}, anchor {slot}"

    def check_all_state(self) -> None:
        """Nothing else was ever written."""
        for name in STATE:
            wanted = {block: state[name] for block, state in self.blocks.items() if state[name]}
            assert touched(self.bench.register(name)) == wanted, name
        assert touched(self.bench.register("anchors")).keys() == self.anchors.keys()


def touched(cells: list[int], at_once: int = 256) -> dict[int, int]:
    """Return the cells of a register that do not hold 0; there are many, and few of these."""
    return {
        at: value
        for start in range(0, len(cells), at_once)
        if any(part := cells[start : start + at_once])
        for at, value in enumerate(part, start)
        if value
    }
