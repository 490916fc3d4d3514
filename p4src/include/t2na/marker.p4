// The marker: ringstep.protocol.marker, step by step (the numbers are those of its docstrings).
//
// A packet has one access to each register, and what it learns there serves later stages only. The
// reference's order of steps fits that: the generation decides about the window, both about the
// position, the position about what is counted, the counts about alpha. So each register is one
// RegisterAction away from the reference, and a table of const entries in front of it says which.
//
// P = k * alpha * psn / psn_rec is compared in logarithms; see log2.p4.

const bit<2> PASS = 0;
const bit<2> FOLLOW = 1;
const bit<2> READ = 2;

struct anchor_t {
    bit<32> owner;      // generation ++ 0 ++ step
    serial_t base;
}

struct position_t {
    progress_t psn_rec;
    signed_serial_t step_min;
}

// cnt_op against tau, as a balance: + (tau_den - tau_num) for a packet that outpaces, - tau_num for
// any other. So cnt_op >= tau * cnt_total where it is not negative.
struct window_t {
    int<32> total;
    int<32> balance;
}

control Marker(inout t2na_headers_t hdr,
               inout egress_md_t meta,
               in egress_intrinsic_metadata_t eg_intr_md,
               in egress_intrinsic_metadata_from_parser_t eg_prsr_md) {
    // --- parameters

    int<32> sample;

    action set_params(generation_t generation, step_t step_mask, step_t step_sign,
                      bit<1> anchored, psn_t packets_per_step, k_t k, bit<8> tau_num,
                      bit<8> tau_den, bit<32> t_win, bit<16> n_sample, psn_t n_warmup,
                      alpha_t alpha_max, qdepth_t q_min, bit<1> enabled) {
        meta.params.generation = generation;
        meta.params.step_mask = step_mask;
        // The sign is where it is by itself, see serial_t.
        meta.params.anchored = anchored;
        meta.params.packets_per_step = packets_per_step;
        meta.params.k = k;
        meta.params.tau_num = tau_num;
        meta.params.tau_den = tau_den;
        meta.params.t_win = t_win;
        meta.params.n_sample = n_sample;
        meta.params.n_warmup = n_warmup;
        meta.params.alpha_max = alpha_max;
        meta.params.q_min = q_min;
        meta.params.enabled = enabled;
        meta.owner_high = generation ++ 24w0;
        meta.step_mask = (bit<32>)step_mask;
        meta.per_step = (bit<32>)packets_per_step;
        meta.k = (bit<32>)k;
        meta.tau_num = (bit<32>)tau_num;
        meta.tau_den = (bit<32>)tau_den;
        meta.warmup = (bit<32>)n_warmup;
        meta.q_min = (bit<32>)q_min;
        sample = (int<32>)(bit<32>)n_sample;
    }

    table job_params {
        key = { hdr.bridge.job : exact @name("job"); }
        actions = { set_params; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }

    action set_block(block_t block) {
        meta.block = block;
    }

    table block_map {
        key = {
            hdr.bridge.job : exact @name("job");
            eg_intr_md.egress_port : exact @name("egress_port");
        }
        actions = { set_block; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    bit<2> task = PASS;

    // --- where the packet stands: its step, one step, the step after it

    bit<32> tag = 0;
    serial_t step = 0;
    serial_t unit = 0;
    serial_t next = 0;

    action align_2() { step = tag << 30; unit = 1 << 30; }
    action align_3() { step = tag << 29; unit = 1 << 29; }
    action align_4() { step = tag << 28; unit = 1 << 28; }
    action align_5() { step = tag << 27; unit = 1 << 27; }
    action align_6() { step = tag << 26; unit = 1 << 26; }
    action align_7() { step = tag << 25; unit = 1 << 25; }
    action align_8() { step = tag << 24; unit = 1 << 24; }
    action align_9() { step = tag << 23; unit = 1 << 23; }
    action align_10() { step = tag << 22; unit = 1 << 22; }
    action align_11() { step = tag << 21; unit = 1 << 21; }
    action align_12() { step = tag << 20; unit = 1 << 20; }
    action align_13() { step = tag << 19; unit = 1 << 19; }
    action align_14() { step = tag << 18; unit = 1 << 18; }

    table align_step {
        key = { meta.params.step_mask : exact; }
        actions = {
            align_2; align_3; align_4; align_5; align_6; align_7; align_8; align_9; align_10;
            align_11; align_12; align_13; align_14; @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            0x0003 : align_2();
            0x0007 : align_3();
            0x000f : align_4();
            0x001f : align_5();
            0x003f : align_6();
            0x007f : align_7();
            0x00ff : align_8();
            0x01ff : align_9();
            0x03ff : align_10();
            0x07ff : align_11();
            0x0fff : align_12();
            0x1fff : align_13();
            0x3fff : align_14();
        }
    }

    // --- progress within the step: four anchors per job, of which a packet reads and writes one

    Register<anchor_t, job_t>(MAX_JOB_SLOTS) anchors_0;
    Register<anchor_t, job_t>(MAX_JOB_SLOTS) anchors_1;
    Register<anchor_t, job_t>(MAX_JOB_SLOTS) anchors_2;
    Register<anchor_t, job_t>(MAX_JOB_SLOTS) anchors_3;

    bit<32> owner = 0;
    serial_t psn = 0;
    // Each anchor's own, so that the four registers can lie in one stage; read only where written.
    serial_t base_0;
    serial_t base_1;
    serial_t base_2;
    serial_t base_3;
    serial_t distance = 0;     // from the anchor
    serial_t progress = 0;     // one bit lower, see progress_t

    action measure_0() { distance = psn - base_0; }
    action measure_1() { distance = psn - base_1; }
    action measure_2() { distance = psn - base_2; }
    action measure_3() { distance = psn - base_3; }
    action measure_from_0() { distance = psn; }
    action stands_still() { progress = 0; }
    action moves() { progress = distance >> 1; }

    table measure {
        key = {
            meta.params.anchored : ternary;
            meta.tag[1:0] : ternary @name("slot");
        }
        actions = { measure_0; measure_1; measure_2; measure_3; measure_from_0; }
        const default_action = measure_from_0();
        const entries = {
            (1, 0) : measure_0();
            (1, 1) : measure_1();
            (1, 2) : measure_2();
            (1, 3) : measure_3();
        }
        size = 4;
    }

    // Behind the anchor counts as no progress.
    table find_progress {
        key = {
            meta.params.anchored : ternary;
            distance : ternary;
        }
        actions = { stands_still; moves; }
        const default_action = moves();
        const entries = {
            (1, 0x80000000 &&& 0x80000000) : stands_still();
        }
        size = 4;
    }

    RegisterAction<anchor_t, job_t, serial_t>(anchors_0) drop_anchor_0 = {
        void apply(inout anchor_t value, out serial_t found) {
            if (value.owner != owner) {
                value.owner = owner;
                value.base = psn;
            }
            found = value.base;
        }
    };

    RegisterAction<anchor_t, job_t, serial_t>(anchors_1) drop_anchor_1 = {
        void apply(inout anchor_t value, out serial_t found) {
            if (value.owner != owner) {
                value.owner = owner;
                value.base = psn;
            }
            found = value.base;
        }
    };

    RegisterAction<anchor_t, job_t, serial_t>(anchors_2) drop_anchor_2 = {
        void apply(inout anchor_t value, out serial_t found) {
            if (value.owner != owner) {
                value.owner = owner;
                value.base = psn;
            }
            found = value.base;
        }
    };

    RegisterAction<anchor_t, job_t, serial_t>(anchors_3) drop_anchor_3 = {
        void apply(inout anchor_t value, out serial_t found) {
            if (value.owner != owner) {
                value.owner = owner;
                value.base = psn;
            }
            found = value.base;
        }
    };

    action take_anchor_0() { base_0 = drop_anchor_0.execute(hdr.bridge.job); }
    action take_anchor_1() { base_1 = drop_anchor_1.execute(hdr.bridge.job); }
    action take_anchor_2() { base_2 = drop_anchor_2.execute(hdr.bridge.job); }
    action take_anchor_3() { base_3 = drop_anchor_3.execute(hdr.bridge.job); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction3<anchor_t, job_t, generation_t, step_t, serial_t>(anchors_0) see_anchor_0 = {
        void apply(inout anchor_t value, out generation_t generation, out step_t at,
                   out serial_t begun) {
            generation = value.owner[31:24];
            at = value.owner[15:0];
            begun = value.base;
        }
    };

    action read_anchor_0() {
        hdr.anchor0.generation =
            see_anchor_0.execute(hdr.bridge.job, hdr.anchor0.step, hdr.anchor0.base);
    }

    RegisterAction3<anchor_t, job_t, generation_t, step_t, serial_t>(anchors_1) see_anchor_1 = {
        void apply(inout anchor_t value, out generation_t generation, out step_t at,
                   out serial_t begun) {
            generation = value.owner[31:24];
            at = value.owner[15:0];
            begun = value.base;
        }
    };

    action read_anchor_1() {
        hdr.anchor1.generation =
            see_anchor_1.execute(hdr.bridge.job, hdr.anchor1.step, hdr.anchor1.base);
    }

    RegisterAction3<anchor_t, job_t, generation_t, step_t, serial_t>(anchors_2) see_anchor_2 = {
        void apply(inout anchor_t value, out generation_t generation, out step_t at,
                   out serial_t begun) {
            generation = value.owner[31:24];
            at = value.owner[15:0];
            begun = value.base;
        }
    };

    action read_anchor_2() {
        hdr.anchor2.generation =
            see_anchor_2.execute(hdr.bridge.job, hdr.anchor2.step, hdr.anchor2.base);
    }

    RegisterAction3<anchor_t, job_t, generation_t, step_t, serial_t>(anchors_3) see_anchor_3 = {
        void apply(inout anchor_t value, out generation_t generation, out step_t at,
                   out serial_t begun) {
            generation = value.owner[31:24];
            at = value.owner[15:0];
            begun = value.base;
        }
    };

    action read_anchor_3() {
        hdr.anchor3.generation =
            see_anchor_3.execute(hdr.bridge.job, hdr.anchor3.step, hdr.anchor3.base);
    }

#endif

    table update_anchor_0 {
        key = {
            task : ternary;
            meta.params.anchored : ternary;
            meta.tag[1:0] : ternary @name("slot");
        }
        actions = {
            take_anchor_0;
#ifndef RINGSTEP_MARKER_ONLY
            read_anchor_0;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, 0) : take_anchor_0();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _) : read_anchor_0();
#endif
        }
    }

    table update_anchor_1 {
        key = {
            task : ternary;
            meta.params.anchored : ternary;
            meta.tag[1:0] : ternary @name("slot");
        }
        actions = {
            take_anchor_1;
#ifndef RINGSTEP_MARKER_ONLY
            read_anchor_1;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, 1) : take_anchor_1();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _) : read_anchor_1();
#endif
        }
    }

    table update_anchor_2 {
        key = {
            task : ternary;
            meta.params.anchored : ternary;
            meta.tag[1:0] : ternary @name("slot");
        }
        actions = {
            take_anchor_2;
#ifndef RINGSTEP_MARKER_ONLY
            read_anchor_2;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, 2) : take_anchor_2();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _) : read_anchor_2();
#endif
        }
    }

    table update_anchor_3 {
        key = {
            task : ternary;
            meta.params.anchored : ternary;
            meta.tag[1:0] : ternary @name("slot");
        }
        actions = {
            take_anchor_3;
#ifndef RINGSTEP_MARKER_ONLY
            read_anchor_3;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, 3) : take_anchor_3();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _) : read_anchor_3();
