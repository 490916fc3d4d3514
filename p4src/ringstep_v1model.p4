// Ringstep's data plane on v1model (BMv2 and the software switch).
//
// -DRINGSTEP_UEC adds Ultra Ethernet, whose headers name job, step and end of message themselves.
//
// Ingress finds a packet's job and its way; egress, where the queue depth is known, runs RED and
// the marker, spaces marks and sets CE. The marker's rule is that of ringstep.protocol.marker.

#include <core.p4>
#include <v1model.p4>

#include "include/headers.p4"
#include "include/v1model/parser.p4"
#include "include/v1model/checksum.p4"
#include "include/v1model/classify.p4"
#include "include/v1model/routing.p4"
#include "include/v1model/red.p4"
#include "include/v1model/marker.p4"

control RingstepIngress(inout headers_t hdr,
                        inout metadata_t meta,
                        inout standard_metadata_t standard_metadata) {
    Classify() classify;
    Routing() routing;

    // Why a packet was dropped here.
    counter(4, CounterType.packets) ingress_drops;

    action drop_because(bit<32> reason) {
        ingress_drops.count(reason);
        mark_to_drop(standard_metadata);
    }

    apply {
        if (standard_metadata.parser_error != error.NoError) {
            drop_because(0);
        } else if (hdr.packet_out.isValid()) {
            if (hdr.packet_out.op == OP_READ_STATE) {
                standard_metadata.egress_spec = CPU_PORT;
            } else {
                standard_metadata.egress_spec = hdr.packet_out.egress_port;
            }
            hdr.packet_out.setInvalid();
        } else if (!hdr.ipv4.isValid() && !hdr.ipv6.isValid()) {
            drop_because(1);
        } else if (standard_metadata.checksum_error == 1
                || (hdr.ipv4.isValid() && (hdr.ipv4.version != 4 || hdr.ipv4.ihl < 5))
                || (hdr.ipv6.isValid() && hdr.ipv6.version != 6)) {
            drop_because(2);
        } else {
            // Lengths that contradict one another are not RoCEv2, whatever the port says.
            bit<16> udp_bytes = hdr.ipv6.payload_len;
            bit<32> l3_offset = 14;
            bit<32> l3_header = 40;
            if (hdr.ipv4.isValid()) {
                udp_bytes = hdr.ipv4.total_len - IPV4_BYTES;
                l3_header = 20;
            }
            if (hdr.vlan.isValid()) {
                l3_offset = 18;
            }
            bool is_tagged = hdr.udp.sport >= UDP_SPORT_BASE && udp_bytes >= MIN_ROCE_UDP_BYTES;
#ifdef RINGSTEP_UEC
            if (hdr.ses.isValid()) {
                is_tagged = udp_bytes >= MIN_UEC_UDP_BYTES;
            }
#endif
            if (meta.is_data == 1
                    && is_tagged
                    && hdr.udp.length == udp_bytes
                    && standard_metadata.packet_length
                        >= l3_offset + l3_header + (bit<32>)udp_bytes) {
                classify.apply(hdr, meta);
            }
            routing.apply(hdr, meta, standard_metadata);
        }
    }
}

control RingstepEgress(inout headers_t hdr,
                       inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {
    Red() red;
    Marker() marker;
    Spacing() spacing;

    apply {
        bit<2> ecn = hdr.ipv6.ecn;
        if (hdr.ipv4.isValid()) {
            ecn = hdr.ipv4.ecn;
        }
        if ((hdr.ipv4.isValid() || hdr.ipv6.isValid()) && (ecn == ECN_ECT0 || ecn == ECN_ECT1)) {
            meta.is_ect = 1;
            red.apply(meta, standard_metadata);
        }
        marker.apply(hdr, meta, standard_metadata);
        spacing.apply(meta.job, meta, standard_metadata);
        if (meta.is_ect == 1 && (meta.marker_mark == 1 || meta.red_mark == 1)) {
            if (hdr.ipv4.isValid()) {
                if (hdr.ipv4.ihl != 5) {
                    // RFC 1624, equation 3; the first word rises by CE - ecn.
                    bit<17> sum = (bit<17>)(~hdr.ipv4.hdr_checksum) + (bit<17>)(ECN_CE - ecn);
                    hdr.ipv4.hdr_checksum = ~(sum[15:0] + (bit<16>)sum[16:16]);
                }
                hdr.ipv4.ecn = ECN_CE;
            } else {
                hdr.ipv6.ecn = ECN_CE;
            }
        }
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.op = OP_PACKET;
            if (hdr.state_reply.isValid()) {
                hdr.packet_in.op = OP_READ_STATE;
            }
        }
    }
}

V1Switch(RingstepParser(),
         RingstepVerifyChecksum(),
         RingstepIngress(),
         RingstepEgress(),
         RingstepComputeChecksum(),
         RingstepDeparser()) main;
