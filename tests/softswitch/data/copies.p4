/* Everything that makes more than one packet of a packet, meters and digests: for the tests of the
 * software switch and, where BMv2 is installed, of both against each other. The first byte of a
 * frame chooses an entry of `todo`, which says what is to happen; the bytes after it come back with
 * what each pass has seen. The two files beside it are made by
 * p4c-bm2-ss --p4runtime-files copies.p4info.txtpb -o copies.json copies.p4 */
#include <core.p4>
#include <v1model.p4>

typedef bit<9> port_t;

header todo_t {
    bit<8> code;
    bit<8> passes;
    bit<8> seen_kind;
    bit<8> seen_port;
    bit<8> seen_kept;
    bit<8> seen_lost;
    bit<8> colour;
    bit<8> length;
}

header trail_t {
    bit<8>  kind;
    bit<16> rid;
}

struct headers_t {
    trail_t trail;
    todo_t  todo;
}

struct metadata_t {
    @field_list(1) bit<8> kept;
    @field_list(2) bit<8> kept_too;
    bit<8> lost;
    bit<8> cut;
    bit<2> colour;
    bit<1> again;
    bit<1> clone_again;
    bit<9> clone_session;
}

struct learned_t {
    bit<8>  code;
    bit<9>  port;
    bit<8>  kind;
    bit<1>  last;
    bit<48> wide;
}

parser CopiesParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.todo);
        transition accept;
    }
}

control CopiesVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control CopiesIngress(inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    meter(256, MeterType.packets) by_code;
    meter(16, MeterType.bytes) by_port;
    direct_meter<bit<2>>(MeterType.packets) by_entry;
    direct_counter(CounterType.packets) entries_hit;

    action forward(port_t port) {
        standard_metadata.egress_spec = port;
    }
    action drop() {
        mark_to_drop(standard_metadata);
    }
    action multicast(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }
    action clone_packet(port_t port, bit<9> session) {
        standard_metadata.egress_spec = port;
        clone_preserving_field_list(CloneType.I2E, (bit<32>)session, 1);
    }
    action clone_and_drop(bit<9> session) {
        mark_to_drop(standard_metadata);
        clone_preserving_field_list(CloneType.I2E, (bit<32>)session, 2);
    }
    action clone_at_the_end(port_t port, bit<9> session) {
        standard_metadata.egress_spec = port;
        meta.clone_again = 1;
        meta.clone_session = session;
    }
    action again_at_once(port_t port) {
        standard_metadata.egress_spec = port;
        if (standard_metadata.instance_type == 0) {
            resubmit_preserving_field_list(1);
        }
    }
    action round_again(port_t port, bit<8> times) {
        standard_metadata.egress_spec = port;
        if (hdr.todo.passes <= times) {
            meta.again = 1;
        }
    }
    action cut_to(port_t port, bit<8> length) {
        standard_metadata.egress_spec = port;
        meta.cut = length;
    }
    action learn(port_t port, bit<1> last) {
        standard_metadata.egress_spec = port;
        bit<8> kind = 7;
        if (standard_metadata.packet_length > 64) {
            kind = 200;
        }
        digest<learned_t>(1, {hdr.todo.code, standard_metadata.ingress_port, kind, last,
                              0x010203040506});
    }

    table todo {
        key = { hdr.todo.code: exact @name("code"); }
        actions = {
            forward; drop; multicast; clone_packet; clone_and_drop; clone_at_the_end;
            again_at_once; round_again; cut_to; learn;
        }
        default_action = drop();
        counters = entries_hit;
        size = 64;
    }
    action metered() {
        by_entry.read(meta.colour);
    }

    table limits {
        key = { hdr.todo.code: ternary @name("code"); }
        actions = { metered; NoAction; }
        const default_action = NoAction();
        meters = by_entry;
        size = 16;
    }

    apply {
        hdr.todo.passes = hdr.todo.passes + 1;
        hdr.todo.seen_kind = (bit<8>)standard_metadata.instance_type;
        hdr.todo.seen_port = (bit<8>)standard_metadata.ingress_port;
        hdr.todo.seen_kept = meta.kept;
        hdr.todo.seen_lost = meta.lost;
        hdr.todo.length = (bit<8>)standard_metadata.packet_length;
        meta.kept = meta.kept + 5;
        meta.kept_too = 9;
        meta.lost = meta.lost + 7;
        todo.apply();
        limits.apply();
        bit<2> colour;
        by_code.execute_meter((bit<32>)hdr.todo.code, colour);
        hdr.todo.colour = 2w0 ++ meta.colour ++ 2w0 ++ colour;
        by_port.execute_meter((bit<32>)(standard_metadata.ingress_port & 15), colour);
        if (colour == 2) {
            hdr.todo.colour = 0xFF;
        }
    }
}

control CopiesEgress(inout headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply {
        hdr.todo.seen_kept = hdr.todo.seen_kept + meta.kept;
        hdr.todo.seen_lost = hdr.todo.seen_lost + meta.lost + meta.kept_too;
        if (meta.clone_again == 1) {
            clone_preserving_field_list(CloneType.E2E, (bit<32>)meta.clone_session, 2);
        }
        if (meta.again == 1) {
            recirculate_preserving_field_list(1);
        } else {
            hdr.trail.setValid();
            hdr.trail.kind = (bit<8>)standard_metadata.instance_type;
            hdr.trail.rid = standard_metadata.egress_rid;
        }
        if (meta.cut != 0) {
            truncate((bit<32>)meta.cut);
        }
    }
}

control CopiesCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control CopiesDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.trail);
        packet.emit(hdr.todo);
    }
}

V1Switch(CopiesParser(), CopiesVerify(), CopiesIngress(), CopiesEgress(), CopiesCompute(),
         CopiesDeparser()) main;
