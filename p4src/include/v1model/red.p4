// RED on the egress queue at dequeue: nothing up to q_min, p_max * (q - q_min) / (q_max - q_min)
// between, everything above q_max. Depths in packets.

control Red(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action set_red(qdepth_t q_min, qdepth_t q_max, bit<16> p_max, gap_t gap) {
        qdepth_t depth = standard_metadata.deq_qdepth;
        // A queue deeper than that has to come down, whatever the flows need to recover.
        if ((bit<20>)depth <= (bit<20>)q_max << 1) {
            meta.mark_gap = gap;
        }
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

// Marks on packets of jobs, by RED or the marker, are at least mark_gap apart at a port: a burst of
// them cuts a flow many times before its queue has drained. The rule is that of
// ringstep.protocol.red. The read-modify-write is one action, see marker.p4.
control Spacing(in job_t job, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    register<clock_t>(MAX_PORTS) mark_next;
    counter(MAX_PORTS, CounterType.packets) port_spared;

    action space() {
        bit<32> port = (bit<32>)standard_metadata.egress_port;
        clock_t now = standard_metadata.egress_global_timestamp;
        clock_t next;
        mark_next.read(next, port);
        if (now < next) {
            meta.marker_mark = 0;
            meta.red_mark = 0;
            port_spared.count(port);
        } else {
            mark_next.write(port, now + (clock_t)meta.mark_gap);
        }
    }

    apply {
        if (meta.is_ect == 1 && job != NO_JOB && meta.mark_gap != 0
                && (meta.marker_mark == 1 || meta.red_mark == 1)) {
            space();
        }
    }
}
