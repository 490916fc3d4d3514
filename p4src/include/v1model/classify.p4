// Finds the job of a tagged data packet, and the path planned for it.

control Classify(inout headers_t hdr, inout metadata_t meta) {
    action set_job(job_t job, path_t path_id) {
        meta.job = job;
        meta.path_id = path_id;
    }

    // By destination and destination QP.
    table job_by_dst_qp {
        key = {
            meta.dst_addr : exact @name("dst_addr");
            hdr.bth.dst_qp : exact @name("dst_qp");
        }
        actions = { set_job; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    // By source and destination, where one job owns the pair.
    table job_by_pair {
        key = {
            meta.src_addr : exact @name("src_addr");
            meta.dst_addr : exact @name("dst_addr");
        }
        actions = { set_job; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    // By a tag that the packet itself carries: bits of the source port, BTH.resv6a or DSCP.
    table job_by_tag {
        key = {
            hdr.udp.sport : ternary @name("sport");
            hdr.bth.resv6a : ternary @name("resv6a");
            meta.dscp : ternary @name("dscp");
        }
        actions = { set_job; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

#ifdef RINGSTEP_UEC
    // By the JobID of an Ultra Ethernet packet.
    table job_by_uec_id {
        key = { hdr.ses.job_id : exact @name("uec_job_id"); }
        actions = { set_job; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }
#endif

    apply {
#ifdef RINGSTEP_UEC
        if (hdr.ses.isValid()) {
            job_by_uec_id.apply();
        } else
#endif
        if (!job_by_dst_qp.apply().hit) {
            if (!job_by_pair.apply().hit) {
                job_by_tag.apply();
            }
        }
    }
}
