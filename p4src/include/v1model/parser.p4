// Parser and deparser.
//
// RoCEv2 is recognised only where nothing stands between: no IPv4 options, no fragments, no IPv6
// extension headers. Everything else is routed and never looked at by the marker.

parser RingstepParser(packet_in packet,
                      out headers_t hdr,
                      inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition select(hdr.packet_out.op) {
            OP_READ_STATE: parse_read_request;
            default: accept;
        }
    }

    state parse_read_request {
        packet.extract(hdr.read_request);
        transition accept;
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            ETHERTYPE_VLAN: parse_vlan;
            default: accept;
        }
    }

    state parse_vlan {
        packet.extract(hdr.vlan);
        transition select(hdr.vlan.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        meta.src_addr = 80w0 ++ 16w0xFFFF ++ hdr.ipv4.src_addr;
        meta.dst_addr = 80w0 ++ 16w0xFFFF ++ hdr.ipv4.dst_addr;
        meta.protocol = hdr.ipv4.protocol;
        meta.dscp = hdr.ipv4.dscp;
        transition select(hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.frag_offset,
                          hdr.ipv4.protocol) {
            (5, 0, 0, IPPROTO_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        meta.src_addr = hdr.ipv6.src_addr;
        meta.dst_addr = hdr.ipv6.dst_addr;
        meta.protocol = hdr.ipv6.next_header;
        meta.dscp = hdr.ipv6.dscp;
        transition select(hdr.ipv6.next_header) {
            IPPROTO_UDP: parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        meta.sport = hdr.udp.sport;
        meta.dport = hdr.udp.dport;
        transition select(hdr.udp.dport) {
            ROCE_UDP_PORT: parse_bth;
#ifdef RINGSTEP_UEC
            UEC_UDP_PORT: parse_pds;
#endif
            default: accept;
        }
    }

    // SEND and WRITE over RC (0x00..0x0B) and UC (0x20..0x2B); the masks drop the UC bit.
    state parse_bth {
        packet.extract(hdr.bth);
        meta.tag = hdr.udp.sport;
        meta.psn = hdr.bth.psn;
        transition select(hdr.bth.opcode) {
            0x02 &&& 0xDE: data_last;    // SEND_LAST, with and without immediate
            0x04 &&& 0xDE: data_last;    // SEND_ONLY
            0x08 &&& 0xDC: data_last;    // WRITE_LAST, WRITE_ONLY
            0x00 &&& 0xDE: data;         // SEND_FIRST, SEND_MIDDLE
            0x06 &&& 0xDE: data;         // WRITE_FIRST, WRITE_MIDDLE
            default: accept;
        }
    }

    state data_last {
        meta.is_last = 1;
        transition data;
    }

#ifdef RINGSTEP_UEC
    // RUD and ROD requests with a SES request behind them: small, medium or standard.
    state parse_pds {
        packet.extract(hdr.pds);
        meta.tag = hdr.pds.spdcid;
        meta.psn = hdr.pds.psn[23:0];
        transition select(hdr.pds.type, hdr.pds.next_header) {
            (UEC_RUD_REQUEST &&& 0x1E, 0x1): parse_ses;
            (UEC_RUD_REQUEST &&& 0x1E, 0x2 &&& 0xE): parse_ses;
            default: accept;
        }
    }

    state parse_ses {
        packet.extract(hdr.ses);
        meta.is_last = hdr.ses.end_of_message;
        transition select(hdr.ses.opcode, hdr.ses.version) {
            (UEC_WRITE, UEC_SES_VERSION): data;
            (UEC_SEND, UEC_SES_VERSION): data;
            (UEC_TAGGED_SEND, UEC_SES_VERSION): data;
            default: accept;
        }
    }
#endif

    state data {
        meta.is_data = 1;
        transition accept;
    }
}

control RingstepDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.state_reply);
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
