"""Sizes and numbers that the P4 program and its users share.

``p4src/include/constants.p4`` is generated from this module by ``ringstep.protocol.p4constants``;
a test fails when the two differ.
"""

from __future__ import annotations

from typing import Final

PORT_BITS: Final = 9
"""Width of a port number on v1model."""
CPU_PORT: Final = 510
"""Port over which packet-out and packet-in travel."""
DROP_PORT: Final = 511
"""Egress port that means "drop" on v1model."""
T2NA_CPU_PORT: Final = 0
"""The PCIe port of Tofino 2, which the program puts for CPU_PORT."""
T2NA_RECIRC_PORT: Final = 6
"""Local number, within each pipe of Tofino 2, of the port over which state replies recirculate."""
T2NA_LOCAL_PORT_MASK: Final = 0x7F
"""Of a port number on Tofino 2 the bits below the pipe's."""
T2NA_TICK_NS: Final = 256
"""Unit of ``now`` and ``win_start`` on Tofino 2; both have 32 bits."""
T2NA_SLACK_TICKS: Final = 7
"""A packet stamped so much earlier than the one before it, by another parser, ends no window."""

JOB_BITS: Final = 14
MAX_JOBS: Final = (1 << JOB_BITS) - 1
"""Job_IDs are 1 .. MAX_JOBS; 0 says "no job"."""
NO_JOB: Final = 0
BLOCK_BITS: Final = 16
MAX_BLOCKS: Final = 1 << BLOCK_BITS
"""State blocks are 0 .. MAX_BLOCKS - 1."""
ANCHORS_PER_JOB: Final = 4
GENERATION_BITS: Final = 8
"""A live generation is 1 .. 255; 0 is what a register holds after a reset."""

PSN_BITS: Final = 24
STEP_BITS_MAX: Final = 14
STEP_FIELD_BITS: Final = 16
"""Width of the register that holds a step; the step itself has S <= 14 bits."""
CLOCK_BITS: Final = 48
"""Width of a data plane timestamp, in microseconds on v1model."""
QDEPTH_BITS: Final = 19
MARK_GAP_BITS: Final = 16
"""Width of the least time between marks on packets of jobs at a port, in microseconds."""
COUNT_BITS: Final = 32
ALPHA_BITS: Final = 8
K_FRACTION_BITS: Final = 16
"""k is handed to the data plane as K = round(k * 2**16)."""
K_BITS: Final = 17
RANDOM_BITS: Final = 16
"""Width of the uniform random number that decides a mark."""
PATH_BITS: Final = 16
NEXTHOP_BITS: Final = 16

UDP_SPORT_BASE: Final = 0xC000
"""Tagged packets have a UDP source port of 0xC000 .. 0xFFFF."""
ROCE_UDP_PORT: Final = 4791
