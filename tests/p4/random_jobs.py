"""Jobs with random parameters and a ring that mostly moves on, sometimes anything."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ringstep.protocol.marker import Marker, MarkerParams, ProgressMode, Scope
from ringstep.protocol.rocev2 import DATA_OPCODES, is_last
from ringstep.protocol.tag import TagLayout

PORTS = (1, 2, 3)


@dataclass
class Job:
    """One job on the switch, its reference, and where its traffic is."""

    number: int
    marker: Marker
    step: int
    psn: int

    def block(self, port: int) -> int:
        """Return the block of a port: jobs get four in a row."""
        return self.number % 100 * 4 + (port if self.marker.scope is Scope.PORT else 0)


def random_params(source: random.Random) -> MarkerParams:
    step_bits = source.choice([3, 5, 14])
    tau_den = source.choice([1, 4, 255])
    return MarkerParams(
        k=source.choice([0, 655, 20_000, 65536]),
        tau_num=source.randint(0, tau_den),
        tau_den=tau_den,
        t_win=source.choice([1, 30, 400]),
        n_sample=source.choice([0, 3, 10]),
        n_warmup=source.choice([0, 2, 5]),
        alpha_max=source.choice([1, 3, 255]),
        q_gate=source.choice([None, None, 0]),
        layout=TagLayout(14 - step_bits, step_bits),
        mode=source.choice(list(ProgressMode)),
        packets_per_step=source.choice([0, 0, 6]),
        enabled=source.random() < 0.9,
        generation=source.randint(1, 255),
    )


def next_packet(job: Job, source: random.Random) -> tuple[int, int, int]:
    """Return (opcode, step, psn): mostly a ring that moves on, sometimes anything."""
    steps = job.marker.params.layout.step_mask + 1
    if source.random() < 0.05:
        return source.choice(sorted(DATA_OPCODES)), source.randrange(steps), source.getrandbits(24)
    job.psn = (job.psn + 1) % (1 << 24)
    ahead = source.choice([-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3])
    step = (job.step + ahead) % steps
    psn = job.psn + source.randint(-3, 3)
    psn = max(psn, 0) if job.marker.params.mode is ProgressMode.PER_STEP else psn % (1 << 24)
    opcode = source.choice(sorted(DATA_OPCODES)) if source.random() < 0.1 else 0x07
    if is_last(opcode):
        job.step = (job.step + 1) % steps
        if job.marker.params.mode is ProgressMode.PER_STEP:
            job.psn = 0
    return opcode, step, psn
