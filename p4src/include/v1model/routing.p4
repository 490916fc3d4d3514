// IPv4 and IPv6 routing with ECMP groups, and planned paths on top.

control Routing(inout headers_t hdr,
                inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    // The member is ecmp_choice mod group size.
    action_selector(HashAlgorithm.identity, 1024, 16) ecmp;

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action set_switch(bit<32> ecmp_seed) {
        meta.ecmp_seed = ecmp_seed;
    }

    action set_nexthop(nexthop_t nexthop_id) {
        meta.nexthop_id = nexthop_id;
    }

    action forward(port_t port, mac_addr_t src_mac, mac_addr_t dst_mac) {
        standard_metadata.egress_spec = port;
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
        implementation = ecmp;
        size = 16384;
    }

    // A path that the controller pinned for this packet's job; no entry means ECMP.
    table planned_path {
        key = { meta.path_id : exact @name("path_id"); }
        actions = { forward; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }

    // CRC-32 is linear: with the seed among its inputs, flows that share an uplink of one switch
    // would share one of the next, whatever its seed. So the seed goes through the finalizer of
    // MurmurHash3, of which the upper half is taken.
    action choose_member() {
        bit<32> mix;
        hash(mix, HashAlgorithm.crc32, 32w0,
             { meta.src_addr, meta.dst_addr, meta.protocol, meta.sport, meta.dport },
             64w0x100000000);
        mix = mix ^ meta.ecmp_seed;
        mix = (mix ^ (mix >> 16)) * 32w0x85EBCA6B;
        mix = (mix ^ (mix >> 13)) * 32w0xC2B2AE35;
        meta.ecmp_choice = mix[31:16];
    }

    apply {
        if (hdr.ipv4.isValid()) {
            if (hdr.ipv4.ttl <= 1) {
                drop();
                exit;
            }
            if (route_v4.apply().hit) {
                hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
                if (hdr.ipv4.ihl != 5) {
                    // RFC 1624, equation 3; the word of TTL and protocol fell by 0x0100.
                    bit<17> sum = (bit<17>)(~hdr.ipv4.hdr_checksum) + 17w0xFEFF;
                    hdr.ipv4.hdr_checksum = ~(sum[15:0] + (bit<16>)sum[16:16]);
                }
            }
        } else {
            if (hdr.ipv6.hop_limit <= 1) {
                drop();
                exit;
            }
            if (route_v6.apply().hit) {
                hdr.ipv6.hop_limit = hdr.ipv6.hop_limit - 1;
            }
        }
        if (meta.nexthop_id != 0) {
            if (meta.path_id == 0 || !planned_path.apply().hit) {
                switch_config.apply();
                choose_member();
                // BMv2 has no default action on a table with an action profile.
                if (!nexthop.apply().hit) {
                    drop();
                }
            }
        }
    }
}
