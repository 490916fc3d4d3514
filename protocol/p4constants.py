"""Generates ``p4src/include/constants.p4`` from the constants of this package.

So the numbers that P4 and Python share are typed once. ``python -m ringstep.protocol.p4constants``
prints the file, and with ``--t2na`` what the Tofino 2 program has besides
(``p4src/include/t2na/constants.p4``).
"""

from __future__ import annotations

import sys

from ringstep.protocol import inband, limits, rocev2, uec

_HEADER = """\
// Generated from the Python package ringstep.protocol; do not edit.
// `make p4` writes this file anew, and a test fails when it differs.

#ifndef RINGSTEP_CONSTANTS_P4
#define RINGSTEP_CONSTANTS_P4

"""
_UEC_HEADER = "\n#ifdef RINGSTEP_UEC\n"
_UEC_FOOTER = "#endif\n"
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
    ("gap_t", limits.MARK_GAP_BITS),
)

_CONSTANTS: tuple[tuple[str, str, int], ...] = (
    ("port_t", "CPU_PORT", limits.CPU_PORT),
    ("job_t", "NO_JOB", limits.NO_JOB),
    ("bit<32>", "MAX_JOB_SLOTS", limits.MAX_JOBS + 1),
    ("bit<32>", "MAX_BLOCKS", limits.MAX_BLOCKS),
    ("bit<32>", "MAX_PORTS", 1 << limits.PORT_BITS),
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

_UEC_TYPEDEFS: tuple[tuple[str, int], ...] = (("uec_job_t", uec.JOB_ID_BITS),)

_UEC_CONSTANTS: tuple[tuple[str, str, int], ...] = (
    ("bit<16>", "UEC_UDP_PORT", uec.UEC_UDP_PORT),
    ("bit<16>", "MIN_UEC_UDP_BYTES", rocev2.UDP_BYTES + uec.PDS_BYTES + uec.SES_BYTES),
    ("bit<5>", "UEC_RUD_REQUEST", uec.PdsType.RUD_REQUEST),
    ("bit<6>", "UEC_WRITE", uec.SesOpcode.WRITE),
    ("bit<6>", "UEC_SEND", uec.SesOpcode.SEND),
    ("bit<6>", "UEC_TAGGED_SEND", uec.SesOpcode.TAGGED_SEND),
    ("bit<2>", "UEC_SES_VERSION", uec.SES_VERSION),
)


def _declarations(
    typedefs: tuple[tuple[str, int], ...], constants: tuple[tuple[str, str, int], ...]
) -> str:
    types = "".join(f"typedef bit<{bits}> {name};\n" for name, bits in typedefs)
    values = "".join(f"const {kind} {name} = {value};\n" for kind, name, value in constants)
    return f"{types}\n{values}"


def render() -> str:
    """Return the text of ``constants.p4``."""
    uec_part = _UEC_HEADER + _declarations(_UEC_TYPEDEFS, _UEC_CONSTANTS) + _UEC_FOOTER
    return _HEADER + _declarations(_TYPEDEFS, _CONSTANTS) + uec_part + _FOOTER


_T2NA_HEADER = """\
// Generated from the Python package ringstep.protocol; do not edit.
// `make p4` writes this file anew, and a test fails when it differs.

#ifndef RINGSTEP_T2NA_CONSTANTS_P4
#define RINGSTEP_T2NA_CONSTANTS_P4
"""
_T2NA_FOOTER = """
// A queue's depth is counted in units of 2^QDEPTH_SHIFT cells of 176 bytes: 8 cells hold a packet
// of 1 KB, for which q_gate, q_min and q_max are made. Compile with another shift for others.
#ifndef QDEPTH_SHIFT
#define QDEPTH_SHIFT 3
#endif

#endif  // RINGSTEP_T2NA_CONSTANTS_P4
"""

_T2NA_CONSTANTS: tuple[tuple[str, str, int], ...] = (
    ("port_t", "DROP_PORT", limits.DROP_PORT),
    ("port_t", "T2NA_CPU_PORT", limits.T2NA_CPU_PORT),
    ("port_t", "T2NA_RECIRC_PORT", limits.T2NA_RECIRC_PORT),
    ("port_t", "T2NA_LOCAL_PORT_MASK", limits.T2NA_LOCAL_PORT_MASK),
    ("int<32>", "SLACK", limits.T2NA_SLACK_TICKS),
)


def render_t2na() -> str:
    """Return the text of ``t2na/constants.p4``."""
    return _T2NA_HEADER + _declarations((), _T2NA_CONSTANTS) + _T2NA_FOOTER


if __name__ == "__main__":
    print(render_t2na() if "--t2na" in sys.argv[1:] else render(), end="")
