/* Counts packets twice in egress: in one action, and read in one action and written in another.
 * BMv2 locks a register for one action, so with ports in parallel only the first count is right;
 * that it is wrong shows that a test with ports in parallel can find such a fault. The two files
 * beside it are made by p4c-bm2-ss --p4runtime-files split.p4info.txtpb -o split.json split.p4 */
#include <core.p4>
#include <v1model.p4>

header tally_t {
    bit<8>  port;
    bit<8>  ask;
    bit<32> whole;
    bit<32> torn;
}

struct headers_t {
    tally_t tally;
}

struct metadata_t {
    bit<32> seen;
    bit<32> busy;
}

parser SplitParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.tally);
        transition accept;
    }
}

control SplitVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SplitIngress(inout headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = (bit<9>)hdr.tally.port;
    }
}

#define PASS(i) hash(meta.busy, HashAlgorithm.crc32, 32w0, \
                     { meta.busy, meta.seen, 32w##i }, 64w0x100000000);

control SplitEgress(inout headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    register<bit<32>>(1) whole;
    register<bit<32>>(1) torn;

    action count_whole() {
        bit<32> seen;
        whole.read(seen, 0);
        whole.write(0, seen + 1);
    }
    action read_torn() {
        torn.read(meta.seen, 0);
    }
    // Time for another port's packet to come in between.
    action pass_time() {
        PASS(1) PASS(2) PASS(3) PASS(4) PASS(5) PASS(6) PASS(7) PASS(8)
        PASS(9) PASS(10) PASS(11) PASS(12) PASS(13) PASS(14) PASS(15) PASS(16)
        PASS(17) PASS(18) PASS(19) PASS(20) PASS(21) PASS(22) PASS(23) PASS(24)
    }
    action write_torn() {
        torn.write(0, meta.seen + 1);
    }
    action answer() {
        whole.read(hdr.tally.whole, 0);
        torn.read(hdr.tally.torn, 0);
    }
    table one_action {
        actions = { count_whole; }
        const default_action = count_whole();
    }
    table first_action {
        actions = { read_torn; }
        const default_action = read_torn();
    }
    table between {
        actions = { pass_time; }
        const default_action = pass_time();
    }
    table second_action {
        actions = { write_torn; }
        const default_action = write_torn();
    }

    apply {
        if (hdr.tally.ask == 1) {
            answer();
        } else {
            one_action.apply();
            first_action.apply();
            between.apply();
            second_action.apply();
        }
    }
}

control SplitCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SplitDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.tally);
    }
}

V1Switch(SplitParser(), SplitVerify(), SplitIngress(), SplitEgress(), SplitCompute(),
         SplitDeparser()) main;
