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
            longer = hdr.udp.length ^ udp_bytes;
            short = MIN_ROCE_UDP_BYTES |-| udp_bytes;
            tagged = hdr.udp.sport[15:14];
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

control RingstepEgress(inout t2na_headers_t hdr,
                       inout egress_md_t meta,
                       in egress_intrinsic_metadata_t eg_intr_md,
                       in egress_intrinsic_metadata_from_parser_t eg_prsr_md,
                       inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md,
                       inout egress_intrinsic_metadata_for_output_port_t eg_oport_md) {
    Red() red;
    Marker() marker;
    Spacing() spacing;

    bit<32> sum = 0;

    action take_depth() { meta.depth = (bit<32>)eg_intr_md.deq_qdepth; }
    action scale_depth() { meta.depth = meta.depth >> QDEPTH_SHIFT; }

    // What the checksum will be if the packet gets CE (RFC 1624, equation 3).
    apply {
        take_depth();
        scale_depth();
        if (hdr.ipv4.isValid() && (hdr.ipv4.ecn == ECN_ECT0 || hdr.ipv4.ecn == ECN_ECT1)) {
            meta.is_ect = 1;
            sum = (bit<32>)(~hdr.ipv4.hdr_checksum);
            if (hdr.ipv4.ecn == ECN_ECT0) {
                sum = sum + 1;
            } else {
                sum = sum + 2;
            }
            sum = (bit<32>)sum[15:0] + (bit<32>)sum[31:16];
        } else if (hdr.ipv6.isValid() && (hdr.ipv6.ecn == ECN_ECT0 || hdr.ipv6.ecn == ECN_ECT1)) {
            meta.is_ect = 1;
        }
        if (meta.is_ect == 1) {
            red.apply(meta, eg_intr_md);
        }
        marker.apply(hdr, meta, eg_intr_md, eg_prsr_md);
        spacing.apply(hdr.bridge.job, meta, eg_intr_md, eg_prsr_md);
        if (meta.is_ect == 1 && (meta.marker_mark == 1 || meta.red_mark == 1)) {
            if (hdr.ipv4.isValid()) {
                hdr.ipv4.ecn = ECN_CE;
                hdr.ipv4.hdr_checksum = ~sum[15:0];
            } else {
                hdr.ipv6.ecn = ECN_CE;
            }
        }
        if (hdr.bridge.kind == KIND_READ) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = hdr.bridge.ingress_port;
            hdr.packet_in.op = OP_READ_STATE;
        } else if (eg_intr_md.egress_port == T2NA_CPU_PORT && hdr.bridge.kind != KIND_REPLY) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = hdr.bridge.ingress_port;
            hdr.packet_in.op = OP_PACKET;
        }
    }
}
