// RED on the egress queue at dequeue: nothing up to q_min, p_max * (q - q_min) / (q_max - q_min)
// between, everything above q_max. Depths in packets.

control Red(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action set_red(qdepth_t q_min, qdepth_t q_max, bit<16> p_max) {
        qdepth_t depth = standard_metadata.deq_qdepth;
        if (depth > q_max) {
            meta.red_mark = 1;
        } else if (depth > q_min) {
            random_t r;
            random(r, 0, RANDOM_MAX);
            // r < p_max * (depth - q_min) / (q_max - q_min), without the division.
            bit<40> left = (bit<40>)r * (bit<40>)(q_max - q_min);
            bit<40> right = (bit<40>)p_max * (bit<40>)(depth - q_min);
            if (left < right) {
                meta.red_mark = 1;
            }
        }
    }

    table red {
        key = { standard_metadata.egress_port : exact @name("egress_port"); }
        actions = { set_red; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    apply {
        red.apply();
    }
}
