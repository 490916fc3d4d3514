// Parsers and deparsers.
//
// RoCEv2 is recognised only where nothing stands between: no IPv4 options, no fragments, no IPv6
// extension headers. Everything else is routed and never looked at by the marker.

parser RingstepIngressParser(packet_in packet,
                             out t2na_headers_t hdr,
                             out ingress_md_t meta,
                             out ingress_intrinsic_metadata_t ig_intr_md) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        meta.bad_checksum = false;
        meta.is_data = 0;
        meta.src_addr = 0;
        meta.dst_addr = 0;
        meta.protocol = 0;
        meta.sport = 0;
        meta.dport = 0;
        meta.dscp = 0;
        meta.ecmp_seed = 0;
        meta.ecmp_choice = 0;
        meta.nexthop_id = 0;
        meta.job = NO_JOB;
        meta.path_id = 0;
        meta.port = DROP_PORT;
        transition select(ig_intr_md.ingress_port) {
            T2NA_CPU_PORT : parse_packet_out;
            T2NA_RECIRC_PORT &&& T2NA_LOCAL_PORT_MASK : accept;
            default : parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition select(hdr.packet_out.op) {
            OP_READ_STATE : parse_read_request;
            default : accept;
        }
    }

    state parse_read_request {
        packet.extract(hdr.read_request);
        transition accept;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4 : parse_ipv4;
            ETHERTYPE_IPV6 : parse_ipv6;
            ETHERTYPE_VLAN : parse_vlan;
            default : accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.ether_type) {
            ETHERTYPE_IPV4 : parse_ipv4;
            ETHERTYPE_IPV6 : parse_ipv6;
            default : accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.bad_checksum = ipv4_checksum.verify();
        meta.protocol = hdr.ipv4.protocol;
        transition select(hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.frag_offset,
                          hdr.ipv4.protocol) {
            (5, 0, 0, IPPROTO_UDP) : parse_udp;
            default : accept;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        meta.protocol = hdr.ipv6.next_header;
        transition select(hdr.ipv6.next_header) {
            IPPROTO_UDP : parse_udp;
            default : accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        meta.sport = hdr.udp.sport;
        meta.dport = hdr.udp.dport;
        transition select(hdr.udp.dport) {
            ROCE_UDP_PORT : parse_bth;
#ifdef RINGSTEP_UEC
            UEC_UDP_PORT : parse_pds;
#endif
            default : accept;
        }
    }

#ifdef RINGSTEP_UEC
    // RUD and ROD requests with a SES request behind them: small, medium or standard.
    state parse_pds {
        packet.extract(hdr.pds);
        transition select(hdr.pds.type, hdr.pds.next_header) {
            (UEC_RUD_REQUEST &&& 0x1E, 0x1) : parse_ses;
            (UEC_RUD_REQUEST &&& 0x1E, 0x2 &&& 0xE) : parse_ses;
            default : accept;
        }
    }

    state parse_ses {
        packet.extract(hdr.ses);
        transition select(hdr.ses.opcode, hdr.ses.version) {
            (UEC_WRITE, UEC_SES_VERSION) : data;
            (UEC_SEND, UEC_SES_VERSION) : data;
            (UEC_TAGGED_SEND, UEC_SES_VERSION) : data;
            default : accept;
        }
    }
#endif

    // SEND and WRITE over RC (0x00..0x0B) and UC (0x20..0x2B); the masks drop the UC bit.
    state parse_bth {
        packet.extract(hdr.bth);
        transition select(hdr.bth.opcode) {
            0x00 &&& 0xD8 : data;    // SEND_FIRST .. WRITE_MIDDLE
            0x08 &&& 0xDC : data;    // WRITE_LAST, WRITE_ONLY
            default : accept;
        }
    }

    state data {
        meta.is_data = 1;
        transition accept;
    }
}

control RingstepIngressDeparser(packet_out packet,
                                inout t2na_headers_t hdr,
                                in ingress_md_t meta,
                                in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    apply {
        packet.emit(hdr.bridge);
        packet.emit(hdr.read_request);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
#ifdef RINGSTEP_UEC
        packet.emit(hdr.pds);
        packet.emit(hdr.ses);
#endif
    }
}

parser RingstepEgressParser(packet_in packet,
                            out t2na_headers_t hdr,
                            out egress_md_t meta,
                            out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        packet.extract(hdr.bridge);
        meta.is_last = 0;
        meta.is_ect = 0;
        meta.marker_mark = 0;
        meta.red_mark = 0;
        meta.apart = 1;
        meta.mark_gap = 0;
        meta.depth = 0;
        meta.block = 0;
        meta.tag = 0;
        meta.psn = 0;
        transition select(hdr.bridge.kind) {
            KIND_ROUTED : parse_ethernet;
            KIND_READ : parse_read_request;
            default : accept;
        }
    }

    state parse_read_request {
        packet.extract(hdr.read_request);
        transition accept;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4 : parse_ipv4;
            ETHERTYPE_IPV6 : parse_ipv6;
            ETHERTYPE_VLAN : parse_vlan;
            default : accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.ether_type) {
            ETHERTYPE_IPV4 : parse_ipv4;
            ETHERTYPE_IPV6 : parse_ipv6;
            default : accept;
        }
    }

    // Ingress gave the packet a job only where the headers below follow, so here they are there.
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.bridge.job) {
            NO_JOB : accept;
            default : parse_udp;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.bridge.job) {
            NO_JOB : accept;
            default : parse_udp;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
#ifdef RINGSTEP_UEC
        transition select(hdr.udp.dport) {
            UEC_UDP_PORT : parse_pds;
            default : parse_bth;
        }
    }

    state parse_pds {
        packet.extract(hdr.pds);
        packet.extract(hdr.ses);
        meta.tag = hdr.pds.spdcid;
        meta.psn = hdr.pds.psn[23:0];
        meta.is_last = hdr.ses.end_of_message;
        transition accept;
    }

    state parse_bth {
#endif
        packet.extract(hdr.bth);
        meta.tag = hdr.udp.sport;
        meta.psn = hdr.bth.psn;
        transition select(hdr.bth.opcode) {
            0x02 &&& 0xDE : data_last;    // SEND_LAST, with and without immediate
            0x04 &&& 0xDE : data_last;    // SEND_ONLY
            0x08 &&& 0xDC : data_last;    // WRITE_LAST, WRITE_ONLY
            default : accept;
        }
    }

    state data_last {
        meta.is_last = 1;
        transition accept;
    }
}

control RingstepEgressDeparser(packet_out packet,
                               inout t2na_headers_t hdr,
                               in egress_md_t meta,
                               in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.reply);
        packet.emit(hdr.anchor0);
        packet.emit(hdr.anchor1);
        packet.emit(hdr.anchor2);
        packet.emit(hdr.anchor3);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.vlan);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
#ifdef RINGSTEP_UEC
        packet.emit(hdr.pds);
        packet.emit(hdr.ses);
#endif
    }
}
