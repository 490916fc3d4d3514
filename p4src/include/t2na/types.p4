// Headers and metadata of the Tofino 2 program. What is on the wire is declared in headers.p4, but
// for the state reply, which is declared here in words that the pipeline can write.

#ifndef RINGSTEP_T2NA_TYPES_P4
#define RINGSTEP_T2NA_TYPES_P4

#include "../headers.p4"
#include "constants.p4"

// A number that wraps, with its most significant bit on top of 32: it wraps by itself, and "ahead"
// is the sign of a difference. A step lies in the upper S bits, a PSN in the upper 24.
typedef bit<32> serial_t;
// The same where a stateful ALU takes differences: it compares a difference of signed numbers with
// 0 by the sign of its 32 bits, of unsigned ones it does not.
typedef int<32> signed_serial_t;
// A progress within a step: one bit lower, below the sign, for a register's fields have one type.
typedef int<32> progress_t;
// Time in units of 256 ns.
typedef bit<32> tick_t;
// A block within its half of the blocks.
typedef bit<15> half_t;

// What egress has to do with a packet.
typedef bit<8> kind_t;
const kind_t KIND_ROUTED = 0;
const kind_t KIND_RAW = 1;      // A packet-out: leaves as it is.
const kind_t KIND_READ = 2;     // A read request.
const kind_t KIND_REPLY = 3;    // A state reply that came back over the recirculation port.

// From ingress to egress, in front of the packet.
header bridge_h {
    kind_t kind;
    bit<2> job_pad;
    job_t job;
    bit<7> port_pad;
    port_t ingress_port;
}

// ringstep.protocol.inband.StateReply, the same bytes as state_reply_h.
header reply_h {
    bit<32> request_id;
    bit<2> job_pad;
    job_t job;
    block_t block;
    bit<32> now_high;
    tick_t now;
    generation_t generation;
    step_t step_min;
    bit<32> psn_rec;
    alpha_t alpha;
    count_t cnt_total;
    count_t cnt_op;
    bit<32> win_start_high;
    tick_t win_start;
}

header reply_anchor_h {
    generation_t generation;
    step_t step;
    bit<32> base;
}

struct t2na_headers_t {
    bridge_h bridge;
    packet_out_h packet_out;
    packet_in_h packet_in;
    read_request_h read_request;
    reply_h reply;
    reply_anchor_h anchor0;
    reply_anchor_h anchor1;
    reply_anchor_h anchor2;
    reply_anchor_h anchor3;
    ethernet_h ethernet;
    vlan_h vlan;
    ipv4_h ipv4;
    ipv6_h ipv6;
    udp_h udp;
    bth_h bth;
#ifdef RINGSTEP_UEC
    pds_h pds;
    ses_h ses;
#endif
}

struct ingress_md_t {
    // Set by the parser.
    bool bad_checksum;
    bit<1> is_data;
    // Addresses as 128 bits, IPv4 as ::ffff:a.b.c.d, so that one key serves both families.
    ipv6_addr_t src_addr;
    ipv6_addr_t dst_addr;
    bit<8> protocol;
    bit<16> sport;
    bit<16> dport;
    bit<6> dscp;
    // Set by the controls.
    bit<32> ecmp_seed;
    bit<16> ecmp_choice;
    nexthop_t nexthop_id;
    job_t job;
    path_t path_id;
    port_t port;
}

struct egress_md_t {
    bit<1> is_last;
    bit<16> tag;        // the step is in its low bits
    psn_t psn;
    bit<1> is_ect;
    bit<1> marker_mark;
    bit<1> red_mark;
    bit<1> apart;       // 0: this mark comes too soon after the last one and is not set
    tick_t now;
    signed_serial_t soon;   // now + SLACK
    bit<32> mark_gap;   // between marks on packets of jobs at this port, microseconds; 0: none
    bit<32> depth;      // of the egress queue, in units of CELLS_PER_UNIT cells
    params_t params;
    // Parameters in words of their own, for arithmetic on 32 bits.
    bit<32> owner_high;     // generation ++ 0
    bit<32> step_mask;
    bit<32> per_step;
    bit<32> k;
    bit<32> tau_num;
    bit<32> tau_den;
    bit<32> warmup;
    bit<32> q_min;
    block_t block;
}

#endif  // RINGSTEP_T2NA_TYPES_P4
