// The marker alone, to measure what it takes: no routing, no RED, no rules that find jobs, no
// reading of state. A packet goes back where it came from, and its job is the low bits of its QP.

parser RingstepIngressParser(packet_in packet,
                             out t2na_headers_t hdr,
                             out ingress_md_t meta,
                             out ingress_intrinsic_metadata_t ig_intr_md) {
    state start {
        packet.extract(ig_intr_md);
        packet.advance(PORT_METADATA_SIZE);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.bth);
        transition accept;
    }
}

control RingstepIngress(inout t2na_headers_t hdr,
                        inout ingress_md_t meta,
                        in ingress_intrinsic_metadata_t ig_intr_md,
                        in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                        inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                        inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    apply {
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port;
        hdr.bridge.setValid();
        hdr.bridge.kind = KIND_ROUTED;
        hdr.bridge.job_pad = 0;
        hdr.bridge.job = hdr.bth.dst_qp[13:0];
        hdr.bridge.port_pad = 0;
        hdr.bridge.ingress_port = ig_intr_md.ingress_port;
    }
}

control RingstepIngressDeparser(packet_out packet,
                                inout t2na_headers_t hdr,
                                in ingress_md_t meta,
                                in ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    apply {
        packet.emit(hdr.bridge);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
    }
}

parser RingstepEgressParser(packet_in packet,
                            out t2na_headers_t hdr,
                            out egress_md_t meta,
                            out egress_intrinsic_metadata_t eg_intr_md) {
    state start {
        packet.extract(eg_intr_md);
        meta.is_last = 0;
        meta.is_ect = 1;
        meta.marker_mark = 0;
        meta.red_mark = 0;
        meta.mark_gap = 0;
        meta.depth = 0;
        meta.block = 0;
        packet.extract(hdr.bridge);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
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

// What a register takes from the packet lies in one container each.
@pa_container_size("egress", "marker_owner", 32)
@pa_container_size("egress", "marker_psn", 32)
@pa_container_size("egress", "marker_new_step", 32)
@pa_container_size("egress", "marker_new_psn", 32)
@pa_container_size("egress", "marker_sample", 32)
@pa_container_size("egress", "marker_gain", 32)
@pa_container_size("egress", "marker_horizon", 32)
@pa_container_size("egress", "meta.soon", 32)
@pa_no_overlay("egress", "marker_base_0")
@pa_no_overlay("egress", "marker_base_1")
@pa_no_overlay("egress", "marker_base_2")
@pa_no_overlay("egress", "marker_base_3")
control RingstepEgress(inout t2na_headers_t hdr,
                       inout egress_md_t meta,
                       in egress_intrinsic_metadata_t eg_intr_md,
                       in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                       inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                       inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Marker() marker;

    action take_depth() { meta.depth = (bit<32>)eg_intr_md.deq_qdepth; }
    action scale_depth() { meta.depth = meta.depth >> QDEPTH_SHIFT; }

    apply {
        take_depth();
        scale_depth();
        marker.apply(hdr, meta, eg_intr_md, eg_prsr_md);
        if (meta.marker_mark == 1) {
            hdr.ipv4.ecn = ECN_CE;
        }
    }
}

control RingstepEgressDeparser(packet_out packet,
                               inout t2na_headers_t hdr,
                               in egress_md_t meta,
                               in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.bth);
    }
}
