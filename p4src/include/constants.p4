// Generated from the Python package ringstep.protocol; do not edit.
// `make p4` writes this file anew, and a test fails when it differs.

#ifndef RINGSTEP_CONSTANTS_P4
#define RINGSTEP_CONSTANTS_P4

typedef bit<9> port_t;
typedef bit<14> job_t;
typedef bit<16> block_t;
typedef bit<8> generation_t;
typedef bit<16> step_t;
typedef bit<24> psn_t;
typedef bit<48> clock_t;
typedef bit<19> qdepth_t;
typedef bit<32> count_t;
typedef bit<8> alpha_t;
typedef bit<17> k_t;
typedef bit<16> random_t;
typedef bit<16> path_t;
typedef bit<16> nexthop_t;
typedef bit<16> gap_t;

const port_t CPU_PORT = 510;
const job_t NO_JOB = 0;
const bit<32> MAX_JOB_SLOTS = 16384;
const bit<32> MAX_BLOCKS = 65536;
const bit<32> MAX_PORTS = 512;
const bit<32> MAX_ANCHORS = 65536;
const random_t RANDOM_MAX = 65535;
const bit<16> ETHERTYPE_IPV4 = 2048;
const bit<16> ETHERTYPE_IPV6 = 34525;
const bit<16> ETHERTYPE_VLAN = 33024;
const bit<8> IPPROTO_UDP = 17;
const bit<16> ROCE_UDP_PORT = 4791;
const bit<16> UDP_SPORT_BASE = 49152;
const bit<16> IPV4_BYTES = 20;
const bit<16> MIN_ROCE_UDP_BYTES = 24;
const bit<2> ECN_ECT1 = 1;
const bit<2> ECN_ECT0 = 2;
const bit<2> ECN_CE = 3;
const bit<7> OP_PACKET = 0;
const bit<7> OP_READ_STATE = 1;

#ifdef RINGSTEP_UEC
typedef bit<24> uec_job_t;

const bit<16> UEC_UDP_PORT = 4793;
const bit<16> MIN_UEC_UDP_BYTES = 32;
const bit<5> UEC_RUD_REQUEST = 2;
const bit<6> UEC_WRITE = 1;
const bit<6> UEC_SEND = 5;
const bit<6> UEC_TAGGED_SEND = 9;
const bit<2> UEC_SES_VERSION = 0;
#endif

#endif  // RINGSTEP_CONSTANTS_P4