#endif
        }
    }

    // --- 1. The generation: a block that holds another one starts afresh.

    Register<generation_t, block_t>(MAX_BLOCKS, 0) block_generation;
    bit<1> fresh = 0;

    RegisterAction<generation_t, block_t, bit<1>>(block_generation) renew = {
        void apply(inout generation_t value, out bit<1> renewed) {
            renewed = 0;
            if (value != meta.params.generation) {
                renewed = 1;
            }
            value = meta.params.generation;
        }
    };

    action renew_generation() { fresh = renew.execute(meta.block); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction<generation_t, block_t, generation_t>(block_generation) see_generation = {
        void apply(inout generation_t value, out generation_t found) { found = value; }
    };

    action read_generation() { hdr.reply.generation = see_generation.execute(meta.block); }
#endif

    table update_generation {
        key = { task : exact; }
        actions = {
            renew_generation;
#ifndef RINGSTEP_MARKER_ONLY
            read_generation;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            FOLLOW : renew_generation();
#ifndef RINGSTEP_MARKER_ONLY
            READ : read_generation();
#endif
        }
    }

    // --- 2. The end of the window: compare-and-swap of its start, on a clock that wraps.

    Register<signed_serial_t, block_t>(MAX_BLOCKS, 0) window_start;
    tick_t less = 0;
    tick_t lesser = 0;
    signed_serial_t horizon = 0;    // t_win, then now - t_win
    bit<1> over = 0;

    // A window that began at or before `horizon`, or in the second half of the clock's range after
    // `meta.soon`, is over; one that began up to SLACK ticks after now did so in a packet that
    // another port's parser stamped earlier.
    RegisterAction<signed_serial_t, block_t, bit<1>>(window_start) close = {
        void apply(inout signed_serial_t value, out bit<1> closed) {
            closed = 0;
            if (value - horizon <= 0 || value - meta.soon > 0) {
                closed = 1;
                value = meta.soon - SLACK;
            }
        }
    };

    RegisterAction<signed_serial_t, block_t, bit<1>>(window_start) open = {
        void apply(inout signed_serial_t value) { value = meta.soon - SLACK; }
    };

    // A microsecond is 4 - 1/16 - 1/32 ticks.
    action look_at_clock() { meta.now = eg_prsr_md.global_tstamp[39:8]; }
    action scale() {
        horizon = (signed_serial_t)(meta.params.t_win << 2);
        less = meta.params.t_win >> 4;
        lesser = meta.params.t_win >> 5;
    }
    action scale_no_more() { horizon = 0x7fffffff; }
    action look_ahead() {
        meta.soon = (signed_serial_t)meta.now + SLACK;
        horizon = (signed_serial_t)meta.now - horizon;
        less = less + lesser;
    }
    action look_back() { horizon = horizon + (signed_serial_t)less; }

    action close_window() { over = close.execute(meta.block); }
    action open_window() { open.execute(meta.block); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction<signed_serial_t, block_t, signed_serial_t>(window_start) see_start = {
        void apply(inout signed_serial_t value, out signed_serial_t found) { found = value; }
    };

    action read_start() { hdr.reply.win_start = (tick_t)see_start.execute(meta.block); }
#endif

    table update_window {
        key = {
            task : exact;
            fresh : exact;
        }
        actions = {
            close_window;
            open_window;
#ifndef RINGSTEP_MARKER_ONLY
            read_start;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 0) : close_window();
            (FOLLOW, 1) : open_window();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, 0) : read_start();
#endif
        }
    }

    // --- 4. Where the laggards are.

    // Half of the blocks in each of two registers: all of them with 64 bits each would need more
    // memory than one stage lets one register have.
    Register<position_t, half_t>(MAX_BLOCKS >> 1) position_0;
    Register<position_t, half_t>(MAX_BLOCKS >> 1) position_1;
    bit<32> missing = 0;       // packets that a LAST at the anchor lacks to end the step
    bit<32> lacking = 0;       // and this one
    bit<1> ends_step = 0;
    signed_serial_t new_step = 0;    // what the packet has to say
    progress_t new_psn = 0;
    signed_serial_t step_min = 0;    // before the packet
    serial_t psn_rec = 0;

    RegisterAction2<position_t, half_t, signed_serial_t, serial_t>(position_0) follow_0 = {
        void apply(inout position_t value, out signed_serial_t old_step, out serial_t old_psn) {
            old_step = value.step_min;
            old_psn = (serial_t)value.psn_rec;
            if (value.step_min - new_step > 0) {
                value.psn_rec = new_psn;
                value.step_min = new_step;
            } else if (value.step_min == new_step && new_psn > value.psn_rec) {
                value.psn_rec = new_psn;
            }
        }
    };

    // The same after psn_rec = 0.
    RegisterAction2<position_t, half_t, signed_serial_t, serial_t>(position_0) restart_0 = {
        void apply(inout position_t value, out signed_serial_t old_step, out serial_t old_psn) {
            old_step = value.step_min;
            old_psn = 0;
            if (value.step_min - new_step >= 0) {
                value.psn_rec = new_psn;
                value.step_min = new_step;
            } else {
                value.psn_rec = 0;
            }
        }
    };

    RegisterAction2<position_t, half_t, signed_serial_t, serial_t>(position_0) replace_0 = {
        void apply(inout position_t value, out signed_serial_t old_step, out serial_t old_psn) {
            old_step = value.step_min;
            old_psn = 0;
            value.psn_rec = new_psn;
            value.step_min = new_step;
        }
    };

    action follow_position_0() { step_min = follow_0.execute(meta.block[14:0], psn_rec); }
    action restart_position_0() { step_min = restart_0.execute(meta.block[14:0], psn_rec); }
    action replace_position_0() { step_min = replace_0.execute(meta.block[14:0], psn_rec); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction2<position_t, half_t, step_t, serial_t>(position_0) see_position_0 = {
        void apply(inout position_t value, out step_t old_step, out serial_t old_psn) {
            old_step = value.step_min[31:16];
            old_psn = (serial_t)value.psn_rec;
        }
    };

    action read_position_0() {
        hdr.reply.step_min = see_position_0.execute(meta.block[14:0], hdr.reply.psn_rec);
    }
#endif

    table update_position_0 {
        key = {
            task : ternary;
            fresh : ternary;
            ends_step : ternary;
            over : ternary;
        }
        actions = {
            follow_position_0;
            restart_position_0;
            replace_position_0;
#ifndef RINGSTEP_MARKER_ONLY
            read_position_0;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, _, _) : replace_position_0();
            (FOLLOW, 0, 1, _) : replace_position_0();
            (FOLLOW, 0, 0, 1) : restart_position_0();
            (FOLLOW, 0, 0, 0) : follow_position_0();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _, _) : read_position_0();
#endif
        }
    }

    RegisterAction2<position_t, half_t, signed_serial_t, serial_t>(position_1) follow_1 = {
        void apply(inout position_t value, out signed_serial_t old_step, out serial_t old_psn) {
            old_step = value.step_min;
            old_psn = (serial_t)value.psn_rec;
            if (value.step_min - new_step > 0) {
                value.psn_rec = new_psn;
                value.step_min = new_step;
            } else if (value.step_min == new_step && new_psn > value.psn_rec) {
                value.psn_rec = new_psn;
            }
        }
    };

    // The same after psn_rec = 0.
    RegisterAction2<position_t, half_t, signed_serial_t, serial_t>(position_1) restart_1 = {
        void apply(inout position_t value, out signed_serial_t old_step, out serial_t old_psn) {
            old_step = value.step_min;
            old_psn = 0;
            if (value.step_min - new_step >= 0) {
                value.psn_rec = new_psn;
                value.step_min = new_step;
            } else {
                value.psn_rec = 0;
            }
        }
    };

    RegisterAction2<position_t, half_t, signed_serial_t, serial_t>(position_1) replace_1 = {
        void apply(inout position_t value, out signed_serial_t old_step, out serial_t old_psn) {
            old_step = value.step_min;
            old_psn = 0;
            value.psn_rec = new_psn;
            value.step_min = new_step;
        }
    };

    action follow_position_1() { step_min = follow_1.execute(meta.block[14:0], psn_rec); }
    action restart_position_1() { step_min = restart_1.execute(meta.block[14:0], psn_rec); }
    action replace_position_1() { step_min = replace_1.execute(meta.block[14:0], psn_rec); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction2<position_t, half_t, step_t, serial_t>(position_1) see_position_1 = {
        void apply(inout position_t value, out step_t old_step, out serial_t old_psn) {
            old_step = value.step_min[31:16];
            old_psn = (serial_t)value.psn_rec;
        }
    };

    action read_position_1() {
        hdr.reply.step_min = see_position_1.execute(meta.block[14:0], hdr.reply.psn_rec);
    }
#endif

    table update_position_1 {
        key = {
            task : ternary;
            fresh : ternary;
            ends_step : ternary;
            over : ternary;
        }
        actions = {
            follow_position_1;
            restart_position_1;
            replace_position_1;
#ifndef RINGSTEP_MARKER_ONLY
            read_position_1;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, _, _) : replace_position_1();
            (FOLLOW, 0, 1, _) : replace_position_1();
            (FOLLOW, 0, 0, 1) : restart_position_1();
            (FOLLOW, 0, 0, 0) : follow_position_1();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _, _) : read_position_1();
#endif
        }
    }

    action expect() { missing = meta.per_step << 8; }
    action expect_one_less() { missing = missing |-| 256; }
    action subtract_distance() { lacking = missing |-| distance; }

    action end_step() {
        ends_step = 1;
        new_step = (signed_serial_t)next;
        new_psn = 0;
    }

    action go_on() {
        new_step = (signed_serial_t)step;
        new_psn = (progress_t)progress;
    }

    table finish_step {
        key = {
            meta.is_last : ternary;
            meta.params.anchored : ternary;
            distance : ternary;
            missing : ternary;
            lacking : ternary;
        }
        actions = { end_step; go_on; }
        const default_action = go_on();
        const entries = {
            (1, 1, 0x80000000 &&& 0x80000000, 0, _) : end_step();
            (1, 1, 0x80000000 &&& 0x80000000, _, _) : go_on();
            (1, _, _, _, 0) : end_step();
        }
        size = 4;
    }

    // --- 3. What is counted, and how step_min moved.

    Counter<bit<32>, job_t>(MAX_JOB_SLOTS, CounterType_t.PACKETS) job_data;
    Counter<bit<32>, job_t>(MAX_JOB_SLOTS, CounterType_t.PACKETS) job_corrections;
    Counter<bit<32>, job_t>(MAX_JOB_SLOTS, CounterType_t.PACKETS) job_advances;

    serial_t lead = 0;         // from step_min to the packet's step
    serial_t next_lead = 0;    // from step_min to the step after it
    bit<1> outpacing = 0;
    int<32> gain = 0;          // of the balance
    int<32> loss = 0;

    action weigh() {
        gain = (int<32>)(meta.tau_den - meta.tau_num);
        loss = (int<32>)(0 - meta.tau_num);
    }

    action compare_leads() {
        lead = step - (serial_t)step_min;
        next_lead = next - (serial_t)step_min;
    }

    action outpaces() {
        outpacing = 1;
    }

    action keeps_pace() {
        gain = loss;
    }

    // Ahead is a positive difference.
    table compare_step {
        key = {
            fresh : ternary;
            lead : ternary;
        }
        actions = { outpaces; keeps_pace; }
        const default_action = keeps_pace();
        const entries = {
            (1, _) : keeps_pace();
            (0, 0) : keeps_pace();
            (0, 0x80000000 &&& 0x80000000) : keeps_pace();
            (0, _) : outpaces();
        }
    }

    action stays() { }
    action advance() { job_advances.count(hdr.bridge.job); }
    action correct() { job_corrections.count(hdr.bridge.job); }

    // Of two steps half the space apart neither is ahead.
    table count_advance {
        key = {
            task : ternary;
            fresh : ternary;
            ends_step : ternary;
            next_lead : ternary;
        }
        actions = { advance; stays; }
        const default_action = stays();
        const entries = {
            (FOLLOW, 1, 1, _) : advance();
            (FOLLOW, 0, 1, 0) : stays();
            (FOLLOW, 0, 1, 0 &&& 0x80000000) : advance();
        }
    }

    table count_correction {
        key = {
            task : ternary;
            fresh : ternary;
            ends_step : ternary;
            lead : ternary;
            next_lead : ternary;
        }
        actions = { correct; stays; }
        const default_action = stays();
        const entries = {
            (FOLLOW, 0, 1, _, 0x80000000) : stays();
            (FOLLOW, 0, 1, _, 0x80000000 &&& 0x80000000) : correct();
            (FOLLOW, 0, 0, 0x80000000, _) : stays();
            (FOLLOW, 0, 0, 0x80000000 &&& 0x80000000, _) : correct();
        }
    }

    Register<window_t, half_t>(MAX_BLOCKS >> 1) window_0;
    Register<window_t, half_t>(MAX_BLOCKS >> 1) window_1;
    bit<1> sampled = 0;        // the window that ended saw more than n_sample packets,
    bit<1> misaligned = 0;     // and at least tau of them outpacing

    RegisterAction<window_t, half_t, bit<1>>(window_0) count_0 = {
        void apply(inout window_t value) {
            value.total = value.total + 1;
            value.balance = value.balance |+| gain;
        }
    };

    RegisterAction2<window_t, half_t, bit<1>, bit<1>>(window_0) recount_0 = {
        void apply(inout window_t value, out bit<1> many, out bit<1> above) {
            many = 0;
            above = 0;
            if (value.total > sample) {
                many = 1;
            }
            if (value.balance >= 0) {
                above = 1;
            }
            value.total = 1;
            value.balance = gain;
        }
    };

    action count_on_0() { count_0.execute(meta.block[14:0]); }
    action count_afresh_0() { sampled = recount_0.execute(meta.block[14:0], misaligned); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction<window_t, half_t, count_t>(window_0) see_total_0 = {
        void apply(inout window_t value, out count_t found) { found = (count_t)value.total; }
    };

    action read_total_0() { hdr.reply.cnt_total = see_total_0.execute(meta.block[14:0]); }
#endif

    table update_counts_0 {
        key = {
            task : ternary;
            fresh : ternary;
            over : ternary;
        }
        actions = {
            count_on_0;
            count_afresh_0;
#ifndef RINGSTEP_MARKER_ONLY
            read_total_0;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, _) : count_afresh_0();
            (FOLLOW, 0, 1) : count_afresh_0();
            (FOLLOW, 0, 0) : count_on_0();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _) : read_total_0();
#endif
        }
    }

    RegisterAction<window_t, half_t, bit<1>>(window_1) count_1 = {
        void apply(inout window_t value) {
            value.total = value.total + 1;
            value.balance = value.balance |+| gain;
        }
    };

    RegisterAction2<window_t, half_t, bit<1>, bit<1>>(window_1) recount_1 = {
        void apply(inout window_t value, out bit<1> many, out bit<1> above) {
            many = 0;
            above = 0;
            if (value.total > sample) {
                many = 1;
            }
            if (value.balance >= 0) {
                above = 1;
            }
            value.total = 1;
            value.balance = gain;
        }
    };

    action count_on_1() { count_1.execute(meta.block[14:0]); }
    action count_afresh_1() { sampled = recount_1.execute(meta.block[14:0], misaligned); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction<window_t, half_t, count_t>(window_1) see_total_1 = {
        void apply(inout window_t value, out count_t found) { found = (count_t)value.total; }
    };

    action read_total_1() { hdr.reply.cnt_total = see_total_1.execute(meta.block[14:0]); }
#endif

    table update_counts_1 {
        key = {
            task : ternary;
            fresh : ternary;
            over : ternary;
        }
        actions = {
            count_on_1;
            count_afresh_1;
#ifndef RINGSTEP_MARKER_ONLY
            read_total_1;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, _) : count_afresh_1();
            (FOLLOW, 0, 1) : count_afresh_1();
            (FOLLOW, 0, 0) : count_on_1();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _) : read_total_1();
#endif
        }
    }

