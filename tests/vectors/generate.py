#!/usr/bin/env python3
"""Writes the marker's golden vectors from the scenarios below and the reference marker.

Usage: python tests/vectors/generate.py [--check]

With ``--check`` nothing is written; the exit status is 1 and the names are printed where a file
differs from what this script yields.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace

from marker_vectors import COLUMNS, FORMAT, INPUT_COLUMNS, MARKER_DIR, STATE_COLUMNS

from ringstep.protocol.marker import Marker, MarkerParams, ProgressMode, Scope
from ringstep.protocol.rocev2 import CE, ECT0, NOT_ECT, Opcode, is_data, is_last
from ringstep.protocol.tag import TagLayout

CLOCK_MASK = (1 << 48) - 1
PSN_MASK = (1 << 24) - 1
K_ONE = 1 << 16
QUARTER = K_ONE // 4
ALWAYS = 0
"""A random number that marks wherever a mark is possible."""
NEVER = K_ONE - 1
"""A random number that marks only where P = 1."""

BASE = MarkerParams(k=QUARTER, n_sample=4, n_warmup=2, t_win=100, q_gate=None)
"""A strong marker (k = 1/4) and a short warm-up, so that few packets show a lot."""


class Scenario:
    """Collects rows: every packet goes through the reference and is written down with its result.

    Time moves on by ``gap`` + qdepth per packet.
    """

    def __init__(self, name: str, description: str, red_above: int | None = None) -> None:
        self.name = name
        self.description = description
        self.red_above = red_above
        self.now = 1000
        self.gap = 3
        self.first = True
        self.lines: list[str | dict[str, str]] = []
        self.markers: dict[int, Marker] = {}
        self.tags: dict[int, int] = {}
        self.blocks: dict[tuple[int, int], int] = {}
        self.lottery = sum(name.encode()) & 0xFFFF

    def job(
        self,
        job: int = 1,
        params: MarkerParams = BASE,
        scope: Scope = Scope.SWITCH,
        ports: tuple[int, ...] = (1,),
        blocks: tuple[int, ...] | None = None,
        tag: int = 0,
    ) -> None:
        """Register a job on ``ports``; ``blocks`` numbers its blocks, by default from 16 * job."""
        self.markers[job] = Marker(params, scope)
        self.tags[job] = tag
        for index, port in enumerate(ports):
            offset = index if scope is Scope.PORT else 0
            self.blocks[job, port] = blocks[offset] if blocks else 16 * job + offset
            self.lines.append(f"block.{job}.{port} = {self.blocks[job, port]}")
        self.lines.append(f"job.{job}.scope = {scope}")
        self.lines.append(f"job.{job}.tag = {tag}")
        self.lines += _settings(job, {}, _as_text(params))

    def note(self, text: str) -> None:
        """Write a comment between the rows."""
        self.lines.append("")
        self.lines += [f"# {line}" for line in textwrap.wrap(text, 110)]

    def set(self, job: int = 1, **changes: object) -> None:
        """Change parameters of a running job."""
        marker = self.markers[job]
        before = _as_text(marker.params)
        marker.update(**changes)
        self.lines += _settings(job, before, _as_text(marker.params))

    def idle(self, us: int) -> None:
        """Let time pass."""
        self.now = (self.now + us) & CLOCK_MASK

    def at(self, now: int) -> None:
        """Set the clock: the next packet leaves at ``now``."""
        self.now = now
        self.first = True

    def draw(self) -> int:
        """Return the next number of a fixed pseudo-random sequence (Numerical Recipes' LCG)."""
        self.lottery = (self.lottery * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.lottery >> 16

    def pkt(
        self,
        opcode: Opcode,
        step: int,
        psn: int,
        job: int = 1,
        port: int = 1,
        ecn: int = ECT0,
        qdepth: int = 0,
        r: int | None = None,
        sport: int | None = None,
    ) -> bool:
        """Send one packet; return the marker's word. ``sport`` overrides the tag."""
        if not self.first:
            self.now = (self.now + self.gap) & CLOCK_MASK
        self.first = False
        r = self.draw() if r is None else r
        red = self.red_above is not None and qdepth > self.red_above
        marker = self.markers.get(job)
        if sport is None:
            layout = marker.params.layout if marker else TagLayout()
            sport = layout.sport(step, self.tags.get(job, 0))
        tagged = TagLayout.is_tagged(sport)
        row = {
            "now_us": str(self.now), "job": str(job), "port": str(port), "opcode": opcode.name,
            "sport": f"0x{sport:04X}", "step": str(step) if tagged else "-", "psn": str(psn),
            "ecn": str(ecn), "qdepth": str(qdepth), "red": str(int(red)), "r": str(r),
        }  # fmt: skip
        ect = ecn not in (NOT_ECT, CE)
        mark = False
        block = self.blocks.get((job, port))
        if marker is None or block is None or not tagged or not is_data(opcode):
            row["ecn_out"] = str(CE if ect and red else ecn)
        else:
            decision = marker.on_packet(
                self.now, step, psn, is_last(opcode), ect, r, qdepth, red, port
            )
            mark = decision.mark
            row["ecn_out"] = str(CE if decision.ce else ecn)
            row["progress"] = str(decision.progress)
            if marker.params.mode is ProgressMode.ANCHORED:
                row["base"] = str(marker.anchors[step % 4].base)
            row["block"] = str(block)
            state = marker.block(port).as_dict()
            row |= {name: str(state[name]) for name in STATE_COLUMNS}
        row["mark"] = str(int(mark))
        self.lines.append(row)
        # Those left behind leave one by one before the next row.
        self.now = (self.now + qdepth) & CLOCK_MASK
        return mark

    def message(
        self, step: int, packets: int, psn: int = 0, kind: str = "RC_WRITE", **common: object
    ) -> None:
        """Send a whole message: FIRST, MIDDLE ..., LAST (or ONLY)."""
        for opcode, offset in message(packets, kind):
            self.pkt(opcode, step, (psn + offset) & PSN_MASK, **common)  # type: ignore[arg-type]

    def text(self) -> str:
        """Return the file."""
        rows = [line for line in self.lines if isinstance(line, dict)]
        width = {
            column: max(len(column), *(len(row.get(column, "-")) for row in rows))
            for column in COLUMNS
        }

        def line_up(cells: dict[str, str]) -> str:
            words = [
                cells[column].ljust(width[column])
                if column == "opcode"
                else cells[column].rjust(width[column])
                for column in COLUMNS
            ]
            cut = len(INPUT_COLUMNS)
            return "  ".join(words[:cut]) + "    " + "  ".join(words[cut:])

        heading = "# " + line_up({column: column for column in COLUMNS})
        out = [f"# {line}".rstrip() for line in _wrapped(self.description)]
        out += [
            "#",
            "# Format: tests/vectors/README.md. Written by tests/vectors/generate.py; do not edit.",
            "",
            f"format = {FORMAT}",
            f"red_above = {'none' if self.red_above is None else self.red_above}",
        ]
        started = False
        for line in self.lines:
            if isinstance(line, dict):
                if not started:
                    out += ["", f"columns = {' '.join(COLUMNS)}", "", heading]
                    started = True
                out.append("  " + line_up({c: line.get(c, "-") for c in COLUMNS}))
            else:
                out.append(line)
        return "\n".join(line.rstrip() for line in out) + "\n"


def _wrapped(text: str) -> Iterator[str]:
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        yield from textwrap.wrap(" ".join(paragraph.split()), 110)


def _as_text(params: MarkerParams) -> dict[str, str]:
    return {
        "job_bits": str(params.layout.job_bits),
        "step_bits": str(params.layout.step_bits),
        "mode": str(params.mode),
        "packets_per_step": str(params.packets_per_step),
        "k": str(params.k),
        "tau_num": str(params.tau_num),
        "tau_den": str(params.tau_den),
        "t_win": str(params.t_win),
        "n_sample": str(params.n_sample),
        "n_warmup": str(params.n_warmup),
        "alpha_max": str(params.alpha_max),
        "q_gate": "none" if params.q_gate is None else str(params.q_gate),
        "enabled": str(int(params.enabled)),
        "generation": str(params.generation),
    }


def _settings(job: int, before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [
        f"job.{job}.{key} = {value}" for key, value in after.items() if before.get(key) != value
    ]


def message(packets: int, kind: str = "RC_WRITE") -> list[tuple[Opcode, int]]:
    """Return the (opcode, offset) of each packet of one message."""
    if packets == 1:
        return [(Opcode[f"{kind}_ONLY"], 0)]
    middle = [(Opcode[f"{kind}_MIDDLE"], i) for i in range(1, packets - 1)]
    return [
        (Opcode[f"{kind}_FIRST"], 0),
        *middle,
        (Opcode[f"{kind}_LAST"], packets - 1),
    ]


FIRST, MID, LAST = Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_MIDDLE, Opcode.RC_WRITE_LAST

SCENARIOS: list[Callable[[], Scenario]] = []


def scenario(make: Callable[[], Scenario]) -> Callable[[], Scenario]:
    """Register a scenario."""
    SCENARIOS.append(make)
    return make


def overlap(s: Scenario, lag: int, lead: int, count: int, **common: object) -> None:
    """Send ``count`` pairs of packets: one of step ``lag``, then one of ``lead``; PSNs from 0."""
    for psn in range(count):
        opcode = FIRST if psn == 0 else MID
        s.pkt(opcode, lag, psn, **common)  # type: ignore[arg-type]
        s.pkt(opcode, lead, psn, **common)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------
# How a ring moves
# ---------------------------------------------------------------------------------------------


@scenario
def in_step_ring() -> Scenario:
    s = Scenario(
        "in_step_ring",
        """A ring in step: two flows, three steps, nothing to correct but the ends of steps. The
        first flow's LAST moves step_min on, the second flow's last packet moves it back for the
        moment, its LAST moves it on for good. With r = 0 in every row anything markable would
        be marked: nothing is.""",
    )
    s.job()
    for step in range(3):
        s.note(f"step {step}")
        for opcode, psn in message(5):
            s.pkt(opcode, step, psn, r=ALWAYS)
            s.pkt(opcode, step, psn, r=ALWAYS)
    return s


@scenario
def late_start() -> Scenario:
    s = Scenario(
        "late_start",
        """The paper's two-flow experiment: flow B is in step 8 and has the link for itself when
        the laggard, flow A in step 7, starts late. A's first packet moves step_min back to 7.
        Once A is past the warm-up, B is marked, with a P = psn / (4 psn_rec) that falls as A
        comes nearer: r = 32768 marks as long as B is more than twice as far. A's LAST moves
        step_min to 8: B is in step again and no longer marked.""",
    )
    s.job(params=replace(BASE, t_win=10_000))
    s.note("B alone: a fresh block takes the first packet's step as step_min, so B is in step.")
    for psn in range(8):
        s.pkt(FIRST if psn == 0 else MID, 8, psn)
    s.note("A starts; B goes on, eight packets ahead.")
    for psn in range(12):
        s.pkt(FIRST if psn == 0 else (LAST if psn == 11 else MID), 7, psn)
        s.pkt(MID, 8, psn + 8, r=32_768)
    s.note("B's remainder is in step.")
    for psn in range(20, 24):
        s.pkt(LAST if psn == 23 else MID, 8, psn, r=ALWAYS)
    return s


@scenario
def snowball() -> Scenario:
    s = Scenario(
        "snowball",
        """Steps 3, 4, 5 and 6 overlap. Everything ahead of the smallest step is marked, however
        far. An outpacing step that ends moves step_min past everybody (optimistic
        advancement); the next straggler moves it back (lazy correction), and progress starts
        anew.""",
    )
    s.job(params=replace(BASE, t_win=1000))
    for psn in range(6):
        for step in (3, 4, 5, 6):
            s.pkt(FIRST if psn == 0 else MID, step, psn, r=9000)
    s.note("Step 5 ends before step 3: step_min jumps to 6 and comes back with the next straggler.")
    s.pkt(LAST, 5, 6, r=ALWAYS)
    s.pkt(MID, 6, 6, r=ALWAYS)
    s.pkt(MID, 4, 6, r=ALWAYS)
    s.pkt(MID, 3, 6, r=ALWAYS)
    s.pkt(MID, 6, 7, r=ALWAYS)
    s.note("Step 3 ends, then 4, 5 is over, then 6.")
    s.pkt(LAST, 3, 7)
    s.pkt(MID, 4, 7)
    s.pkt(MID, 6, 8, r=ALWAYS)
    s.pkt(LAST, 4, 8)
    s.pkt(MID, 6, 9, r=ALWAYS)
    s.pkt(LAST, 6, 10)
    return s


@scenario
def step_wrap() -> Scenario:
    s = Scenario(
        "step_wrap",
        """Steps count up and wrap at 2^14. Step 0 is ahead of 16383, so a flow in step 0 is
        marked while step 16383 goes on, and the LAST of 16383 makes step_min 0.""",
    )
    s.job()
    s.message(16382, 4)
    overlap(s, 16383, 0, 5, r=8000)
    s.pkt(LAST, 16383, 5)
    s.pkt(MID, 0, 5, r=ALWAYS)
    s.note("A straggler of 16383 moves step_min back over the wrap.")
    s.pkt(MID, 16383, 4)
    s.pkt(MID, 1, 0)
    s.pkt(LAST, 16383, 5)
    s.pkt(LAST, 0, 6)
    return s


@scenario
def half_the_steps_apart() -> Scenario:
    s = Scenario(
        "half_the_steps_apart",
        """Serial order is undefined for steps exactly half the space apart (8192 of 2^14):
        neither is ahead, so the packet is counted, is not outpacing, moves nothing and is not
        marked. One nearer is ahead; one farther counts as behind and moves step_min. A LAST that
        moves step_min by exactly half the space is neither an advance nor a correction.""",
    )
    s.job(params=replace(BASE, n_warmup=0))
    s.pkt(FIRST, 100, 0)
    s.pkt(MID, 100, 3)
    s.pkt(MID, 100 + 8191, 9, r=ALWAYS)
    s.pkt(MID, 100 + 8192, 9, r=ALWAYS)
    s.pkt(MID, 100 + 8193, 9, r=ALWAYS)
    s.pkt(MID, 100, 4, r=ALWAYS)
    s.pkt(LAST, 100, 5)
    s.pkt(LAST, 100 + 8192, 5)
    return s


@scenario
def smallest_step_space() -> Scenario:
    s = Scenario(
        "smallest_step_space",
        """S = 2, the smallest tag (J = 12): steps 0..3, order only over a distance of one. Step
        3 is followed by step 0; two apart is neither ahead nor behind.""",
    )
    s.job(params=replace(BASE, layout=TagLayout(12, 2), n_warmup=0), tag=0xABC)
    for step in (0, 1, 2, 3, 0):
        s.note(f"step {step}, overlapped by the next one and by the one after")
        s.pkt(FIRST, step, 0, r=ALWAYS)
        s.pkt(MID, step, 1, r=ALWAYS)
        s.pkt(MID, (step + 1) % 4, 1, r=ALWAYS)
        s.pkt(MID, (step + 2) % 4, 1, r=ALWAYS)
        s.pkt(LAST, step, 2, r=ALWAYS)
    return s


@scenario
def job_in_source_port() -> Scenario:
    s = Scenario(
        "job_in_source_port",
        """Two jobs whose tags share the source port with the step (J = 4, S = 10): the job bits
        must not leak into the step. Both run over the wrap at 1024.""",
    )
    params = replace(BASE, layout=TagLayout(4, 10), n_warmup=1)
    s.job(1, params, tag=0)
    s.job(2, params, tag=15)
    for job in (1, 2):
        overlap(s, 1023, 0, 4, job=job, r=9000)
    s.pkt(LAST, 1023, 4, job=2)
    s.pkt(MID, 0, 5, job=2, r=ALWAYS)
    s.pkt(MID, 0, 5, job=1, r=ALWAYS)
    return s


# ---------------------------------------------------------------------------------------------
# An unreliable network
# ---------------------------------------------------------------------------------------------


@scenario
def reordering_across_step_end() -> Scenario:
    s = Scenario(
        "reordering_across_step_end",
        """The LAST of step 4 overtakes two packets of its own step. step_min moves on to 5, each
        straggler moves it back to 4, and there it stays, because no second LAST comes: step 5
        is taken for outpacing until its own LAST. That is the price of one word of state, and
        it heals by itself.""",
    )
    s.job(params=replace(BASE, n_warmup=1))
    s.pkt(FIRST, 4, 0)
    s.pkt(MID, 4, 1)
    s.pkt(LAST, 4, 4)
    s.pkt(MID, 4, 2)
    s.pkt(MID, 4, 3)
    s.note("Step 5 is in fact alone, and is marked all the same.")
    for psn in range(3):
        s.pkt(FIRST if psn == 0 else MID, 5, psn, r=ALWAYS)
    s.pkt(LAST, 5, 3)
    s.note("Healed.")
    s.pkt(FIRST, 6, 0, r=ALWAYS)
    s.pkt(MID, 6, 1, r=ALWAYS)
    return s


@scenario
def duplicates_and_retransmissions() -> Scenario:
    s = Scenario(
        "duplicates_and_retransmissions",
        """Go-back-N: the flow of step 2 repeats PSN 3 to 6 after a loss, and single packets come
        twice. Assignments and a maximum, no sums: repeated packets leave step_min and psn_rec
        as they are. Only the window counts them, as traffic. A repeated LAST is idempotent
        too.""",
    )
    s.job(params=replace(BASE, t_win=10_000))
    for psn in range(7):
        s.pkt(FIRST if psn == 0 else MID, 2, psn)
    s.pkt(MID, 3, 5, r=ALWAYS)
    s.note("Go back to 3.")
    for psn in range(3, 7):
        s.pkt(MID, 2, psn)
    s.pkt(MID, 2, 6)
    s.pkt(MID, 3, 5, r=ALWAYS)
    s.note("LAST, twice; then a late copy of a packet of step 2 and the LAST once more.")
    s.pkt(LAST, 2, 7)
    s.pkt(LAST, 2, 7)
    s.pkt(MID, 3, 6, r=ALWAYS)
    s.pkt(MID, 2, 6)
    s.pkt(MID, 3, 7, r=ALWAYS)
    s.pkt(LAST, 2, 7)
    s.pkt(MID, 3, 8, r=ALWAYS)
    return s


@scenario
def lost_last() -> Scenario:
    s = Scenario(
        "lost_last",
        """The LAST of step 10 is lost, so step_min stays at 10 and step 11 is throttled: the
        fail-safe of the paper. psn_rec ages out with the window, after which nothing is
        marked. The retransmitted LAST moves step_min on.""",
    )
    s.job()
    for psn in range(5):
        s.pkt(FIRST if psn == 0 else MID, 10, psn)
    s.note("LAST (PSN 5) lost; step 11 begins.")
    for psn in range(6):
        s.pkt(FIRST if psn == 0 else MID, 11, psn, r=11_000)
    s.note("A new window: psn_rec is 0, step 11 goes unmarked.")
    s.idle(100)
    s.pkt(MID, 11, 6, r=ALWAYS)
    s.pkt(MID, 11, 7, r=ALWAYS)
    s.note("The retransmission.")
    s.pkt(LAST, 10, 5)
    s.pkt(MID, 11, 8, r=ALWAYS)
    s.note("A lost LAST that is never sent again heals with the next step's.")
    s.pkt(MID, 12, 0, r=ALWAYS)
    s.pkt(LAST, 11, 9)
    s.pkt(MID, 12, 1, r=ALWAYS)
    return s


@scenario
def psn_wrap_per_step() -> Scenario:
    s = Scenario(
        "psn_wrap_per_step",
        """Mode per_step takes the PSN as it is. A QP whose PSN is not fresh and wraps within a
        step breaks that contract: psn_rec stays at the high side and P of a small PSN is 0.
        The window heals it.""",
    )
    s.job(params=replace(BASE, n_warmup=0))
    s.pkt(MID, 1, 0xFFFFFE)
    s.pkt(MID, 1, 0xFFFFFF)
    s.pkt(MID, 2, 0xFFFFFF, r=QUARTER - 1)
    s.pkt(MID, 2, 0xFFFFFF, r=QUARTER)
    s.pkt(MID, 1, 0)
    s.pkt(MID, 1, 1)
    s.pkt(MID, 2, 1, r=ALWAYS)
    s.pkt(MID, 2, 0, r=ALWAYS)
    s.idle(100)
    s.pkt(MID, 1, 2)
    s.pkt(MID, 2, 3, r=ALWAYS)
    return s


# ---------------------------------------------------------------------------------------------
# Messages and progress
# ---------------------------------------------------------------------------------------------


@scenario
def several_messages_per_step() -> Scenario:
    s = Scenario(
        "several_messages_per_step",
        """A step of three messages of four packets, packets_per_step = 12: only the LAST at
        progress >= 11 ends the step. The other LASTs count as ordinary packets.""",
    )
    s.job(params=replace(BASE, packets_per_step=12))
    for slice_ in range(3):
        s.note(f"message {slice_ + 1} of 3; step 1 runs beside it")
        s.message(0, 4, psn=4 * slice_)
        s.pkt(MID, 1, 3 * slice_ + 2, r=7000)
    s.note("Step 0 is over: step 1 is in step. An early LAST of step 1 ends nothing.")
    s.pkt(LAST, 1, 10, r=ALWAYS)
    s.pkt(LAST, 1, 11, r=ALWAYS)
    s.note("A LAST beyond the last packet (a retransmission renumbered) ends the step as well.")
    s.pkt(LAST, 2, 12)
    return s


@scenario
def several_messages_anchored() -> Scenario:
    s = Scenario(
        "several_messages_anchored",
        """packets_per_step = 6 on a persistent QP: progress, not the PSN, tells the last LAST
        from the others. PSNs run on over three steps and over the wrap at 2^24.""",
    )
    s.job(params=replace(BASE, packets_per_step=6, mode=ProgressMode.ANCHORED, n_warmup=1))
    psn = PSN_MASK - 7
    for step in range(3):
        s.note(f"step {step}: two messages of three packets")
        for _ in range(2):
            s.message(step, 3, psn=psn)
            psn = (psn + 3) & PSN_MASK
    return s


@scenario
def anchored_several_qps() -> Scenario:
    s = Scenario(
        "anchored_several_qps",
        """Persistent QPs: three flows of one job start at the same PSN and carry the same number
        of packets per step. One anchor serves them all: the first packet seen of a step
        writes its base, whoever sent it.""",
    )
    s.job(params=replace(BASE, mode=ProgressMode.ANCHORED, n_warmup=1, t_win=1000), ports=(1, 2, 3))
    start = 7_000_000
    for step in range(2):
        s.note(f"step {step}, three flows")
        for opcode, offset in message(4):
            for port in (1, 2, 3):
                s.pkt(opcode, step, start + 4 * step + offset, port=port)
    s.note("The flow on port 3 lags behind in step 2, the one on port 1 is in step 3.")
    for offset in range(3):
        s.pkt(FIRST if offset == 0 else MID, 2, start + 8 + offset, port=3)
        s.pkt(FIRST if offset == 0 else MID, 3, start + 12 + offset, port=1, r=9000)
    s.pkt(LAST, 2, start + 11, port=3)
    s.pkt(LAST, 3, start + 15, port=1)
    s.note("Step 4 takes the anchor of step 0.")
    s.message(4, 4, psn=start + 16, port=2)
    return s


@scenario
def anchored_psn_wrap() -> Scenario:
    s = Scenario(
        "anchored_psn_wrap",
        """Anchored progress over the wrap of the PSN at 2^24: progress goes on counting.""",
    )
    s.job(params=replace(BASE, mode=ProgressMode.ANCHORED))
    for offset in range(6):
        opcode = FIRST if offset == 0 else MID
        s.pkt(opcode, 5, (0xFFFFFD + offset) & PSN_MASK)
        s.pkt(opcode, 6, (0xFFFFFE + offset) & PSN_MASK, r=10_000)
    s.pkt(LAST, 5, 3)
    s.pkt(LAST, 6, 4)
    return s


@scenario
def anchored_first_reordered() -> Scenario:
    s = Scenario(
        "anchored_first_reordered",
        """The first packets of a step arrive out of order: the anchor is set two packets too
        high. The ones before it count as progress 0 (negative in serial order), the others
        two too few. The next step is right again.""",
    )
    s.job(params=replace(BASE, mode=ProgressMode.ANCHORED, n_warmup=1))
    s.pkt(MID, 1, 502)
    s.pkt(FIRST, 1, 500)
    s.pkt(MID, 1, 501)
    s.pkt(MID, 1, 503)
    s.pkt(MID, 1, 504)
    s.pkt(FIRST, 2, 506, r=ALWAYS)
    s.pkt(MID, 2, 507, r=ALWAYS)
    s.pkt(LAST, 1, 505)
    s.note("Half the PSN space behind the anchor is still negative, just under half ahead is not.")
    s.pkt(MID, 2, (506 + 0x7FFFFF) & PSN_MASK)
    s.pkt(MID, 2, (506 + 0x800000) & PSN_MASK)
    s.pkt(MID, 2, 505)
    return s


@scenario
def anchored_lost_anchor() -> Scenario:
    s = Scenario(
        "anchored_lost_anchor",
        """The first packet of step 3 never reaches this switch, so progress counts from the
        second; with packets_per_step = 4 the LAST at progress 2 does not end the step. The
        retransmitted first packet comes after that, with progress 0; the LAST repeated by
        go-back-N still does not end the step. It ends with step 4, which has an anchor of its
        own: one step spoilt.""",
    )
    s.job(params=replace(BASE, mode=ProgressMode.ANCHORED, packets_per_step=4, n_warmup=0))
    s.message(2, 4, psn=100)
    s.note("PSN 104 lost.")
    for opcode, offset in message(4)[1:]:
        s.pkt(opcode, 3, 104 + offset)
    s.note("Go back to 104.")
    s.message(3, 4, psn=104)
    s.message(4, 4, psn=108, r=ALWAYS)
    s.pkt(FIRST, 5, 112, r=ALWAYS)
    s.pkt(MID, 5, 113, r=ALWAYS)
    return s


@scenario
def anchored_straggler_takes_slot() -> Scenario:
    s = Scenario(
        "anchored_straggler_takes_slot",
        """Four anchors, indexed by step mod 4. A straggler of step 2 takes the anchor of step 6,
        and the next packet of step 6 takes it back with a base in mid-step. Step 5, in
        another slot, is not touched.""",
    )
    s.job(params=replace(BASE, mode=ProgressMode.ANCHORED, n_warmup=0))
    for offset in range(3):
        s.pkt(FIRST if offset == 0 else MID, 5, 40 + offset)
        s.pkt(FIRST if offset == 0 else MID, 6, 50 + offset, r=ALWAYS)
    s.pkt(MID, 2, 19)
    s.pkt(MID, 6, 53, r=ALWAYS)
    s.pkt(MID, 5, 43, r=ALWAYS)
    s.pkt(MID, 6, 54, r=ALWAYS)
    return s


# ---------------------------------------------------------------------------------------------
# alpha and the window
# ---------------------------------------------------------------------------------------------


def window(s: Scenario, in_step: int, outpacing: int, lag: int = 0, **common: object) -> None:
    """Fill a window: packets of step ``lag`` at PSN 10, then of the next step at PSN 12."""
    for _ in range(in_step):
        s.pkt(MID, lag, 10, **common)  # type: ignore[arg-type]
    for _ in range(outpacing):
        s.pkt(MID, lag + 1, 12, **common)  # type: ignore[arg-type]


@scenario
def alpha_rises_and_decays() -> Scenario:
    s = Scenario(
        "alpha_rises_and_decays",
        """tau = 1/4: a window in which at least a quarter of the packets were outpacing raises
        alpha by 1, any other lowers it, never below 1. Evaluated at the first packet at or
        after t_win. 2 of 8 is exactly a quarter and raises; 1 of 8 lowers.""",
    )
    s.job()
    for in_step, outpacing in ((6, 2), (4, 4), (6, 2), (7, 1), (8, 0), (7, 1), (8, 0), (6, 2)):
        s.note(f"a window with {outpacing} of {in_step + outpacing} packets outpacing")
        window(s, in_step, outpacing, r=20_000)
        s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def alpha_max_reached() -> Scenario:
    s = Scenario(
        "alpha_max_reached",
        """alpha_max = 3: alpha rises 1, 2, 3 and stays.""",
    )
    s.job(params=replace(BASE, alpha_max=3))
    for _ in range(5):
        window(s, 3, 3, r=30_000)
        s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def alpha_max_lowered_while_running() -> Scenario:
    s = Scenario(
        "alpha_max_lowered_while_running",
        """alpha stands at 5 when alpha_max is lowered to 2. It is used as it stands until the
        next window that would raise it, which sets it to 2; a window that lowers it takes 1
        off. Raised again, it goes on from there.""",
    )
    s.job()
    for _ in range(4):
        window(s, 3, 3, r=30_000)
        s.idle(100)
    s.note("alpha_max 255 -> 2, within a window without outpacing packets: alpha stays at 5.")
    window(s, 1, 0, r=30_000)
    s.set(alpha_max=2)
    window(s, 5, 0, r=30_000)
    s.note("5 -> 4. alpha = 4 is in use.")
    s.idle(100)
    window(s, 3, 3, r=30_000)
    s.idle(100)
    s.note("That window would raise: 4 -> 2. So does this one: 2.")
    window(s, 3, 3, r=30_000)
    s.idle(100)
    s.note("alpha_max 2 -> 255: on from there.")
    window(s, 3, 3, r=30_000)
    s.set(alpha_max=255)
    s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def alpha_saturates() -> Scenario:
    s = Scenario(
        "alpha_saturates",
        """t_win = 1 µs, n_sample = 0: every packet closes a window of one packet. A long row of
        outpacing packets takes alpha to 255, the most that 8 bits hold, and not beyond;
        packets in step bring it down again. Nothing is marked, because psn_rec is cleared
        with every window.""",
    )
    s.job(params=replace(BASE, t_win=1, n_sample=0, n_warmup=0))
    s.pkt(MID, 0, 1, r=ALWAYS)
    for _ in range(258):
        s.pkt(MID, 1, 2, r=ALWAYS)
    for _ in range(3):
        s.pkt(MID, 0, 1, r=ALWAYS)
    return s


@scenario
def sample_guard() -> Scenario:
    s = Scenario(
        "sample_guard",
        """n_sample = 5: a window of five packets is too small to move alpha up or down, one of
        six is enough. The counters are cleared either way.""",
    )
    s.job(params=replace(BASE, n_sample=5))
    s.note("five packets, all but one outpacing")
    window(s, 1, 4)
    s.idle(100)
    s.note("six packets")
    window(s, 1, 5)
    s.idle(100)
    s.note("five packets in step do not lower it")
    window(s, 5, 0)
    s.idle(100)
    s.note("six do")
    window(s, 6, 0)
    s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def warm_up() -> Scenario:
    s = Scenario(
        "warm_up",
        """n_warmup = 4: no mark while psn_rec <= 4, whatever the random number; from 5 on,
        marks. A new window clears psn_rec, and the warm-up is over again with the next packet
        of the laggard beyond 4.""",
    )
    s.job(params=replace(BASE, n_warmup=4))
    overlap(s, 0, 1, 8, r=ALWAYS)
    s.note("a new window")
    s.idle(100)
    s.pkt(MID, 1, 8, r=ALWAYS)
    s.pkt(MID, 0, 8)
    s.pkt(MID, 1, 9, r=ALWAYS)
    s.note("a new step")
    s.pkt(LAST, 0, 9)
    s.pkt(MID, 2, 3, r=ALWAYS)
    s.pkt(MID, 1, 4)
    s.pkt(MID, 2, 4, r=ALWAYS)
    s.pkt(MID, 1, 5)
    s.pkt(MID, 2, 5, r=ALWAYS)
    return s


@scenario
def idle_windows() -> Scenario:
    s = Scenario(
        "idle_windows",
        """Windows are evaluated at packets. A pause of fifty windows is one evaluation of the
        counters from before it, not fifty; the new window starts at the packet, not on a
        grid. One µs short of t_win is not yet a new window.""",
    )
    s.job()
    window(s, 3, 3)
    s.idle(5000)
    s.note("one step up for the busy window, nothing for the forty-nine idle ones")
    s.pkt(MID, 0, 10)
    began = s.now
    s.idle(0)
    s.at(began + 99)
    s.pkt(MID, 1, 12)
    s.at(began + 100)
    s.note("t_win exactly: a new window (of two packets: no change)")
    s.pkt(MID, 0, 11)
    s.idle(5000)
    s.pkt(MID, 1, 13, r=ALWAYS)
    return s


@scenario
def clock_wrap() -> Scenario:
    s = Scenario(
        "clock_wrap",
        """The data plane's clock has 48 bits of µs and wraps. A window that spans the wrap is as
        long as any other.""",
    )
    s.job(params=replace(BASE, n_warmup=1))
    s.at((1 << 48) - 40)
    window(s, 4, 4, r=9000)
    s.at(30)
    s.note("70 µs into the window")
    s.pkt(MID, 1, 13, r=9000)
    s.at(60)
    s.note("100 µs")
    s.pkt(MID, 0, 11)
    s.pkt(MID, 1, 14, r=9000)
    return s


# ---------------------------------------------------------------------------------------------
# Who is marked
# ---------------------------------------------------------------------------------------------


@scenario
def exact_threshold() -> Scenario:
    s = Scenario(
        "exact_threshold",
        """P = k * alpha * psn / psn_rec, in integers: mark where r * psn_rec < K * alpha * psn.
        With K = 16384, alpha = 1, psn_rec = 8: at psn 9 the bound is r < 18432, at psn 3 r <
        6144, at psn 32 P is 1 and every r marks. psn 0 never marks. psn_rec = 7 does not
        divide: psn 5 gives r <= 11702.""",
    )
    s.job(params=replace(BASE, t_win=10_000))
    s.pkt(MID, 0, 8)
    for psn, bound in ((9, 18_432), (3, 6144), (1, 2048)):
        s.pkt(MID, 1, psn, r=bound - 1)
        s.pkt(MID, 1, psn, r=bound)
    s.pkt(MID, 1, 32, r=NEVER)
    s.pkt(MID, 1, 31, r=63_487)
    s.pkt(MID, 1, 31, r=63_488)
    s.pkt(MID, 1, 0, r=ALWAYS)
    s.note("psn_rec = 7")
    s.pkt(LAST, 0, 9)
    s.pkt(MID, 1, 7)
    s.pkt(MID, 2, 5, r=11_702)
    s.pkt(MID, 2, 5, r=11_703)
    return s


@scenario
def not_ect() -> Scenario:
    s = Scenario(
        "not_ect",
        """The marker's word does not depend on the ECN field, what becomes of it does: ECT(0)
        and ECT(1) leave as CE, not-ECT stays not-ECT, CE stays CE. All are followed.""",
        red_above=3,
    )
    s.job()
    for psn in range(4):
        s.pkt(FIRST if psn == 0 else MID, 0, psn)
    for psn, ecn in enumerate((0, 1, 2, 3)):
        s.pkt(MID, 1, psn + 1, ecn=ecn, r=ALWAYS)
    s.note("RED asks for a mark: the same rule, and it does not matter where in the ring it is.")
    for ecn in (0, 1, 2, 3):
        s.pkt(MID, 0, 4, ecn=ecn, qdepth=4, r=ALWAYS)
    return s


@scenario
def red_or_marker() -> Scenario:
    s = Scenario(
        "red_or_marker",
        """A packet leaves CE-marked where either RED or the marker says so. RED acts on packets
        that are in step, untagged or not followed at all, too, and does not touch the
        marker's state.""",
        red_above=5,
    )
    s.job()
    for psn in range(4):
        s.pkt(FIRST if psn == 0 else MID, 0, psn)
    s.note("neither, marker, RED, both")
    s.pkt(MID, 1, 4, qdepth=5, r=NEVER)
    s.pkt(MID, 1, 4, qdepth=5, r=ALWAYS)
    s.pkt(MID, 1, 4, qdepth=6, r=NEVER)
    s.pkt(MID, 1, 4, qdepth=6, r=ALWAYS)
    s.note("in step; untagged; of no job; an ACK without ECT and one with")
    s.pkt(MID, 0, 4, qdepth=6)
    s.pkt(MID, 0, 5, qdepth=6, sport=0x8000)
    s.pkt(MID, 1, 5, qdepth=6, job=0)
    s.pkt(Opcode.RC_ACK, 1, 5, qdepth=6, ecn=NOT_ECT)
    s.pkt(Opcode.RC_ACK, 1, 5, qdepth=6)
    s.pkt(MID, 0, 5, qdepth=5)
    return s


@scenario
def control_packets_untouched() -> Scenario:
    s = Scenario(
        "control_packets_untouched",
        """ACK, CNP, READ requests and READ responses of a registered job, with a tagged source
        port and outpacing steps: they are neither followed nor marked, and change nothing. A
        LAST in the name (READ_RESPONSE_LAST) does not end a step.""",
    )
    s.job()
    for psn in range(4):
        s.pkt(FIRST if psn == 0 else MID, 0, psn)
    for opcode in (
        Opcode.RC_ACK, Opcode.CNP, Opcode.RC_READ_REQUEST, Opcode.RC_READ_RESPONSE_FIRST,
        Opcode.RC_READ_RESPONSE_MIDDLE, Opcode.RC_READ_RESPONSE_LAST,
        Opcode.RC_READ_RESPONSE_ONLY,
    ):  # fmt: skip
        s.pkt(opcode, 0, 9, r=ALWAYS)
        s.pkt(opcode, 1, 9, r=ALWAYS)
    s.pkt(MID, 1, 4, r=ALWAYS)
    s.pkt(MID, 0, 4)
    return s


@scenario
def untagged_and_unregistered() -> Scenario:
    s = Scenario(
        "untagged_and_unregistered",
        """A registered job's packets with a source port below 0xC000, tagged packets of no job,
        and packets of the job on a port without a block: routed, never followed. 0xBFFF is
        the last untagged port.""",
    )
    s.job(ports=(1, 2))
    for psn in range(4):
        s.pkt(FIRST if psn == 0 else MID, 0, psn)
    s.pkt(MID, 1, 4, r=ALWAYS, sport=0xBFFF)
    s.pkt(MID, 1, 4, r=ALWAYS, sport=4791)
    s.pkt(LAST, 0, 4, r=ALWAYS, sport=0x4000)
    s.pkt(MID, 1, 4, r=ALWAYS, job=0)
    s.pkt(LAST, 0, 4, r=ALWAYS, job=0)
    s.pkt(MID, 1, 4, r=ALWAYS, port=3)
    s.pkt(LAST, 0, 4, r=ALWAYS, port=3)
    s.note("the same, followed")
    s.pkt(MID, 1, 4, r=ALWAYS)
    s.pkt(LAST, 0, 4, port=2)
    return s


@scenario
def send_opcodes() -> Scenario:
    s = Scenario(
        "send_opcodes",
        """SEND is followed like WRITE: FIRST and MIDDLE are progress, LAST and ONLY, with
        immediate or without, end a step.""",
    )
    s.job(params=replace(BASE, n_warmup=0))
    _every_last(s, "RC_SEND")
    return s


@scenario
def write_opcodes() -> Scenario:
    s = Scenario(
        "write_opcodes",
        """Every opcode of RC WRITE: FIRST and MIDDLE are progress, LAST and ONLY, with immediate
        or without, end a step.""",
    )
    s.job(params=replace(BASE, n_warmup=0))
    _every_last(s, "RC_WRITE")
    return s


@scenario
def uc_opcodes() -> Scenario:
    s = Scenario(
        "uc_opcodes",
        """Unreliable connections are followed like reliable ones.""",
    )
    s.job(params=replace(BASE, n_warmup=0))
    _every_last(s, "UC_WRITE")
    _every_last(s, "UC_SEND", step=4)
    return s


def _every_last(s: Scenario, kind: str, step: int = 0) -> None:
    for end in ("LAST", "LAST_IMM", "ONLY", "ONLY_IMM"):
        s.pkt(Opcode[f"{kind}_FIRST"], step, 0)
        s.pkt(Opcode[f"{kind}_MIDDLE"], step, 1)
        s.pkt(Opcode[f"{kind}_MIDDLE"], step + 1, 1, r=ALWAYS)
        s.pkt(Opcode[f"{kind}_{end}"], step, 2)
        s.pkt(Opcode[f"{kind}_MIDDLE"], step + 1, 2, r=ALWAYS)
        step += 1


@scenario
def queue_gate() -> Scenario:
    s = Scenario(
        "queue_gate",
        """q_gate = 3: an outpacing packet is marked only where more than three packets remain in
        its queue. A gate of 0 still wants one packet; with the gate off an empty queue marks
        too.""",
    )
    s.job(params=replace(BASE, q_gate=3))
    for psn in range(4):
        s.pkt(FIRST if psn == 0 else MID, 0, psn)
    for depth in (0, 3, 4, 9):
        s.pkt(MID, 1, 4, qdepth=depth, r=ALWAYS)
    s.set(q_gate=0)
    for depth in (0, 1):
        s.pkt(MID, 1, 4, qdepth=depth, r=ALWAYS)
    s.set(q_gate=None)
    s.pkt(MID, 1, 4, qdepth=0, r=ALWAYS)
    return s


# ---------------------------------------------------------------------------------------------
# Jobs, ports, blocks
# ---------------------------------------------------------------------------------------------


@scenario
def two_jobs_interleaved() -> Scenario:
    s = Scenario(
        "two_jobs_interleaved",
        """Two jobs share a port and differ in everything: steps, PSNs, parameters, mode. Each
        goes its own way; the late start within job 1 never shows in job 16383, the highest
        Job_ID.""",
    )
    s.job(1, replace(BASE, t_win=1000))
    s.job(
        16383,
        replace(BASE, k=K_ONE, mode=ProgressMode.ANCHORED, n_warmup=0, t_win=40, generation=7),
        blocks=(65535,),
    )
    for psn in range(7):
        s.pkt(FIRST if psn == 0 else MID, 9, psn)
        s.pkt(FIRST if psn == 0 else MID, 200, 9000 + psn, job=16383)
        s.pkt(MID, 10, psn + 4, r=9000)
        s.pkt(MID, 201, 9007 + psn, job=16383, r=60_000)
    s.pkt(LAST, 9, 7)
    s.pkt(MID, 201, 9014, job=16383)
    s.pkt(LAST, 200, 9007, job=16383)
    s.pkt(MID, 10, 11, r=ALWAYS)
    return s


def _ports_traffic(s: Scenario) -> None:
    s.note("Port 1 carries the laggard in step 0; port 2 carries step 1 alone; port 3 both.")
    for psn in range(5):
        opcode = FIRST if psn == 0 else MID
        s.pkt(opcode, 0, psn, port=1)
        s.pkt(opcode, 1, psn + 1, port=2, r=ALWAYS)
        s.pkt(opcode, 0, psn, port=3)
        s.pkt(opcode, 1, psn + 1, port=3, r=ALWAYS)
    s.note("The step ends on port 1.")
    s.pkt(LAST, 0, 5, port=1)
    s.pkt(MID, 1, 6, port=2, r=ALWAYS)
    s.pkt(MID, 1, 6, port=3, r=ALWAYS)


@scenario
def scope_switch() -> Scenario:
    s = Scenario(
        "scope_switch",
        """scope = switch, the paper's marker: one block for all ports of the job. The laggard on
        port 1 has step 1 marked on port 2, where it cannot help him, and on port 3. Compare
        scope_port, the same traffic.""",
    )
    s.job(scope=Scope.SWITCH, ports=(1, 2, 3))
    _ports_traffic(s)
    return s


@scenario
def scope_port() -> Scenario:
    s = Scenario(
        "scope_port",
        """scope = port: a block per egress port. Only port 3, where the laggard and the
        outpacing flow meet, is marked; the end of the step on port 1 says nothing about port
        3. Compare scope_switch, the same traffic.""",
    )
    s.job(scope=Scope.PORT, ports=(1, 2, 3))
    _ports_traffic(s)
    return s


@scenario
def scope_port_shares_anchors() -> Scenario:
    s = Scenario(
        "scope_port_shares_anchors",
        """Blocks are per port, anchors per job: the flow that starts a step on port 1 sets the
        anchor for the flow on port 2.""",
    )
    s.job(
        params=replace(BASE, mode=ProgressMode.ANCHORED, n_warmup=0),
        scope=Scope.PORT,
        ports=(1, 2),
    )
    s.pkt(FIRST, 0, 600, port=1)
    s.pkt(MID, 0, 602, port=2)
    s.pkt(FIRST, 1, 610, port=1, r=ALWAYS)
    s.pkt(MID, 1, 612, port=2, r=ALWAYS)
    s.pkt(MID, 0, 603, port=2)
    s.pkt(MID, 1, 613, port=2, r=ALWAYS)
    return s


# ---------------------------------------------------------------------------------------------
# Parameters
# ---------------------------------------------------------------------------------------------


@scenario
def generation_change() -> Scenario:
    s = Scenario(
        "generation_change",
        """A new generation in the table clears a block at its next packet: that packet's step
        becomes step_min even where it is behind or far ahead of the old one, alpha is 1, the
        window starts at the packet. Anchors of the old generation are void, too. The other
        port's block keeps its old state until a packet comes by.""",
    )
    s.job(
        params=replace(BASE, mode=ProgressMode.ANCHORED, n_warmup=1),
        scope=Scope.PORT,
        ports=(1, 2),
    )
    for port in (1, 2):
        for offset in range(3):
            s.pkt(FIRST if offset == 0 else MID, 50, 300 + offset, port=port)
            s.pkt(FIRST if offset == 0 else MID, 51, 310 + offset, port=port, r=ALWAYS)
    s.idle(100)
    s.pkt(MID, 50, 304, port=1)
    s.note("generation 1 -> 2; the first packet is outpacing no more")
    s.set(generation=2)
    s.pkt(MID, 51, 313, port=1, r=ALWAYS)
    s.pkt(MID, 51, 314, port=1, r=ALWAYS)
    s.pkt(MID, 52, 330, port=1)
    s.pkt(MID, 51, 316, port=1)
    s.pkt(MID, 52, 331, port=1, r=ALWAYS)
    s.note("port 2 follows at its own first packet: a LAST, which starts the block one further")
    s.pkt(LAST, 51, 317, port=2)
    s.note("generation 255, the highest, far away")
    s.set(generation=255)
    s.pkt(FIRST, 9000, 5, port=1)
    s.pkt(FIRST, 9000, 5, port=2)
    return s


@scenario
def paused_but_followed() -> Scenario:
    s = Scenario(
        "paused_but_followed",
        """enabled = 0 pauses marking and nothing else: step_min, psn_rec, the counters and alpha
        go on, so marking resumes with the right state.""",
    )
    s.job(params=replace(BASE, n_warmup=1))
    window(s, 3, 3, r=ALWAYS)
    s.set(enabled=False)
    s.idle(100)
    window(s, 3, 3, r=ALWAYS)
    s.idle(100)
    window(s, 2, 2, r=ALWAYS)
    s.set(enabled=True)
    s.pkt(MID, 1, 13, r=ALWAYS)
    return s


@scenario
def parameters_change_while_running() -> Scenario:
    s = Scenario(
        "parameters_change_while_running",
        """k, n_warmup, t_win and tau change under a running job without touching its state: each
        rule uses the value in force at the packet.""",
    )
    s.job()
    s.pkt(MID, 0, 8)
    s.pkt(MID, 1, 8, r=QUARTER - 1)
    s.note("k: 1/4 -> 1/8")
    s.set(k=QUARTER // 2)
    s.pkt(MID, 1, 8, r=QUARTER - 1)
    s.pkt(MID, 1, 8, r=QUARTER // 2 - 1)
    s.note("n_warmup: 2 -> 8, which psn_rec does not exceed")
    s.set(n_warmup=8)
    s.pkt(MID, 1, 8, r=ALWAYS)
    s.set(n_warmup=7)
    s.pkt(MID, 1, 8, r=ALWAYS)
    s.note("tau: 1/4 -> 7/8, which 5 of 6 does not reach; t_win shrinks below the window's age")
    s.set(tau_num=7, tau_den=8)
    s.set(t_win=10)
    s.pkt(MID, 0, 9)
    s.note("alpha was 1 already; tau 5/6 is reached exactly by 5 of 6")
    s.set(tau_num=5, tau_den=6, t_win=100)
    for _ in range(5):
        s.pkt(MID, 1, 9, r=NEVER)
    s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def k_zero() -> Scenario:
    s = Scenario("k_zero", """k = 0: followed, alpha moves, nothing is ever marked.""")
    s.job(params=replace(BASE, k=0, n_warmup=0))
    for _ in range(2):
        window(s, 3, 3, r=ALWAYS)
        s.idle(100)
    s.pkt(MID, 1, PSN_MASK, r=ALWAYS)
    return s


@scenario
def k_one() -> Scenario:
    s = Scenario(
        "k_one",
        """k = 1 (K = 65536, 17 bits): an outpacing flow that has come as far as the laggard is
        marked always, one at half his progress half the time.""",
    )
    s.job(params=replace(BASE, k=K_ONE))
    s.pkt(MID, 0, 10)
    s.pkt(MID, 1, 10, r=NEVER)
    s.pkt(MID, 1, 11, r=NEVER)
    s.pkt(MID, 1, 9, r=NEVER)
    s.pkt(MID, 1, 5, r=32_767)
    s.pkt(MID, 1, 5, r=32_768)
    s.pkt(MID, 1, 0, r=ALWAYS)
    return s


@scenario
def tau_zero_and_one() -> Scenario:
    s = Scenario(
        "tau_zero_and_one",
        """tau = 0/1: every window that counts raises alpha, even without an outpacing packet.
        tau = 1/1: only a window of nothing but outpacing packets does.""",
    )
    s.job(params=replace(BASE, tau_num=0, tau_den=1, n_warmup=0))
    for _ in range(2):
        window(s, 6, 0)
        s.idle(100)
    s.note("tau = 1/1; one packet in step is enough to lower")
    s.set(tau_num=1, tau_den=1)
    window(s, 1, 5, r=NEVER)
    s.idle(100)
    window(s, 0, 6, r=NEVER)
    s.idle(100)
    window(s, 0, 6, r=NEVER)
    s.idle(100)
    s.note("the finest fraction: tau = 254/255")
    s.set(tau_num=254, tau_den=255)
    window(s, 0, 6, r=NEVER)
    s.idle(100)
    window(s, 1, 6, r=NEVER)
    s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def shortest_window() -> Scenario:
    s = Scenario(
        "shortest_window",
        """t_win = 1 µs: every packet opens a window, so psn_rec holds only what this very packet
        brought and an outpacing packet finds it 0: nothing is marked.""",
    )
    s.job(params=replace(BASE, t_win=1, n_warmup=0, n_sample=0))
    s.gap = 1
    overlap(s, 0, 1, 4, r=ALWAYS)
    return s


@scenario
def alpha_max_one() -> Scenario:
    s = Scenario("alpha_max_one", """alpha_max = 1 holds alpha at 1 for good.""")
    s.job(params=replace(BASE, alpha_max=1))
    for _ in range(3):
        window(s, 3, 3, r=19_660)
        s.idle(100)
    s.pkt(MID, 0, 10)
    return s


@scenario
def widest_values() -> Scenario:
    s = Scenario(
        "widest_values",
        """Everything at its widest: psn and psn_rec 2^24 - 1, k = 1, r = 65535, alpha large, the
        highest step, n_warmup 2^24 - 2 and then 2^24 - 1 (which nothing exceeds), n_sample
        65535, packets_per_step 2^24 - 1. Products of 41 to 49 bits must not overflow.""",
    )
    s.job(params=replace(BASE, k=K_ONE, n_warmup=PSN_MASK - 1, packets_per_step=PSN_MASK))
    s.pkt(MID, 16382, PSN_MASK)
    s.pkt(MID, 16383, PSN_MASK, r=NEVER)
    s.pkt(MID, 16383, PSN_MASK - 1, r=NEVER)
    s.pkt(MID, 16383, PSN_MASK - 1, r=NEVER - 1)
    s.pkt(MID, 16383, 1, r=ALWAYS)
    s.pkt(MID, 16383, 1, r=1)
    s.note("alpha 2: a window with four of five outpacing")
    s.set(n_sample=1)
    s.idle(100)
    s.pkt(MID, 16382, PSN_MASK)
    s.pkt(MID, 16383, PSN_MASK // 2 + 1, r=NEVER)
    s.pkt(MID, 16383, PSN_MASK // 2 - 1, r=NEVER)
    s.note("a LAST one short of packets_per_step - 1, then at it")
    s.pkt(LAST, 16382, PSN_MASK - 2)
    s.pkt(LAST, 16382, PSN_MASK - 1)
    s.note("n_warmup 2^24 - 1")
    s.set(n_warmup=PSN_MASK, n_sample=65535)
    s.pkt(MID, 16383, PSN_MASK)
    s.pkt(MID, 0, PSN_MASK, r=ALWAYS)
    s.idle(100)
    s.pkt(MID, 16383, PSN_MASK)
    return s


@scenario
def profile_paper() -> Scenario:
    s = Scenario(
        "profile_paper",
        """The paper's defaults: k = 0.01, tau = 1/4, t_win = 100 µs, no gate. Two flows, one
        step apart, for several windows: alpha climbs while they overlap, so P at equal
        progress climbs from 1 % by 1 % per window.""",
    )
    params = MarkerParams(q_gate=None)
    s.job(params=params)
    for psn in range(60):
        s.pkt(FIRST if psn == 0 else MID, 0, psn)
        s.pkt(FIRST if psn == 0 else MID, 1, psn + 20, r=2000)
    s.pkt(LAST, 0, 60)
    s.pkt(MID, 1, 80, r=ALWAYS)
    return s


# ---------------------------------------------------------------------------------------------


def texts() -> dict[str, str]:
    """Return file name -> text for every scenario."""
    found: dict[str, str] = {}
    for make in SCENARIOS:
        made = make()
        if made.name != make.__name__:
            raise ValueError(f"scenario {make.__name__} calls itself {made.name}")
        found[f"{made.name}.txt"] = made.text()
    return found


def differing() -> list[str]:
    """Return the names of files that are missing, superfluous or not what texts() yields."""
    wanted = texts()
    there = {path.name: path.read_text(encoding="utf-8") for path in MARKER_DIR.glob("*.txt")}
    return sorted(n for n in wanted.keys() | there.keys() if wanted.get(n) != there.get(n))


def main() -> None:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    changed = differing()
    if not check:
        MARKER_DIR.mkdir(exist_ok=True)
        wanted = texts()
        for name in changed:
            path = MARKER_DIR / name
            if name in wanted:
                path.write_text(wanted[name], encoding="utf-8")
            else:
                path.unlink()
    for name in changed:
        print(f"marker/{name} {'differs' if check else 'written'}")
    raise SystemExit(1 if check and changed else 0)


if __name__ == "__main__":
    main()
