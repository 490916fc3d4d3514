"""Every golden vector through the committed P4 program, packet for packet.

Real frames, real table entries, a queue whose depth is what the vector says: a port of 10^6
packets/s is kept busy until just before the row's time, the row's packet waits behind that with
its ``qdepth`` followers behind it in turn, and at the row's time it leaves alone.
"""

from __future__ import annotations

import marker_vectors
import pytest
from committed_program import JOB_COUNTERS, STATE, Bench, host
from marker_reference import ReferenceJobs, params_of
from marker_vectors import Packet, Settings
from sample_frames import frame
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from ringstep.protocol.marker import JobCounters
from ringstep.protocol.rocev2 import Opcode, build, parse

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

    def __init__(self, name: str, v6: bool) -> None:
        self.v6 = v6
        self.bench = Bench()
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
            for port in self.ports:
                self.bench.job_by_dst_qp(host(port, self.v6), qp_of(job), job)
        for (job, port), block in settings.blocks.items():
            self.bench.block_map(job, port, block)
        if settings.red_above is not None:
            for port in self.ports:
                self.bench.red(port, settings.red_above, settings.red_above, 0)

    def send(self, row: Packet) -> bytes:
        """Let the row's packet leave at its time with its queue behind it; return it."""
        # The data plane's 48-bit clock wraps, the switch's own does not.
        if row.now_us < self.last_now:
            self.turns += 1
        self.last_now = row.now_us
        now = row.now_us + (self.turns << 48)
        data = build(
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
            cells = self.bench.register(name)
            touched = {at: value for at, value in enumerate(cells) if value}
            wanted = {block: state[name] for block, state in self.blocks.items() if state[name]}
            assert touched == wanted, name
        touched = {at for at, value in enumerate(self.bench.register("anchors")) if value}
        assert touched == self.anchors.keys()


@pytest.mark.parametrize("v6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("name", VECTORS)
def test_program_agrees_in_every_row(name: str, v6: bool) -> None:
    replay = Replay(name, v6)
    reference = ReferenceJobs()
    for settings, changed, row in VECTORS[name].replay():
        where = f"{name}.txt, line {row.line}"
        if changed:
            replay.configure(settings, {job for job, _ in changed})
        reference.take(settings, changed)
        reference.packet(settings, row)
        left = parse(replay.send(row))
        anchored = row.followed and settings.jobs[row.job]["mode"] == "anchored"
        replay.expect(row, anchored)
        assert left.ecn == row.ecn_out, where
        # Between them these tell the marker's word apart from RED's.
        marked = row.mark and row.ecn in (1, 2)
        assert left.ecn == (3 if marked or (row.red and row.ecn in (1, 2)) else row.ecn), where
        replay.check_known_state(where)
    replay.check_all_state()
    for job, marker in reference.markers.items():
        counted = JobCounters(
            **{field: replay.bench.counter(alias, job) for field, alias in JOB_COUNTERS.items()}
        )
        assert counted == marker.counters, f"{name}, counters of job {job}"


@pytest.mark.parametrize("name", VECTORS)
def test_counters_follow_from_the_rows(name: str) -> None:
    # The rule that the README gives to readers in other languages.
    reference = ReferenceJobs()
    counted: dict[int, JobCounters] = {}
    step_min: dict[int, tuple[int, int]] = {}
    for settings, changed, row in VECTORS[name].replay():
        reference.take(settings, changed)
        reference.packet(settings, row)
        if row.block is None:
            continue
        assert row.step is not None
        assert row.step_min is not None
        assert row.generation is not None
        c = counted.setdefault(row.job, JobCounters())
        ect = row.ecn in (1, 2)
        c.data += 1
        c.marks += row.mark and ect
        c.red_marks += row.red and ect
        generation, before = step_min.get(row.block, (0, 0))
        if generation != row.generation:
            before = row.step
        bits = int(settings.jobs[row.job]["step_bits"])
        moved = (row.step_min - before) % 2**bits
        c.advances += 0 < moved < 2 ** (bits - 1)
        c.corrections += moved > 2 ** (bits - 1)
        step_min[row.block] = row.generation, row.step_min
    assert counted == {
        job: marker.counters for job, marker in reference.markers.items() if marker.counters.data
    }