#ifndef RINGSTEP_MARKER_ONLY
    // cnt_op itself, for those who read the state.
    Register<count_t, block_t>(MAX_BLOCKS) outpaced;

    RegisterAction<count_t, block_t, count_t>(outpaced) add_outpaced = {
        void apply(inout count_t value) { value = value + 1; }
    };

    RegisterAction<count_t, block_t, count_t>(outpaced) set_outpaced = {
        void apply(inout count_t value) { value = (count_t)outpacing; }
    };

    RegisterAction<count_t, block_t, count_t>(outpaced) see_outpaced = {
        void apply(inout count_t value, out count_t found) { found = value; }
    };

    action count_outpaced() { add_outpaced.execute(meta.block); }
    action recount_outpaced() { set_outpaced.execute(meta.block); }
    action read_outpaced() { hdr.reply.cnt_op = see_outpaced.execute(meta.block); }

    table update_outpaced {
        key = {
            task : ternary;
            fresh : ternary;
            over : ternary;
            outpacing : ternary;
        }
        actions = { count_outpaced; recount_outpaced; read_outpaced; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, _, _) : recount_outpaced();
            (FOLLOW, 0, 1, _) : recount_outpaced();
            (FOLLOW, 0, 0, 1) : count_outpaced();
            (READ, _, _, _) : read_outpaced();
        }
    }
