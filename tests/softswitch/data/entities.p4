/* One table of every kind that P4Runtime can program, for the tests of the software switch's
 * P4Runtime server. It is no useful switch: packets are only forwarded, counted and sent to and
 * from the CPU port. The two files beside it are made by
 * p4c-bm2-ss --p4runtime-files entities.p4info.txtpb -o entities.json entities.p4 */
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;
const bit<16> ETHERTYPE_IPV4 = 0x0800;

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> op;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> op;
}

header ethernet_t {
    bit<48> dst_addr;
    bit<48> src_addr;
    bit<16> ether_type;
}

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_len;
    bit<16> ident;
    bit<16> flags_frag;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t  packet_in;
    ethernet_t   ethernet;
    ipv4_t       ipv4;
}

struct metadata_t {
    bit<16> nexthop_id;
    bit<6>  traffic_class;
    bit<32> seed;
}

parser EntitiesParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control EntitiesVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control EntitiesIngress(inout headers_t hdr, inout metadata_t meta,
                        inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) l2_counter;
    direct_counter(CounterType.packets) acl_counter;
    counter(16, CounterType.packets_and_bytes) per_port;
    counter(8, CounterType.packets) per_class;
    register<bit<32>>(8) scratch;
    action_selector(HashAlgorithm.crc16, 32w64, 32w16) ecmp;
    action_profile(32w8) shared_actions;

    action drop() {
        mark_to_drop(standard_metadata);
    }
    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }
    action send_to_cpu() {
        standard_metadata.egress_spec = CPU_PORT;
    }
    action set_nexthop(bit<16> nexthop_id) {
        meta.nexthop_id = nexthop_id;
    }
    action rewrite(bit<9> port, bit<48> src_mac, bit<48> dst_mac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
    }
    action set_class(bit<6> traffic_class) {
        meta.traffic_class = traffic_class;
    }
    action set_seed(bit<32> seed) {
        meta.seed = seed;
    }

    table settings {
        actions = { set_seed; }
        default_action = set_seed(7);
    }
    table l2 {
        key = { hdr.ethernet.dst_addr: exact @name("dst_addr"); }
        actions = { forward; send_to_cpu; @tableonly set_class; @defaultonly drop; }
        default_action = drop();
        counters = l2_counter;
        size = 8;
    }
    table route {
        key = { hdr.ipv4.dst_addr: lpm @name("dst_addr"); }
        actions = { set_nexthop; drop; }
        default_action = drop();
        size = 64;
    }
    table acl {
        key = {
            hdr.ethernet.src_addr: ternary @name("src_addr");
            hdr.ipv4.total_len: range @name("total_len");
            hdr.ethernet.ether_type: optional @name("ether_type");
        }
        actions = { drop; set_class; NoAction; }
        const default_action = NoAction();
        counters = acl_counter;
        size = 64;
    }
    table nexthop {
        key = {
            meta.nexthop_id: exact @name("nexthop_id");
            hdr.ipv4.src_addr: selector;
            hdr.ipv4.dst_addr: selector;
        }
        actions = { rewrite; NoAction; }
        implementation = ecmp;
        size = 64;
    }
    table by_port {
        key = { standard_metadata.ingress_port: exact @name("ingress_port"); }
        actions = { forward; NoAction; }
        implementation = shared_actions;
        size = 64;
    }
    table fixed {
        key = { hdr.ipv4.protocol: exact @name("protocol"); }
        actions = { set_class; NoAction; }
        const entries = {
            6: set_class(1);
            17: set_class(2);
        }
        default_action = NoAction();
    }

    apply {
        settings.apply();
        if (hdr.packet_out.isValid()) {
            scratch.write(0, meta.seed);
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            by_port.apply();
            acl.apply();
            if (hdr.ipv4.isValid() && route.apply().hit) {
                fixed.apply();
                nexthop.apply();
            } else {
                l2.apply();
            }
            per_port.count((bit<32>) (standard_metadata.ingress_port & 15));
            per_class.count((bit<32>) (meta.traffic_class & 7));
        }
    }
}

control EntitiesEgress(inout headers_t hdr, inout metadata_t meta,
                       inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.op = 3;
        }
    }
}

control EntitiesCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control EntitiesDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(EntitiesParser(), EntitiesVerify(), EntitiesIngress(), EntitiesEgress(),
         EntitiesCompute(), EntitiesDeparser()) main;
