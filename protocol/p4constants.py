"""Generates ``p4src/include/constants.p4`` from the constants of this package.

So the numbers that P4 and Python share are typed once. ``python -m ringstep.protocol.p4constants``
prints the file.
"""

from __future__ import annotations

from ringstep.protocol import inband, limits, rocev2

_HEADER = """\
// Generated from the Python package ringstep.protocol; do not edit.
// `make p4` writes this file anew, and a test fails when it differs.

#ifndef RINGSTEP_CONSTANTS_P4
#define RINGSTEP_CONSTANTS_P4

"""
_FOOTER = "\n#endif  // RINGSTEP_CONSTANTS_P4\n"

_TYPEDEFS: tuple[tuple[str, int], ...] = (
    ("port_t", limits.PORT_BITS),
    ("job_t", limits.JOB_BITS),
    ("block_t", limits.BLOCK_BITS),
    ("generation_t", limits.GENERATION_BITS),
    ("step_t", limits.STEP_FIELD_BITS),
    ("psn_t", limits.PSN_BITS),
    ("clock_t", limits.CLOCK_BITS),
    ("qdepth_t", limits.QDEPTH_BITS),
    ("count_t", limits.COUNT_BITS),
    ("alpha_t", limits.ALPHA_BITS),
    ("k_t", limits.K_BITS),
    ("random_t", limits.RANDOM_BITS),
    ("path_t", limits.PATH_BITS),
    ("nexthop_t", limits.NEXTHOP_BITS),
)

_CONSTANTS: tuple[tuple[str, str, int], ...] = (
    ("port_t", "CPU_PORT", limits.CPU_PORT),
    ("job_t", "NO_JOB", limits.NO_JOB),
    ("bit<32>", "MAX_JOB_SLOTS", limits.MAX_JOBS + 1),
    ("bit<32>", "MAX_BLOCKS", limits.MAX_BLOCKS),
    ("bit<32>", "MAX_ANCHORS", (limits.MAX_JOBS + 1) * limits.ANCHORS_PER_JOB),
    ("random_t", "RANDOM_MAX", (1 << limits.RANDOM_BITS) - 1),
    ("bit<16>", "ETHERTYPE_IPV4", rocev2.ETHERTYPE_IPV4),
    ("bit<16>", "ETHERTYPE_IPV6", rocev2.ETHERTYPE_IPV6),
    ("bit<16>", "ETHERTYPE_VLAN", rocev2.ETHERTYPE_VLAN),
    ("bit<8>", "IPPROTO_UDP", rocev2.IPPROTO_UDP),
    ("bit<16>", "ROCE_UDP_PORT", limits.ROCE_UDP_PORT),
    ("bit<16>", "UDP_SPORT_BASE", limits.UDP_SPORT_BASE),
    ("bit<16>", "IPV4_BYTES", rocev2.IPV4_BYTES),
    (
        "bit<16>",
        "MIN_ROCE_UDP_BYTES",
        rocev2.UDP_BYTES + rocev2.BTH_BYTES + rocev2.ICRC_BYTES,
    ),
    ("bit<2>", "ECN_ECT1", rocev2.ECT1),
    ("bit<2>", "ECN_ECT0", rocev2.ECT0),
    ("bit<2>", "ECN_CE", rocev2.CE),
    ("bit<7>", "OP_PACKET", inband.OP_PACKET),
    ("bit<7>", "OP_READ_STATE", inband.OP_READ_STATE),
)


def render() -> str:
    """Return the text of ``constants.p4``."""
    typedefs = "".join(f"typedef bit<{bits}> {name};\n" for name, bits in _TYPEDEFS)
    constants = "".join(f"const {kind} {name} = {value};\n" for kind, name, value in _CONSTANTS)
    return f"{_HEADER}{typedefs}\n{constants}{_FOOTER}"


if __name__ == "__main__":
    print(render(), end="")