#endif

    // --- The rest of 2: alpha. Rising under a ceiling of 1 is how a fresh block gets alpha = 1.

    Register<alpha_t, block_t>(MAX_BLOCKS, 0) block_alpha;
    alpha_t ceiling = 0;
    alpha_t whole_n = 0;
    bit<1> strong = 0;         // alpha > N

    RegisterAction<alpha_t, block_t, bit<1>>(block_alpha) hold = {
        void apply(inout alpha_t value, out bit<1> above) {
            above = 0;
            if (value > whole_n) {
                above = 1;
            }
        }
    };

    RegisterAction<alpha_t, block_t, bit<1>>(block_alpha) rise = {
        void apply(inout alpha_t value) {
            if (value < ceiling) {
                value = value + 1;
            } else {
                value = ceiling;
            }
        }
    };

    RegisterAction<alpha_t, block_t, bit<1>>(block_alpha) fall = {
        void apply(inout alpha_t value) {
            if (value > 1) {
                value = value - 1;
            } else {
                value = 1;
            }
        }
    };

    action hold_alpha() { strong = hold.execute(meta.block); }
    action raise_alpha() { rise.execute(meta.block); }
    action lower_alpha() { fall.execute(meta.block); }

#ifndef RINGSTEP_MARKER_ONLY
    RegisterAction<alpha_t, block_t, alpha_t>(block_alpha) see_alpha = {
        void apply(inout alpha_t value, out alpha_t found) { found = value; }
    };

    action read_alpha() { hdr.reply.alpha = see_alpha.execute(meta.block); }
