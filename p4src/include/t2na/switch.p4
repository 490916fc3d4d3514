// Ingress and egress of the whole program.

control RingstepIngress(inout t2na_headers_t hdr,
                        inout ingress_md_t meta,
                        in ingress_intrinsic_metadata_t ig_intr_md,
                        in ingress_intrinsic_metadata_from_parser_t ig_prsr_md,
                        inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
                        inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    Classify() classify;
    Routing() routing;

    // Why a packet was dropped here.
    Counter<bit<32>, bit<2>>(4, CounterType_t.PACKETS) ingress_drops;

    bit<16> udp_bytes = 0;
    bit<16> longer = 0;
    bit<16> short = 0;
    bit<2> tagged = 0;

    action drop_because(bit<2> reason) {
        ingress_drops.count(reason);
        ig_dprsr_md.drop_ctl = 1;
    }

    action compare_lengths() {
        longer = hdr.udp.length ^ udp_bytes;
        short = MIN_ROCE_UDP_BYTES |-| udp_bytes;
        tagged = hdr.udp.sport[15:14];
    }

    action send(port_t port) {
        ig_tm_md.ucast_egress_port = port;
    }

    apply {
        hdr.bridge.setValid();
        hdr.bridge.kind = KIND_ROUTED;
        hdr.bridge.job_pad = 0;
        hdr.bridge.job = NO_JOB;
        hdr.bridge.port_pad = 0;
        hdr.bridge.ingress_port = ig_intr_md.ingress_port;
        if (ig_prsr_md.parser_err != 0) {
            drop_because(0);
        } else if (hdr.packet_out.isValid()) {
            hdr.bridge.ingress_port = CPU_PORT;
            meta.port = hdr.packet_out.egress_port;
            if (hdr.read_request.isValid()) {
                hdr.bridge.kind = KIND_READ;
                hdr.bridge.job = hdr.read_request.job;
            } else {
                hdr.bridge.kind = KIND_RAW;
            }
        } else if ((ig_intr_md.ingress_port & T2NA_LOCAL_PORT_MASK) == T2NA_RECIRC_PORT) {
            hdr.bridge.kind = KIND_REPLY;
            meta.port = CPU_PORT;
        } else if (!hdr.ipv4.isValid() && !hdr.ipv6.isValid()) {
            drop_because(1);
        } else if ((hdr.ipv4.isValid()
                    && (hdr.ipv4.version != 4 || hdr.ipv4.ihl < 5
                        || (hdr.ipv4.ihl == 5 && meta.bad_checksum)))
                || (hdr.ipv6.isValid() && hdr.ipv6.version != 6)) {
            drop_because(2);
        } else {
            if (hdr.ipv4.isValid()) {
                meta.src_addr = 80w0 ++ 16w0xFFFF ++ hdr.ipv4.src_addr;
                meta.dst_addr = 80w0 ++ 16w0xFFFF ++ hdr.ipv4.dst_addr;
                meta.dscp = hdr.ipv4.dscp;
                udp_bytes = hdr.ipv4.total_len - IPV4_BYTES;
            } else {
                meta.src_addr = hdr.ipv6.src_addr;
                meta.dst_addr = hdr.ipv6.dst_addr;
                meta.dscp = hdr.ipv6.dscp;
                udp_bytes = hdr.ipv6.payload_len;
            }
            // Lengths that contradict one another are not RoCEv2, whatever the port says.
            compare_lengths();
#ifdef RINGSTEP_UEC
            if (hdr.ses.isValid()) {
                short = MIN_UEC_UDP_BYTES |-| udp_bytes;
                tagged = 3;
            }
#endif
            if (meta.is_data == 1 && tagged == 3 && longer == 0 && short == 0) {
                classify.apply(hdr, meta);
            }
            hdr.bridge.job = meta.job;
            routing.apply(hdr, meta, ig_dprsr_md);
        }
        if (meta.port == CPU_PORT) {
            send(T2NA_CPU_PORT);
        } else {
            send(meta.port);
        }
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
// So does what RED computes with.
@pa_container_size("egress", "meta.depth", 32)
@pa_container_size("egress", "meta.q_min", 32)
@pa_container_size("egress", "red_bottom", 32)
@pa_container_size("egress", "red_top", 32)
@pa_container_size("egress", "red_excess", 32)
@pa_container_size("egress", "red_beyond", 32)
@pa_container_size("egress", "red_span", 32)
@pa_container_size("egress", "red_far", 32)
control RingstepEgress(inout t2na_headers_t hdr,
                       inout egress_md_t meta,
                       in egress_intrinsic_metadata_t eg_intr_md,
                       in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                       inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                       inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Red() red;
    Marker() marker;
    Spacing() spacing;

    action take_depth() { meta.depth = (bit<32>)eg_intr_md.deq_qdepth; }
    action scale_depth() { meta.depth = meta.depth >> QDEPTH_SHIFT; }

    // CE, and the checksum with it (RFC 1624, equation 3): it falls by what ECN grows, with an
    // end-around borrow. The hardware adds.
    // One word, so first what is shifted, then the constant.
    action add_packet_in() {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = hdr.bridge.ingress_port;
    }
    action tell_state() { hdr.packet_in.op = OP_READ_STATE; }
    action tell_packet() { hdr.packet_in.op = OP_PACKET; }

    action set_ce_v4(bit<16> more) {
        hdr.ipv4.ecn = ECN_CE;
        hdr.ipv4.hdr_checksum = hdr.ipv4.hdr_checksum + more;
    }
    action set_ce_v6() { hdr.ipv6.ecn = ECN_CE; }

    table congestion_v4 {
        key = {
            hdr.ipv4.ecn : ternary @name("ecn");
            hdr.ipv4.hdr_checksum : ternary @name("hdr_checksum");
        }
        actions = { set_ce_v4; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (ECN_ECT0, 0) : set_ce_v4(0xFFFE);
            (ECN_ECT0, _) : set_ce_v4(0xFFFF);
            (ECN_ECT1, 0 &&& 0xFFFE) : set_ce_v4(0xFFFD);
            (ECN_ECT1, _) : set_ce_v4(0xFFFE);
        }
        size = 4;
    }

    apply {
        take_depth();
        scale_depth();
        if (hdr.ipv4.isValid() && (hdr.ipv4.ecn == ECN_ECT0 || hdr.ipv4.ecn == ECN_ECT1)) {
            meta.is_ect = 1;
        } else if (hdr.ipv6.isValid() && (hdr.ipv6.ecn == ECN_ECT0 || hdr.ipv6.ecn == ECN_ECT1)) {
            meta.is_ect = 1;
        }
        if (meta.is_ect == 1) {
            red.apply(meta, eg_intr_md);
        }
        marker.apply(hdr, meta, eg_intr_md, eg_prsr_md);
        spacing.apply(hdr.bridge.job, meta, eg_intr_md);
        if (meta.is_ect == 1 && meta.apart == 1
                && (meta.marker_mark == 1 || meta.red_mark == 1)) {
            if (hdr.ipv4.isValid()) {
                congestion_v4.apply();
            } else {
                set_ce_v6();
            }
        }
        if (hdr.bridge.kind == KIND_READ) {
            add_packet_in();
            tell_state();
        } else if (eg_intr_md.egress_port == T2NA_CPU_PORT && hdr.bridge.kind != KIND_REPLY) {
            add_packet_in();
            tell_packet();
        }
    }
}
