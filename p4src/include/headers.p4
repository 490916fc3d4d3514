// Headers and sizes of every target.

#ifndef RINGSTEP_HEADERS_P4
#define RINGSTEP_HEADERS_P4

#include "constants.p4"

typedef bit<48> mac_addr_t;
typedef bit<32> ipv4_addr_t;
typedef bit<128> ipv6_addr_t;
typedef bit<24> qp_t;

header ethernet_h {
    mac_addr_t dst_addr;
    mac_addr_t src_addr;
    bit<16> ether_type;
}

header vlan_h {
    bit<16> tci;
    bit<16> ether_type;
}

header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_len;
    bit<16> identification;
    bit<2> reserved_and_df;
    bit<1> more_fragments;
    bit<13> frag_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> hdr_checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
}

header ipv6_h {
    bit<4> version;
    bit<6> dscp;
    bit<2> ecn;
    bit<20> flow_label;
    bit<16> payload_len;
    bit<8> next_header;
    bit<8> hop_limit;
    ipv6_addr_t src_addr;
    ipv6_addr_t dst_addr;
}

header udp_h {
    bit<16> sport;
    bit<16> dport;
    bit<16> length;
    bit<16> checksum;
}

// Base transport header (IBTA 9.2). ICRC masks the byte of becn, fecn and resv6a.
header bth_h {
    bit<8> opcode;
    bit<1> solicited;
    bit<1> migreq;
    bit<2> pad;
    bit<4> tver;
    bit<16> pkey;
    bit<1> fecn;
    bit<1> becn;
    bit<6> resv6a;
    qp_t dst_qp;
    bit<1> ack_req;
    bit<7> resv7;
    psn_t psn;
}

#ifdef RINGSTEP_UEC
// Ultra Ethernet 1.0: a RUD or ROD request of the packet delivery sublayer (table 3-33).
header pds_h {
    bit<5> type;
    bit<4> next_header;
    bit<2> rsvd1;
    bit<1> retransmit;
    bit<1> ack_request;
    bit<1> syn;
    bit<2> rsvd2;
    bit<16> clear_psn_offset;
    bit<32> psn;
    bit<16> spdcid;
    bit<16> dpdcid;
}

// What all requests of the semantic sublayer begin with (table 2-39).
header ses_h {
    bit<2> rsvd1;
    bit<6> opcode;
    bit<2> version;
    bit<1> delivery_complete;
    bit<1> initiator_error;
    bit<1> relative_addressing;
    bit<1> header_data_present;
    bit<1> end_of_message;
    bit<1> start_of_message;
    bit<16> message_id;
    bit<8> ri_generation;
    uec_job_t job_id;
    bit<4> rsvd2;
    bit<12> pid_on_fep;
    bit<4> rsvd3;
    bit<12> resource_index;
}
#endif

@controller_header("packet_out")
header packet_out_h {
    port_t egress_port;
    bit<7> op;
}

@controller_header("packet_in")
header packet_in_h {
    port_t ingress_port;
    bit<7> op;
}

// What a packet-out with OP_READ_STATE asks for; ringstep.protocol.inband.ReadRequest.
header read_request_h {
    bit<32> request_id;
    bit<2> job_pad;
    job_t job;
    block_t block;
}

// The answer; ringstep.protocol.inband.StateReply.
header state_reply_h {
    bit<32> request_id;
    bit<2> job_pad;
    job_t job;
    block_t block;
    bit<16> now_pad;
    clock_t now;
    generation_t generation;
    step_t step_min;
    bit<8> psn_rec_pad;
    psn_t psn_rec;
    alpha_t alpha;
    count_t cnt_total;
    count_t cnt_op;
    bit<16> win_start_pad;
    clock_t win_start;
}

header anchor_h {
    generation_t generation;
    step_t step;
    bit<8> base_pad;
    psn_t base;
}

struct headers_t {
    packet_out_h packet_out;
    packet_in_h packet_in;
    read_request_h read_request;
    state_reply_h state_reply;
    anchor_h anchor0;
    anchor_h anchor1;
    anchor_h anchor2;
    anchor_h anchor3;
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

// A job's parameters, as ringstep.protocol.marker.MarkerParams.to_table hands them over.
struct params_t {
    generation_t generation;
    step_t step_mask;
    step_t step_sign;
    bit<1> anchored;
    psn_t packets_per_step;
    k_t k;
    bit<8> tau_num;
    bit<8> tau_den;
    bit<32> t_win;
    bit<16> n_sample;
    psn_t n_warmup;
    alpha_t alpha_max;
    qdepth_t q_min;
    bit<1> enabled;
}

struct metadata_t {
    // Set by the parser.
    bit<1> is_data;
    bit<1> is_last;
    // The step is in the low bits of the tag.
    bit<16> tag;
    psn_t psn;
    // Addresses as 128 bits, IPv4 as ::ffff:a.b.c.d, so that one key serves both families.
    ipv6_addr_t src_addr;
    ipv6_addr_t dst_addr;
    bit<8> protocol;
    bit<16> sport;
    bit<16> dport;
    bit<6> dscp;
    // Set in ingress.
    bit<32> ecmp_seed;
    bit<16> ecmp_choice;
    nexthop_t nexthop_id;
    job_t job;
    path_t path_id;
    // Set in egress.
    params_t params;
    block_t block;
    psn_t progress;
    bit<1> is_ect;
    bit<1> marker_mark;
    bit<1> red_mark;
    // Least time between marks on packets of jobs at this port; 0: none.
    gap_t mark_gap;
}

#endif  // RINGSTEP_HEADERS_P4