#endif

    table update_alpha {
        key = {
            task : ternary;
            fresh : ternary;
            over : ternary;
            sampled : ternary;
            misaligned : ternary;
        }
        actions = {
            hold_alpha;
            raise_alpha;
            lower_alpha;
#ifndef RINGSTEP_MARKER_ONLY
            read_alpha;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, _, _, _) : raise_alpha();
            (FOLLOW, 0, 1, 1, 1) : raise_alpha();
            (FOLLOW, 0, 1, 1, 0) : lower_alpha();
            (FOLLOW, 0, _, _, _) : hold_alpha();
#ifndef RINGSTEP_MARKER_ONLY
            (READ, _, _, _, _) : read_alpha();
#endif
        }
    }

    // --- 5. The mark. A packet that ends a window never bears one: psn_rec is 0 then.

    Random<random_t>() random;
    Log2Random() log_random;
    Log2Gain() log_gain;
    Log2Psn() log_psn;
    Log2Psn() log_rec;
    Exp2() exp;

    Counter<bit<32>, job_t>(MAX_JOB_SLOTS, CounterType_t.PACKETS) job_marks;
    Counter<bit<32>, job_t>(MAX_JOB_SLOTS, CounterType_t.PACKETS) job_red_marks;

    bit<32> r = 0;
    bit<16> log_r = 0;
    bit<16> log_k = 0;
    bit<16> log_p = 0;
    bit<16> log_s = 0;
    bit<16> above = 0;
    bit<16> below = 0;
    bit<16> log_n = 0;
    bit<1> no_r = 0;
    bit<1> no_k = 0;
    bit<1> no_p = 0;
    bit<1> no_s = 0;
    bit<32> shallow = 0;       // what the queue lacks of q_min

    action add_logs() {
        above = log_r |+| log_s;
        below = log_k |+| log_p;
    }
    action subtract_logs() { log_n = above |-| below; }
    // What psn_rec lacks of the warm-up, in the units of psn_rec.
    action scale_warmup() { meta.warmup = meta.warmup << 7; }
    action add_one() { meta.warmup = meta.warmup |+| 128; }
    action lack_depth() { shallow = meta.q_min |-| meta.depth; }
    action lack_psns() { meta.warmup = meta.warmup |-| psn_rec; }
    action cap_alpha() { ceiling = meta.params.alpha_max; }
    action cap_fresh_alpha() { ceiling = 1; }

    action mark() { meta.marker_mark = 1; }

    table decide {
        key = {
            task : ternary;
            meta.params.enabled : ternary;
            outpacing : ternary;
            ends_step : ternary;
            over : ternary;
            strong : ternary;
            no_k : ternary;
            no_p : ternary;
            meta.warmup : ternary;
            shallow : ternary;
        }
        actions = { mark; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FOLLOW, 1, 1, 0, 0, 1, 0, 0, 0, 0) : mark();
        }
    }

    action count_mark() { job_marks.count(hdr.bridge.job); }
    action count_red_mark() { job_red_marks.count(hdr.bridge.job); }

