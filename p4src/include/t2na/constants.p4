#ifndef RINGSTEP_T2NA_CONSTANTS_P4
#define RINGSTEP_T2NA_CONSTANTS_P4
const bit<32> SLACK = 7;
const port_t DROP_PORT = 511;
const port_t T2NA_CPU_PORT = 0;
const port_t T2NA_RECIRC_PORT = 6;
const port_t T2NA_LOCAL_PORT_MASK = 0x7f;
#ifndef QDEPTH_SHIFT
#define QDEPTH_SHIFT 3
#endif
#endif
