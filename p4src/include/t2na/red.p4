// RED on the egress queue at dequeue: nothing up to q_min, p_max * (q - q_min) / (q_max - q_min)
// between, everything above q_max. The division is one of logarithms; see log2.p4.

control Red(inout egress_md_t meta, in egress_intrinsic_metadata_t eg_intr_md) {
    Random<random_t>() random;
    Log2Random() log_random;
    Log2Random() log_share;
    Log2Depth() log_span;
    Log2Depth() log_excess;

    bit<32> bottom = 0;
    bit<32> top = 0;
    bit<32> share = 0;
    bit<32> excess = 0;     // depth - q_min
    bit<32> beyond = 0;     // depth - q_max
    bit<32> span = 0;
    bit<32> r = 0;
    bit<16> log_r = 0;
    bit<16> log_p = 0;
    bit<16> log_s = 0;
    bit<16> log_x = 0;
    bit<16> left = 0;
    bit<16> right = 0;
    bit<1> no_r = 0;
    bit<1> no_p = 0;
    bit<1> no_s = 0;
    bit<1> no_x = 0;

    action set_red(qdepth_t q_min, qdepth_t q_max, bit<16> p_max) {
        bottom = (bit<32>)q_min;
        top = (bit<32>)q_max;
        share = (bit<32>)p_max;
    }

    table red {
        key = { eg_intr_md.egress_port : exact @name("egress_port"); }
        actions = { set_red; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    apply {
        r = (bit<32>)random.get();
        if (red.apply().hit) {
            excess = meta.depth |-| bottom;
            beyond = meta.depth |-| top;
            span = top |-| bottom;
            log_random.apply(r, log_r, no_r);
            log_share.apply(share, log_p, no_p);
            log_span.apply(span, log_s, no_s);
            log_excess.apply(excess, log_x, no_x);
            left = log_r |+| log_s;
            right = log_p |+| log_x;
            right = right |-| left;
            if (beyond != 0 || (no_p == 0 && no_x == 0 && right != 0)) {
                meta.red_mark = 1;
            }
        }
    }
}