#ifndef RINGSTEP_MARKER_ONLY
    // --- The reply to a read request. The registers went into it above; here they are put right.

    action begin_reply() {
        hdr.reply.setValid();
        hdr.reply.request_id = hdr.read_request.request_id;
        hdr.reply.job_pad = 0;
        hdr.reply.job = hdr.read_request.job;
        hdr.reply.block = hdr.read_request.block;
        hdr.reply.now_high = 0;
        hdr.reply.now = meta.now;
        hdr.reply.win_start_high = 0;
        hdr.anchor0.setValid();
        hdr.anchor1.setValid();
        hdr.anchor2.setValid();
        hdr.anchor3.setValid();
        meta.block = hdr.read_request.block;
        task = READ;
    }

    action unalign_psns() {
        hdr.reply.psn_rec = hdr.reply.psn_rec >> 7;
        hdr.anchor0.base = hdr.anchor0.base >> 8;
        hdr.anchor1.base = hdr.anchor1.base >> 8;
        hdr.anchor2.base = hdr.anchor2.base >> 8;
        hdr.anchor3.base = hdr.anchor3.base >> 8;
    }

    action unalign_2() { hdr.reply.step_min = hdr.reply.step_min >> 14; }
    action unalign_3() { hdr.reply.step_min = hdr.reply.step_min >> 13; }
    action unalign_4() { hdr.reply.step_min = hdr.reply.step_min >> 12; }
    action unalign_5() { hdr.reply.step_min = hdr.reply.step_min >> 11; }
    action unalign_6() { hdr.reply.step_min = hdr.reply.step_min >> 10; }
    action unalign_7() { hdr.reply.step_min = hdr.reply.step_min >> 9; }
    action unalign_8() { hdr.reply.step_min = hdr.reply.step_min >> 8; }
    action unalign_9() { hdr.reply.step_min = hdr.reply.step_min >> 7; }
    action unalign_10() { hdr.reply.step_min = hdr.reply.step_min >> 6; }
    action unalign_11() { hdr.reply.step_min = hdr.reply.step_min >> 5; }
    action unalign_12() { hdr.reply.step_min = hdr.reply.step_min >> 4; }
    action unalign_13() { hdr.reply.step_min = hdr.reply.step_min >> 3; }
    action unalign_14() { hdr.reply.step_min = hdr.reply.step_min >> 2; }

    table unalign_step {
        key = { meta.params.step_mask : exact; }
        actions = {
            unalign_2; unalign_3; unalign_4; unalign_5; unalign_6; unalign_7; unalign_8; unalign_9;
            unalign_10; unalign_11; unalign_12; unalign_13; unalign_14; @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            0x0003 : unalign_2();
            0x0007 : unalign_3();
            0x000f : unalign_4();
            0x001f : unalign_5();
            0x003f : unalign_6();
            0x007f : unalign_7();
            0x00ff : unalign_8();
            0x01ff : unalign_9();
            0x03ff : unalign_10();
            0x07ff : unalign_11();
            0x0fff : unalign_12();
            0x1fff : unalign_13();
            0x3fff : unalign_14();
        }
    }
