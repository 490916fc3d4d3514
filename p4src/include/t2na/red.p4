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
    bit<32> far = 0;        // depth - 2 * q_max
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

    action set_red(qdepth_t q_min, qdepth_t q_max, bit<16> p_max, gap_t gap) {
        bottom = (bit<32>)q_min;
        top = (bit<32>)q_max;
        share = (bit<32>)p_max;
        meta.mark_gap = (bit<32>)gap;
    }

    table red {
        key = { eg_intr_md.egress_port : exact @name("egress_port"); }
        actions = { set_red; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }

    action draw() { r = (bit<32>)random.get(); }
    action compare_depth() {
        excess = meta.depth |-| bottom;
        beyond = meta.depth |-| top;
        span = top |-| bottom;
    }
    action compare_far() { far = beyond |-| top; }
    action space_no_more() { meta.mark_gap = 0; }
    action add_logs() {
        left = log_r |+| log_s;
        right = log_p |+| log_x;
    }
    action subtract_logs() { right = right |-| left; }
    action mark() { meta.red_mark = 1; }
    action leave() { }

    table decide {
        key = {
            beyond : ternary;
            no_p : ternary;
            no_x : ternary;
            right : ternary;
        }
        actions = { leave; mark; }
        const default_action = mark();
        const entries = {
            (0, 1, _, _) : leave();
            (0, _, 1, _) : leave();
            (0, 0, 0, 0) : leave();
        }
        size = 4;
    }

    apply {
        draw();
        if (red.apply().hit) {
            compare_depth();
            compare_far();
            // A queue deeper than that has to come down, whatever the flows need to recover.
            if (far != 0) {
                space_no_more();
            }
            log_random.apply(r, log_r, no_r);
            log_share.apply(share, log_p, no_p);
            log_span.apply(span, log_s, no_s);
            log_excess.apply(excess, log_x, no_x);
            add_logs();
            subtract_logs();
            decide.apply();
        }
    }
}

// Marks on packets of jobs, by RED or the marker, are at least mark_gap apart at a port: a burst of
// them cuts a flow many times before its queue has drained.
control Spacing(in job_t job,
                inout egress_md_t meta,
                in egress_intrinsic_metadata_t eg_intr_md) {
    Register<signed_serial_t, port_t>(MAX_PORTS, 0) mark_last;
    Counter<bit<32>, port_t>(MAX_PORTS, CounterType_t.PACKETS) port_spared;
    tick_t less = 0;
    tick_t lesser = 0;
    signed_serial_t horizon = 0;    // mark_gap, then now - mark_gap

    // As a window of the marker is over, see marker.p4.
    RegisterAction<signed_serial_t, port_t, bit<1>>(mark_last) space = {
        void apply(inout signed_serial_t value, out bit<1> apart) {
            apart = 0;
            if (value - horizon <= 0 || value - meta.soon > 0) {
                apart = 1;
                value = meta.soon - SLACK;
            }
        }
    };

    action space_mark() { meta.apart = space.execute(eg_intr_md.egress_port); }

    action spare() { port_spared.count(eg_intr_md.egress_port); }

    // A microsecond is 4 - 1/16 - 1/32 ticks.
    action scale() {
        horizon = (signed_serial_t)(meta.mark_gap << 2);
        less = meta.mark_gap >> 4;
        lesser = meta.mark_gap >> 5;
    }
    action look_ahead() {
        horizon = (signed_serial_t)meta.now - horizon;
        less = less + lesser;
    }
    action look_back() { horizon = horizon + (signed_serial_t)less; }

    apply {
        scale();
        look_ahead();
        look_back();
        if (meta.is_ect == 1 && job != NO_JOB) {
            if (meta.mark_gap != 0) {
                if (meta.marker_mark == 1 || meta.red_mark == 1) {
                    space_mark();
                    if (meta.apart == 0) {
                        spare();
                    }
                }
            }
        }
    }
}
