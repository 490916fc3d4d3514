// Generated from the Python package ringstep.protocol; do not edit.
// `make p4` writes this file anew, and a test fails when it differs.

#ifndef RINGSTEP_T2NA_CONSTANTS_P4
#define RINGSTEP_T2NA_CONSTANTS_P4

const port_t DROP_PORT = 511;
const port_t T2NA_CPU_PORT = 0;
const port_t T2NA_RECIRC_PORT = 6;
const port_t T2NA_LOCAL_PORT_MASK = 127;
const int<32> SLACK = 7;

// A queue's depth is counted in units of 2^QDEPTH_SHIFT cells of 176 bytes: 8 cells hold a packet
// of 1 KB, for which q_gate, q_min and q_max are made. Compile with another shift for others.
#ifndef QDEPTH_SHIFT
#define QDEPTH_SHIFT 3
#endif

#endif  // RINGSTEP_T2NA_CONSTANTS_P4
