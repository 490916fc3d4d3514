// IPv4 and IPv6 routing with ECMP groups, and planned paths on top.

control Routing(inout t2na_headers_t hdr,
                inout ingress_md_t meta,
                inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) flow_hash;
    // Castagnoli's polynomial.
    CRCPolynomial<bit<32>>(0x1EDC6F41, true, false, false, 0xFFFFFFFF, 0xFFFFFFFF) castagnoli;
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, castagnoli) seeded_hash;
    Hash<bit<16>>(HashAlgorithm_t.IDENTITY) choice;
    ActionProfile(1024) ecmp;
    ActionSelector(ecmp, choice, SelectorMode_t.FAIR, 64, 1024) ecmp_selector;

    bit<32> mix = 0;
    bool dropped = false;

    action drop() {
        ig_dprsr_md.drop_ctl = 1;
    }

    action set_switch(bit<32> ecmp_seed) {
        meta.ecmp_seed = ecmp_seed;
    }

    action set_nexthop(nexthop_t nexthop_id) {
        meta.nexthop_id = nexthop_id;
    }

    action forward(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        meta.port = port;
        hdr.ethernet.src_addr = src_mac;
        hdr.ethernet.dst_addr = dst_mac;
    }

    // Seed that keeps the switches' ECMP choices independent of one another.
    table switch_config {
        actions = { set_switch; }
        default_action = set_switch(0);
    }

    table route_v4 {
        key = { hdr.ipv4.dst_addr : lpm @name("dst_addr"); }
        actions = { set_nexthop; drop; }
        default_action = drop();
        size = 16384;
    }

    table route_v6 {
        key = { hdr.ipv6.dst_addr : lpm @name("dst_addr"); }
        actions = { set_nexthop; drop; }
        default_action = drop();
        size = 16384;
    }

    table nexthop {
        key = {
            meta.nexthop_id : exact @name("nexthop_id");
            meta.ecmp_choice : selector;
        }
        actions = { forward; }
        implementation = ecmp_selector;
        size = 16384;
    }

    // A path that the controller pinned for this packet's job; no entry means ECMP.
    table planned_path {
        key = { meta.path_id : exact @name("path_id"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }

    // A CRC is linear: with the seed among its inputs, flows that share an uplink of one switch
    // would share one of the next, whatever its seed. So the seed is added, with its carries,
    // between two CRCs of different polynomials.
    action hash_flow() {
        mix = flow_hash.get({
            meta.src_addr, meta.dst_addr, meta.protocol, meta.sport, meta.dport
        });
    }

    action add_seed() {
        mix = mix + meta.ecmp_seed;
    }

    action hash_again() {
        mix = seeded_hash.get({ mix });
    }

    // RFC 1624, equation 3: the word of TTL and protocol falls by 0x0100, so the checksum grows by
    // that, with an end-around carry.
    action age_v4(bit<16> more) {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        hdr.ipv4.hdr_checksum = hdr.ipv4.hdr_checksum + more;
    }
    action age_v6() { hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1; }

    table hop_v4 {
        key = { hdr.ipv4.hdr_checksum : ternary @name("hdr_checksum"); }
        actions = { age_v4; }
        const default_action = age_v4(0x0100);
        const entries = {
            0xFEFF : age_v4(0x0101);
            0xFF00 &&& 0xFF00 : age_v4(0x0101);
        }
        size = 4;
    }

    apply {
        switch_config.apply();
        hash_flow();
        add_seed();
        hash_again();
        add_seed();
        hash_again();
        meta.ecmp_choice = mix[31:16];
        if (hdr.ipv4.isValid()) {
            if (hdr.ipv4.ttl == 0 || hdr.ipv4.ttl == 1) {
                drop();
                dropped = true;
            } else if (route_v4.apply().hit) {
                hop_v4.apply();
            }
        } else {
            if (hdr.ipv6.hop_limit == 0 || hdr.ipv6.hop_limit == 1) {
                drop();
                dropped = true;
            } else if (route_v6.apply().hit) {
                age_v6();
            }
        }
        if (!dropped && meta.nexthop_id != 0) {
            bool planned = false;
            if (meta.path_id != 0) {
                planned = planned_path.apply().hit;
            }
            if (!planned) {
                if (!nexthop.apply().hit) {
                    drop();
                }
            }
        }
    }
}