#endif

    action widen() {
        tag = (bit<32>)meta.tag;
        psn = meta.psn ++ 8w0;
    }
    action draw() { r = (bit<32>)random.get(); }
    action take_step() { owner = tag & meta.step_mask; }
    action add_generation() { owner = owner | meta.owner_high; }
    action find_next() { next = step + unit; }

    // An action that needs what another one found is called by itself: the compiler makes a table
    // of each call, but one action, of one stage, of assignments in a row.
    apply {
        widen();
        look_at_clock();
        draw();
        if (job_params.apply().hit) {
            if (hdr.bridge.kind == KIND_ROUTED && hdr.bridge.job != NO_JOB) {
                if (block_map.apply().hit) {
                    task = FOLLOW;
                }
            }
        }
#ifndef RINGSTEP_MARKER_ONLY
        if (hdr.bridge.kind == KIND_READ) {
            begin_reply();
        }
#endif
        align_step.apply();
        weigh();
        take_step();
        add_generation();
        find_next();

        // 1
        update_generation.apply();

        // 2
        if (meta.params.t_win[31:29] == 0) {
            scale();
        } else {
            scale_no_more();
        }
        look_ahead();
        look_back();
        update_window.apply();

        // Progress
        update_anchor_0.apply();
        update_anchor_1.apply();
        update_anchor_2.apply();
        update_anchor_3.apply();
        measure.apply();
        find_progress.apply();

        // 4
        expect();
        expect_one_less();
        subtract_distance();
        finish_step.apply();
        if (meta.block[15:15] == 0) {
            update_position_0.apply();
        } else {
            update_position_1.apply();
        }

        // 3
        compare_leads();
        compare_step.apply();
        if (meta.block[15:15] == 0) {
            update_counts_0.apply();
        } else {
            update_counts_1.apply();
        }
#ifndef RINGSTEP_MARKER_ONLY
        update_outpaced.apply();
#endif
        count_advance.apply();
        count_correction.apply();

        // 5, and the rest of 2
        log_random.apply(r, log_r, no_r);
        log_gain.apply(meta.k, log_k, no_k);
        log_psn.apply(progress, log_p, no_p);
        log_rec.apply(psn_rec, log_s, no_s);
        add_logs();
        subtract_logs();
        exp.apply(log_n, whole_n);
        if (fresh == 1) {
            cap_fresh_alpha();
        } else {
            cap_alpha();
        }
        update_alpha.apply();
        scale_warmup();
        add_one();
        lack_psns();
        lack_depth();
        decide.apply();
        if (task == FOLLOW) {
            job_data.count(hdr.bridge.job);
            if (meta.is_ect == 1) {
                if (meta.marker_mark == 1) {
                    count_mark();
                }
                if (meta.red_mark == 1) {
                    count_red_mark();
                }
            }
        }
#ifndef RINGSTEP_MARKER_ONLY
        if (task == READ) {
            unalign_psns();
            unalign_step.apply();
        }
#endif
    }
}
