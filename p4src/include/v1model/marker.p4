// The marker: ringstep.protocol.marker, step by step (the numbers are those of its docstrings).
//
// BMv2 locks a register for one whole action and ignores @atomic, and four egress threads run in
// parallel. So each read-modify-write is one action: anchor_progress over the anchors, follow over
// the seven registers of a block.

control Marker(inout headers_t hdr,
               inout metadata_t meta,
               inout standard_metadata_t standard_metadata) {
    register<step_t>(MAX_BLOCKS) step_min;
    register<psn_t>(MAX_BLOCKS) psn_rec;
    register<alpha_t>(MAX_BLOCKS) alpha;
    register<count_t>(MAX_BLOCKS) cnt_total;
    register<count_t>(MAX_BLOCKS) cnt_op;
    register<clock_t>(MAX_BLOCKS) win_start;
    @name("generation") register<generation_t>(MAX_BLOCKS) block_generation;
    // Four anchors per job: generation ++ step ++ base.
    register<bit<48>>(MAX_ANCHORS) anchors;

    counter(MAX_JOB_SLOTS, CounterType.packets) job_data;
    counter(MAX_JOB_SLOTS, CounterType.packets) job_marks;
    counter(MAX_JOB_SLOTS, CounterType.packets) job_red_marks;
    counter(MAX_JOB_SLOTS, CounterType.packets) job_corrections;
    counter(MAX_JOB_SLOTS, CounterType.packets) job_advances;

    action set_params(generation_t generation, step_t step_mask, step_t step_sign,
                      bit<1> anchored, psn_t packets_per_step, k_t k, bit<8> tau_num,
                      bit<8> tau_den, bit<32> t_win, bit<16> n_sample, psn_t n_warmup,
                      alpha_t alpha_max, qdepth_t q_min, bit<1> enabled) {
        meta.params.generation = generation;
        meta.params.step_mask = step_mask;
        meta.params.step_sign = step_sign;
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
    }

    table job_params {
        key = { meta.job : exact @name("job"); }
        actions = { set_params; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }

    action set_block(block_t block) {
        meta.block = block;
    }

    table block_map {
        key = {
            meta.job : exact @name("job");
            standard_metadata.egress_port : exact @name("egress_port");
        }
        actions = { set_block; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    action anchor_progress() {
        step_t step = meta.tag & meta.params.step_mask;
        bit<32> slot = 16w0 ++ meta.job ++ step[1:0];
        bit<24> owner = meta.params.generation ++ step;
        bit<48> anchor;
        anchors.read(anchor, slot);
        if (anchor[47:24] != owner) {
            anchor = owner ++ meta.psn;
            anchors.write(slot, anchor);
        }
        psn_t offset = meta.psn - anchor[23:0];
        // Behind the anchor in serial order counts as no progress.
        meta.progress = (offset[23:23] == 1) ? 24w0 : offset;
    }

    action wire_progress() {
        meta.progress = meta.psn;
    }

    action follow() {
        bit<32> at = (bit<32>)meta.block;
        bit<32> job_slot = (bit<32>)meta.job;
        clock_t now = standard_metadata.egress_global_timestamp;
        step_t step = meta.tag & meta.params.step_mask;
        random_t r;
        random(r, 0, RANDOM_MAX);

        step_t s;
        psn_t p;
        alpha_t a;
        count_t total;
        count_t op;
        clock_t since;
        generation_t g;
        step_min.read(s, at);
        psn_rec.read(p, at);
        alpha.read(a, at);
        cnt_total.read(total, at);
        cnt_op.read(op, at);
        win_start.read(since, at);
        block_generation.read(g, at);

        // 1. Another generation: the block starts afresh.
        if (g != meta.params.generation) {
            s = step;
            p = 0;
            a = 1;
            total = 0;
            op = 0;
            since = now;
        }

        // 2. The window. A packet of another thread may have a time from before its start, by up
        // to 2^16 us; it does not end it.
        clock_t passed = now - since;
        if (passed >= (clock_t)meta.params.t_win && passed < 0xFFFFFFFF0000) {
            if (total > (count_t)meta.params.n_sample) {
                bit<40> outpacing = (bit<40>)op * (bit<40>)meta.params.tau_den;
                bit<40> tolerated = (bit<40>)total * (bit<40>)meta.params.tau_num;
                if (outpacing >= tolerated) {
                    if (a < meta.params.alpha_max) {
                        a = a + 1;
                    } else {
                        a = meta.params.alpha_max;
                    }
                } else if (a > 1) {
                    a = a - 1;
                } else {
                    a = 1;
                }
            }
            total = 0;
            op = 0;
            p = 0;
            since = now;
        }

        // 3. What is counted. A difference with the sign bit clear is ahead.
        total = total + 1;
        step_t ahead = (step - s) & meta.params.step_mask;
        if (ahead != 0 && (ahead & meta.params.step_sign) == 0) {
            op = op + 1;
        }

        // 4. Progress. step_min moves on at the end of a step, back at a straggler.
        step_t before = s;
        step_t behind = (s - step) & meta.params.step_mask;
        if (meta.is_last == 1 && (meta.params.packets_per_step == 0
                || meta.progress >= meta.params.packets_per_step - 1)) {
            s = (step + 1) & meta.params.step_mask;
            p = 0;
        } else if (behind != 0 && (behind & meta.params.step_sign) == 0) {
            s = step;
            p = meta.progress;
        } else if (behind == 0 && meta.progress > p) {
            p = meta.progress;
        }

        // 5. Mark with P = min(1, k * alpha * psn / psn_rec), without the division.
        ahead = (step - s) & meta.params.step_mask;
        bit<64> left = (bit<64>)r * (bit<64>)p;
        bit<64> right = (bit<64>)meta.params.k * (bit<64>)a * (bit<64>)meta.progress;
        if (ahead != 0 && (ahead & meta.params.step_sign) == 0
                && p > meta.params.n_warmup
                && standard_metadata.deq_qdepth >= meta.params.q_min
                && meta.params.enabled == 1
                && left < right) {
            meta.marker_mark = 1;
        }

        step_min.write(at, s);
        psn_rec.write(at, p);
        alpha.write(at, a);
        cnt_total.write(at, total);
        cnt_op.write(at, op);
        win_start.write(at, since);
        block_generation.write(at, meta.params.generation);

        job_data.count(job_slot);
        step_t moved = (s - before) & meta.params.step_mask;
        if (moved != 0) {
            if ((moved & meta.params.step_sign) == 0) {
                job_advances.count(job_slot);
            } else if (moved != meta.params.step_sign) {
                job_corrections.count(job_slot);
            }
        }
        if (meta.is_ect == 1) {
            if (meta.marker_mark == 1) {
                job_marks.count(job_slot);
            }
            if (meta.red_mark == 1) {
                job_red_marks.count(job_slot);
            }
        }
    }

    // Copies a block and the anchors of a job into the reply. One action, so the block is whole.
    action read_block() {
        bit<32> at = (bit<32>)hdr.read_request.block;
        hdr.state_reply.setValid();
        hdr.state_reply.request_id = hdr.read_request.request_id;
        hdr.state_reply.job_pad = 0;
        hdr.state_reply.job = hdr.read_request.job;
        hdr.state_reply.block = hdr.read_request.block;
        hdr.state_reply.now_pad = 0;
        hdr.state_reply.now = standard_metadata.egress_global_timestamp;
        hdr.state_reply.psn_rec_pad = 0;
        hdr.state_reply.win_start_pad = 0;
        block_generation.read(hdr.state_reply.generation, at);
        step_min.read(hdr.state_reply.step_min, at);
        psn_rec.read(hdr.state_reply.psn_rec, at);
        alpha.read(hdr.state_reply.alpha, at);
        cnt_total.read(hdr.state_reply.cnt_total, at);
        cnt_op.read(hdr.state_reply.cnt_op, at);
        win_start.read(hdr.state_reply.win_start, at);
    }

    action read_anchors() {
        bit<32> first = 16w0 ++ hdr.read_request.job ++ 2w0;
        bit<48> anchor;
        hdr.anchor0.setValid();
        hdr.anchor0.base_pad = 0;
        anchors.read(anchor, first);
        hdr.anchor0.generation = anchor[47:40];
        hdr.anchor0.step = anchor[39:24];
        hdr.anchor0.base = anchor[23:0];
        hdr.anchor1.setValid();
        hdr.anchor1.base_pad = 0;
        anchors.read(anchor, first | 1);
        hdr.anchor1.generation = anchor[47:40];
        hdr.anchor1.step = anchor[39:24];
        hdr.anchor1.base = anchor[23:0];
        hdr.anchor2.setValid();
        hdr.anchor2.base_pad = 0;
        anchors.read(anchor, first | 2);
        hdr.anchor2.generation = anchor[47:40];
        hdr.anchor2.step = anchor[39:24];
        hdr.anchor2.base = anchor[23:0];
        hdr.anchor3.setValid();
        hdr.anchor3.base_pad = 0;
        anchors.read(anchor, first | 3);
        hdr.anchor3.generation = anchor[47:40];
        hdr.anchor3.step = anchor[39:24];
        hdr.anchor3.base = anchor[23:0];
    }

    apply {
        if (hdr.read_request.isValid()) {
            read_block();
            read_anchors();
        } else if (meta.job != NO_JOB) {
            if (job_params.apply().hit && block_map.apply().hit) {
                if (meta.params.anchored == 1) {
                    anchor_progress();
                } else {
                    wire_progress();
                }
                follow();
            }
        }
    }
}
