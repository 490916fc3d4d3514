#include "core/model.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/ns3_bridge.h"

namespace ringstep {

namespace {

std::uint32_t address(std::uint32_t node) {  // the address plan of the HPCC simulator
    return 0x0B000001U + (node / 256) * 0x10000U + (node % 256) * 0x100U;
}

template <typename T>
std::vector<T> reserve_column(std::size_t n) {
    std::vector<T> v;
    v.reserve(n);
    return v;
}

}  // namespace

// --- checks of configuration ---------------------------------------------------------------------

void HpccParams::check() const {
    require(eta > 0 && eta <= 1, "eta", eta, "must lie in (0, 1]");
    require(max_stage >= 0, "max_stage", max_stage, "must not be negative");
    require(rate_ai_bps >= 0, "rate_ai_bps", rate_ai_bps, "must not be negative");
    require(min_rate_bps > 0, "min_rate_bps", min_rate_bps, "must be above 0");
}

void TransportConfig::check() const {
    require(mtu_bytes >= 64 && mtu_bytes + header_bytes <= 65535, "mtu_bytes", mtu_bytes,
            "must be at least 64, and with header_bytes at most 65535");
    require(header_bytes >= 0 && header_bytes <= 1024, "header_bytes", header_bytes,
            "must lie in 0..1024");
    require(ack_bytes >= 1 && ack_bytes <= 65535, "ack_bytes", ack_bytes, "must lie in 1..65535");
    require(cnp_bytes >= 1 && cnp_bytes <= 65535, "cnp_bytes", cnp_bytes, "must lie in 1..65535");
    require(window == "none" || window == "bdp" || window == "variable", "window", window,
            "must be \"none\", \"bdp\" or \"variable\"");
    require(window_bytes >= 0, "window_bytes", window_bytes, "must not be negative");
    require(ack_interval >= 1, "ack_interval", ack_interval, "must be at least 1 packet");
    require(recovery == "gbn" || recovery == "selective", "recovery", recovery,
            "must be \"gbn\" or \"selective\"");
    require(rto_ns >= 0, "rto_ns", rto_ns, "must not be negative; 0 switches the timeout off");
    require(nak_interval_ns >= 0, "nak_interval_ns", nak_interval_ns, "must not be negative");
    require(nic == "round_robin" || nic == "in_order", "nic", nic,
            "must be \"round_robin\" or \"in_order\"");
    require(first_psn <= kPsnMask, "first_psn", first_psn, "must fit in 24 bits");
    require(sport_base <= 65535, "sport_base", sport_base, "must be a UDP port");
    require(dport <= 65535, "dport", dport, "must be a UDP port");
}

void SwitchConfig::check() const {
    require(buffer_bytes >= 0, "buffer_bytes", buffer_bytes, "must not be negative; 0 = unlimited");
    require(!pfc.enabled || buffer_bytes > 0, "buffer_bytes", buffer_bytes,
            "PFC needs a buffer of known size");
    require(pfc.shift >= 0 && pfc.shift <= 16, "pfc.shift", pfc.shift, "must lie in 0..16");
    require(pfc.reserve_bytes >= 0, "pfc.reserve_bytes", pfc.reserve_bytes, "must not be negative");
    require(pfc.resume_offset_bytes >= 0, "pfc.resume_offset_bytes", pfc.resume_offset_bytes,
            "must not be negative");
    require(pfc.headroom == "safe" || pfc.headroom == "hpcc", "pfc.headroom", pfc.headroom,
            "must be \"safe\" or \"hpcc\"");
    require(pfc.headroom_bytes >= 0, "pfc.headroom_bytes", pfc.headroom_bytes,
            "must not be negative; 0 = computed");
    require(pfc.pause_bytes >= 1 && pfc.pause_bytes <= 1024, "pfc.pause_bytes", pfc.pause_bytes,
            "must lie in 1..1024");
    for (const RedEntry& r : red) {
        require(r.rate_bps > 0, "red.rate_bps", r.rate_bps, "must be above 0");
        require(r.k_min_bytes >= 0 && r.k_min_bytes <= r.k_max_bytes, "red.k_min_bytes",
                r.k_min_bytes, "must lie in 0..k_max_bytes");
        require(r.k_max_bytes < (1LL << 32), "red.k_max_bytes", r.k_max_bytes,
                "must be below 4 GiB");
        require(r.p_max >= 0 && r.p_max <= 1, "red.p_max", r.p_max, "must lie in [0, 1]");
    }
    require(mark_gap_us >= 0 && mark_gap_us < 1 << 16, "mark_gap_us", mark_gap_us,
            "must lie in 0..65535; 0 = off");
    require(mark_gap_us == 0 || !red.empty(), "mark_gap_us", mark_gap_us,
            "needs RED, which tells when a queue is too deep for it");
    require(
        lb == "ecmp" || lb == "planned" || lb == "flowlet" || lb == "spray" || lb == "least_loaded",
        "lb", lb, "must be \"ecmp\", \"flowlet\", \"spray\" or \"least_loaded\"");
    require(flowlet_gap_ns >= 0, "flowlet_gap_ns", flowlet_gap_ns, "must not be negative");
    require(load_horizon_ns >= 0, "load_horizon_ns", load_horizon_ns, "must not be negative");
    require(ecmp_hash == "seeded" || ecmp_hash == "ns3_compat", "ecmp_hash", ecmp_hash,
            "must be \"seeded\" or \"ns3_compat\"");
    require(marking == "none" || marking == "marker" || marking == "priority", "marking", marking,
            "must be \"none\", \"marker\" or \"priority\"");
    require(marker_scope == "port" || marker_scope == "switch", "marker_scope", marker_scope,
            "must be \"port\" or \"switch\"");
    require(scheduler == "round_robin" || scheduler == "strict", "scheduler", scheduler,
            "must be \"round_robin\" or \"strict\"");
    if (trial) {
        require(marking == "marker", "marking", marking,
                "rules under trial go with \"marker\" only");
        trial->check();
    }
}

// --- set-up --------------------------------------------------------------------------------------

Model::Model(const Network& net, const TransportConfig& transport, const StatsConfig& stats,
             std::uint32_t seed)
    : net_(net), tc_(transport), sc_(stats), seed_(seed) {
    net_.check();
    tc_.check();
    require(sc_.sample_ns >= 0, "sample_ns", sc_.sample_ns, "must not be negative; 0 = off");
    require(sc_.alpha_ns >= 0, "alpha_ns", sc_.alpha_ns, "must not be negative; 0 = off");
    require(sc_.queue_bin_bytes >= 0, "queue_bin_bytes", sc_.queue_bin_bytes,
            "must not be negative; 0 = off");
    require(sc_.links == "fabric" || sc_.links == "all", "links", sc_.links,
            "must be \"fabric\" or \"all\"");
    round_ns_ = tc_.round_to_ns;
    selective_ = tc_.recovery == "selective";
    in_order_nic_ = tc_.nic == "in_order";
    ack_priority_ = tc_.ack_priority;
    window_mode_ = tc_.window == "bdp" ? 1 : tc_.window == "variable" ? 2 : 0;
    rto_ = tc_.rto_ns * kPsPerNs;
    nak_interval_ = tc_.nak_interval_ns * kPsPerNs;
    mtu_ = static_cast<std::uint32_t>(tc_.mtu_bytes);
    full_size_ = static_cast<std::uint32_t>(tc_.mtu_bytes + tc_.header_bytes);

    links_ = static_cast<std::uint32_t>(net_.links.size());
    ports_.resize(links_);
    queues_.resize(static_cast<std::size_t>(links_) * kClasses);
    ingress_.resize(static_cast<std::size_t>(links_) * kClasses);
    up_.assign(links_, 1);
    index_of_.assign(net_.nodes.size(), 0);
    series_.resize(links_);
    histogram_.resize(links_);
    auto stream = [&](Stream s, std::uint32_t i) {
        return Ns3Bridge::stream_seed(seed_, (static_cast<std::uint64_t>(s) << 32) | i);
    };
    for (std::uint32_t i = 0; i < links_; ++i) {
        red_rng_.emplace_back(stream(Stream::kRed, i));
        mark_rng_.emplace_back(stream(Stream::kMarker, i));
        loss_rng_.emplace_back(stream(Stream::kLoss, i));
    }
    for (std::uint32_t n = 0; n < net_.nodes.size(); ++n) {
        const NodeSpec& spec = net_.nodes[n];
        if (spec.is_host) {
            index_of_[n] = static_cast<std::uint32_t>(hosts_.size());
            Host h;
            h.node = n;
            h.nic = spec.links.front();
            hosts_.push_back(std::move(h));
            continue;
        }
        index_of_[n] = static_cast<std::uint32_t>(switches_.size());
        Switch s;
        s.node = n;
        s.ports = spec.links;
        s.config = &spec.config;
        s.pfc = spec.config.pfc.enabled;
        s.mark_gap_us = static_cast<std::uint32_t>(spec.config.mark_gap_us);
        s.strict_laggards = spec.config.marking == "priority";
        any_laggards_ |= s.strict_laggards;
        s.hash_seed = spec.config.ecmp_hash == "ns3_compat"
                          ? n
                          : static_cast<std::uint32_t>(stream(Stream::kEcmp, n) >> 32);
        if (spec.config.lb == "flowlet") {
            s.lb = Switch::Lb::kFlowlet;
            s.flowlets.resize(4096);
        } else if (spec.config.lb == "spray") {
            s.lb = Switch::Lb::kSpray;
        } else if (spec.config.lb == "least_loaded") {
            s.lb = Switch::Lb::kLeastLoaded;
            least_loaded_ = true;
        }
        s.spray = Rng(stream(Stream::kSpray, n));
        dynamic_lb_ |= s.lb != Switch::Lb::kEcmp;
        s.always_eager = spec.config.marking != "none" && spec.config.marker_scope == "switch";
        if (spec.config.trial)
            s.trial = std::make_unique<Trial>(
                *spec.config.trial, spec.config.marker_scope == "port", stream(Stream::kTrial, n));
        switches_.push_back(std::move(s));
    }
    for (std::uint32_t i = 0; i < links_; ++i) {
        const LinkSpec& spec = net_.links[i];
        Port& p = ports_[i];
        p.to = spec.to;
        p.owner = index_of_[spec.from];
        p.peer = index_of_[spec.to];
        p.delay = spec.delay_ns * kPsPerNs;
        p.loss = spec.loss;
        p.number = spec.port;
        set_rate(p, spec.rate_bps);
        const bool from_host = net_.nodes[spec.from].is_host;
        const bool to_host = net_.nodes[spec.to].is_host;
        if (from_host) p.flags |= kNic;
        if (to_host) p.flags |= kToHost;
        if (spec.loss > 0 || !net_.drops.empty()) p.flags |= kLossy;
        const bool recorded = sc_.links == "all" || (!from_host && !to_host);
        if (recorded && (sc_.sample_ns > 0 || sc_.queue_bin_bytes > 0)) p.flags |= kRecord;
        if (from_host) continue;
        const SwitchConfig& config = net_.nodes[spec.from].config;
        if (config.buffer_bytes > 0) p.flags |= kMmu;
        if (config.marking != "none") p.flags |= kMark;
        if (config.scheduler == "strict") p.flags |= kStrict;
        if (switches_[p.owner].always_eager) p.flags |= kEager;
        for (const RedEntry& r : config.red) {
            if (r.rate_bps != spec.rate_bps) continue;
            p.flags |= kRed;
            p.red_min = static_cast<std::uint32_t>(r.k_min_bytes);
            p.red_max = static_cast<std::uint32_t>(r.k_max_bytes);
            const double span = static_cast<double>(r.k_max_bytes - r.k_min_bytes);
            p.red_slope = span > 0 ? r.p_max / span * 4294967296.0 : 0;
        }
    }
    routes_.build(net_, up_);
    for (const PlannedPath& path : net_.planned)
        planned_[{path.src, path.dst, path.channel, static_cast<std::uint32_t>(path.job)}]
            .push_back(path.links);
    for (const DropSpec& spec : net_.drops) drops_.push_back({spec});
    if (least_loaded_) assigned_.resize(links_);
    plan_buffers();

    timer_source_ = 2 * links_;
    // A bucket should hold few events (one per busy link and transmission time), and the calendar
    // should reach past the next arrival on all but the longest links.
    std::vector<double> ahead;
    double soonest = 1e15;
    for (const Port& p : ports_) {
        const double tx = static_cast<double>(tx_time(p, full_size_));
        soonest = std::min(soonest, tx);
        ahead.push_back(tx + static_cast<double>(p.delay));
    }
    const auto most = ahead.begin() + static_cast<std::ptrdiff_t>(ahead.size() * 9 / 10);
    std::nth_element(ahead.begin(), most, ahead.end());
    const double width =
        std::max(4 * soonest / links_, 2 * *most / static_cast<double>(EventQueue::kBuckets));
    events_.reset(2 * links_ + 1, links_, static_cast<int>(std::log2(std::max(width, 64.0))));
}

void Model::set_rate(Port& p, std::int64_t rate_bps) {
    p.rate_bps = rate_bps;
    p.ps_per_byte =
        static_cast<std::uint64_t>(std::llround(8e12 * (1 << 20) / static_cast<double>(rate_bps)));
}

std::uint32_t Model::add_cc(const CcConfig& cc, double line) {
    CcKind kind;
    kind.line_rate = line;
    if (cc.kind == "dcqcn") {
        kind.kind = CcKind::Kind::kDcqcn;
        const DcqcnParams params = cc.preset.empty() ? cc.dcqcn : dcqcn_preset(cc.preset, line);
        kind.dcqcn = std::make_unique<DcqcnConstants>(params, line);
    } else if (cc.kind == "hpcc") {
        cc.hpcc.check();
        kind.kind = CcKind::Kind::kHpcc;
        kind.hpcc = cc.hpcc;
        if (!has_int_) {
            has_int_ = true;
            for (Port& p : ports_)
                if (!(p.flags & kNic)) p.flags |= kInt;
        }
    } else if (cc.kind == "fixed") {
        require(cc.fixed_rate_bps >= 0, "fixed_rate_bps", cc.fixed_rate_bps,
                "must not be negative; 0 = line rate");
        kind.kind = CcKind::Kind::kFixed;
        kind.fixed_rate = cc.fixed_rate_bps == 0 ? line : std::min(cc.fixed_rate_bps, line);
    } else {
        require(false, "cc.kind", cc.kind, "must be \"dcqcn\", \"hpcc\" or \"fixed\"");
    }
    ccs_.push_back(std::move(kind));
    return static_cast<std::uint32_t>(ccs_.size() - 1);
}

void Model::add_job(int job_id, const std::optional<MarkerParams>& marker, bool known,
                    std::uint8_t prio) {
    if (marker) marker->check();
    jobs_.push_back({job_id, marker, known});
    use_class(prio);
    for (Switch& s : switches_) {
        const SwitchConfig& config = *s.config;
        std::unique_ptr<Marker> m;
        if (marker && config.marking != "none") {
            MarkerParams params = *marker;
            if (s.strict_laggards) params.enabled = false;
            m = std::make_unique<Marker>(params, config.marker_scope == "port");
        }
        s.markers.push_back(std::move(m));
    }
}

void Model::use_class(std::uint8_t prio) {
    if (classes_ >> prio & 1) return;
    const std::uint8_t before = classes_;
    classes_ |= static_cast<std::uint8_t>(1U << prio);
    try {
        plan_buffers();
    } catch (...) {
        classes_ = before;
        throw;
    }
}

void Model::set_policy(std::uint32_t node, MarkingPolicy policy) {
    Switch& s = switches_[index_of_[node]];
    const bool on = static_cast<bool>(policy);
    s.policy = std::move(policy);
    s.always_eager = on || (s.config->marking != "none" && s.config->marker_scope == "switch");
    for (const auto link : s.ports) {
        Port& p = ports_[link];
        p.flags = on ? p.flags | kPolicy : p.flags & ~kPolicy;
    }
    set_eager(s, s.always_eager || s.paused > 0);
}

void Model::set_planned(int job_id, bool on) {
    if (on) {
        unplanned_.erase(job_id);
    } else {
        unplanned_.insert(job_id);
    }
}

void Model::set_marker(std::uint16_t job, const MarkerParams& params) {
    params.check();
    for (Switch& s : switches_) {
        Marker* m = s.markers[job - 1U].get();
        if (m == nullptr) continue;
        MarkerParams own = params;
        if (s.strict_laggards) own.enabled = false;
        m->update(own);
    }
}

double Model::line_rate(std::uint32_t node) const {
    return static_cast<double>(ports_[hosts_[index_of_[node]].nic].rate_bps);
}

void Model::trace_rate(std::uint32_t src, std::uint32_t dst) {
    rate_pairs_.emplace_back(src, dst);
}

void Model::start() {
    if (started_) return;
    started_ = true;
    for (Switch& s : switches_)
        if (sc_.alpha_ns > 0) s.alpha_next.assign(jobs_.size() * (s.ports.size() + 1), 0);
}

// --- buffers and PFC -----------------------------------------------------------------------------

std::int64_t Model::headroom_needed(const PfcConfig& pfc, std::uint32_t in_link) const {
    // What can still arrive after the packet that fills the threshold: that packet itself, the one
    // the neighbour has begun, and all that is sent while the pause frame waits behind a packet of
    // ours, is sent, and travels, and while the last data travels.
    const LinkSpec& in = net_.links[in_link];
    const LinkSpec& back = net_.links[in_link ^ 1];
    const double rate = static_cast<double>(in.rate_bps) / 8e9;  // bytes per ns
    const double frames = static_cast<double>(pfc.pause_bytes) * std::popcount(classes_);
    const double wait = (full_size_ + frames) * 8e9 / static_cast<double>(back.rate_bps);
    const double flight = static_cast<double>(in.delay_ns + back.delay_ns);
    return static_cast<std::int64_t>(std::ceil(rate * (wait + flight))) + 2LL * full_size_;
}

std::int64_t Model::headroom_for(const PfcConfig& pfc, std::uint32_t in_link) const {
    if (pfc.headroom_bytes > 0) return pfc.headroom_bytes;
    if (pfc.headroom == "safe") return headroom_needed(pfc, in_link);
    const LinkSpec& in = net_.links[in_link];
    return static_cast<std::int64_t>(3.0 * static_cast<double>(in.delay_ns) *
                                     static_cast<double>(in.rate_bps) / 8e9);
}

void Model::plan_buffers() {
    std::int64_t nic_rate = 0;
    for (const Host& h : hosts_)
        if (nic_rate == 0 || ports_[h.nic].rate_bps < nic_rate) nic_rate = ports_[h.nic].rate_bps;
    for (Switch& s : switches_) {
        const SwitchConfig& c = *s.config;
        if (c.buffer_bytes == 0) continue;
        s.pool = c.buffer_bytes;
        if (!c.pfc.enabled) continue;
        std::int64_t headroom = 0;
        std::int64_t reserve = 0;
        for (const auto out : s.ports) {
            const auto in = out ^ 1;
            int shift = c.pfc.shift;
            for (double rate = static_cast<double>(net_.links[in].rate_bps);
                 rate > static_cast<double>(nic_rate) && shift > 0; rate /= 2)
                --shift;
            for (std::uint8_t prio = 1; prio < kClasses; ++prio) {
                if (!(classes_ >> prio & 1)) continue;
                Ingress& g = ingress(in, prio);
                g.headroom = headroom_for(c.pfc, in);
                g.shift = shift;
                headroom += g.headroom;
                reserve += c.pfc.reserve_bytes;
            }
        }
        s.pool = c.buffer_bytes - headroom - reserve;
        if (s.pool <= 0)
            throw ConfigError(net_.nodes[s.node].text(static_cast<int>(s.node)) +
                              ": buffer_bytes = " + std::to_string(c.buffer_bytes) +
                              " does not hold the headroom (" + std::to_string(headroom) +
                              " B) and reserve (" + std::to_string(reserve) +
                              " B) that PFC on its ports needs; give it more than " +
                              std::to_string(headroom + reserve) + " B");
    }
}

std::vector<std::string> Model::warnings() const {
    std::vector<std::string> out;
    for (const Switch& s : switches_) {
        const SwitchConfig& c = *s.config;
        const std::string who = net_.nodes[s.node].text(static_cast<int>(s.node));
        if (!c.pfc.enabled) continue;
        for (const auto link : s.ports) {
            const auto in = link ^ 1;
            const auto has = headroom_for(c.pfc, in);
            const auto needs = headroom_needed(c.pfc, in);
            if (has < needs)
                out.push_back(who + ", port " + std::to_string(net_.links[link].port) +
                              ": headroom of " + std::to_string(has) + " B is below the " +
                              std::to_string(needs) +
                              " B that lossless operation needs; packets can be dropped although "
                              "PFC is on (headroom = \"safe\" avoids it)");
        }
    }
    const bool spraying = std::any_of(switches_.begin(), switches_.end(),
                                      [](const Switch& s) { return s.lb == Switch::Lb::kSpray; });
    if (spraying && !selective_)
        out.push_back(
            "packet spraying reorders, and go-back-N takes reordering for loss; use recovery = "
            "\"selective\"");
    const bool losing = std::any_of(net_.links.begin(), net_.links.end(),
                                    [](const LinkSpec& l) { return l.loss > 0; }) ||
                        !net_.drops.empty() || !net_.events.empty() ||
                        std::any_of(switches_.begin(), switches_.end(), [](const Switch& s) {
                            return s.config->buffer_bytes > 0 && !s.config->pfc.enabled;
                        });
    if (losing && rto_ == 0)
        out.push_back("packets can be lost and rto_ns = 0: a lost tail will stall its message");
    return out;
}

bool Model::admit(Switch& s, std::uint32_t out, Packet& k) {
    const std::int64_t size = k.size;
    if (!s.pfc) {
        // Lossy: a queue may hold as much as is free (dynamic threshold, factor 1).
        const ClassQueue& q = queues_[static_cast<std::size_t>(out) * kClasses + k.cls];
        if (q.bytes + size > s.pool - s.shared_used) {
            sync(s);
            if (q.bytes + size > s.pool - s.shared_used) return false;
        }
        s.shared_used += size;
        return true;
    }
    // Departures not carried out yet make every use look too large and every threshold too small:
    // what is admitted to the pool without a pause on these figures would be on the true ones.
    Ingress& g = ingress(k.in_link, k.prio);
    const std::int64_t reserve = s.config->pfc.reserve_bytes;
    if (g.headroom_used > 0 || g.bytes + size - reserve >= threshold(s, g)) {
        if (g.bytes + size > reserve) sync(s);
    }
    std::int64_t limit = threshold(s, g);
    const std::int64_t shared = std::max<std::int64_t>(0, g.bytes - reserve);
    if (size + g.headroom_used > g.headroom && size + shared > limit) return false;
    const std::int64_t after = g.bytes + size;
    if (after <= reserve) {
        g.bytes = after;
    } else if (after - reserve > limit) {
        g.headroom_used += size;
    } else {
        g.bytes = after;
        s.shared_used += std::min(size, after - reserve);
    }
    if (!g.paused) {
        limit = threshold(s, g);
        const std::int64_t used = g.bytes - reserve;
        if (g.headroom_used > 0 || (used > 0 && used >= limit))
            send_pause(s, k.in_link, k.prio, true);
    }
    return true;
}

void Model::release(Switch& s, const Packet& k) {
    if (!s.pfc) {
        s.shared_used -= k.size;
        return;
    }
    Ingress& g = ingress(k.in_link, k.prio);
    const PfcConfig& pfc = s.config->pfc;
    const std::int64_t size = k.size;
    const std::int64_t from_headroom = std::min(g.headroom_used, size);
    const std::int64_t from_shared =
        std::min(size - from_headroom, std::max<std::int64_t>(0, g.bytes - pfc.reserve_bytes));
    g.headroom_used -= from_headroom;
    g.bytes -= size - from_headroom;
    s.shared_used -= from_shared;
    if (!g.paused || g.headroom_used > 0) return;
    const std::int64_t used = std::max<std::int64_t>(0, g.bytes - pfc.reserve_bytes);
    if (used == 0 || used + pfc.resume_offset_bytes <= threshold(s, g))
        send_pause(s, k.in_link, k.prio, false);
}

void Model::sync(Switch& s) {
    for (const auto link : s.ports) {
        const Port& p = ports_[link];
        if (p.backlog && p.busy_until < now_) advance(link, now_ - 1);
    }
}

void Model::set_eager(Switch& s, bool eager) {
    for (const auto link : s.ports) {
        Port& p = ports_[link];
        if (eager) {
            p.flags |= kEager;
            want_departure_event(link, p);
        } else {
            p.flags &= ~static_cast<std::uint32_t>(kEager);
            events_.cancel(links_ + link);
        }
    }
}

void Model::send_pause(Switch& s, std::uint32_t in_link, std::uint8_t prio, bool on) {
    ingress(in_link, prio).paused = on;
    s.paused += on ? 1 : -1;
    // The frame goes out once this event is over: ports are in the middle of their work now.
    pauses_.push_back({in_link, prio, on});
}

void Model::flush_pauses() {
    for (std::size_t i = 0; i < pauses_.size(); ++i) {
        const PauseOrder order = pauses_[i];
        const auto out = order.in_link ^ 1;
        Switch& s = switches_[ports_[out].owner];
        set_eager(s, s.always_eager || s.paused > 0);
        const auto id = packets_.alloc();
        Packet& k = packets_[id];
        k = Packet{};
        k.kind = PacketKind::kPause;
        k.size = static_cast<std::uint16_t>(s.config->pfc.pause_bytes);
        k.flags = order.on ? kPauseOn : 0;
        k.aux = order.prio;
        if (order.on) {
            ++ports_[out].pauses_sent;
            ++totals.pauses;
        }
        enqueue(out, id);
    }
    pauses_.clear();
}

void Model::receive_pause(std::uint32_t link, const Packet& k) {
    const auto out = link ^ 1;
    Port& p = ports_[out];
    Host* h = p.flags & kNic ? &hosts_[p.owner] : nullptr;
    const bool on = k.flags & kPauseOn;
    auto bits = static_cast<std::uint8_t>(1U << k.aux);
    if (any_laggards_) bits |= 1U << kLaggardClass;
    if (h != nullptr) {
        touch(*h);
    } else if (p.busy_until <= now_) {
        advance(out, now_);
    }
    const std::uint8_t before = p.paused;
    p.paused = on ? p.paused | bits : p.paused & ~bits;
    if (on) ++p.pauses_received;
    if (before == 0 && p.paused != 0) p.paused_since = now_;
    if (before != 0 && p.paused == 0) p.paused_time += now_ - p.paused_since;
    if (h != nullptr) {
        kick(*h);
    } else {
        kick_port(out);
    }
}

// --- ports ---------------------------------------------------------------------------------------

std::uint32_t Model::pick_class(Port& p, std::uint32_t mask) {
    const auto lowest = static_cast<std::uint32_t>(std::countr_zero(mask));
    if ((mask & (mask - 1)) == 0 || lowest <= kLaggardClass || (p.flags & kStrict)) {
        if (lowest > kLaggardClass) p.rr = static_cast<std::uint8_t>(lowest);
        return lowest;
    }
    const std::uint32_t later = mask & ~((2U << p.rr) - 1);
    const auto chosen = static_cast<std::uint32_t>(std::countr_zero(later != 0 ? later : mask));
    p.rr = static_cast<std::uint8_t>(chosen);
    return chosen;
}

void Model::advance(std::uint32_t link, TimePs now) {
    Port& p = ports_[link];
    while (p.busy_until <= now && (p.backlog & ~p.paused) != 0) dequeue(link, p, p.busy_until);
    if (p.flags & kEager) want_departure_event(link, p);
}

void Model::dequeue(std::uint32_t link, Port& p, TimePs start) {
    const std::uint32_t cls = pick_class(p, p.backlog & ~p.paused & 0xFFU);
    ClassQueue& q = queues_[static_cast<std::size_t>(link) * kClasses + cls];
    const std::uint32_t id = q.head;
    Packet& k = packets_[id];
    q.head = k.next;
    if (q.head == kNone) p.backlog &= static_cast<std::uint8_t>(~(1U << cls));
    q.bytes -= k.size;
    --q.packets;
    on_departure(link, p, k, start, q.bytes, q.packets);
    begin_transmission(link, p, id, start);
}

inline void Model::on_departure(std::uint32_t link, Port& p, Packet& k, TimePs start,
                                std::uint32_t left_bytes, std::uint32_t left_packets) {
    if ((p.flags & kMmu) && k.cls != 0) release(switches_[p.owner], k);
    if (k.kind != PacketKind::kData || !(p.flags & kDequeueHooks)) return;
    bool red = false;
    if ((p.flags & kRed) && left_bytes > p.red_min) {
        red = left_bytes > p.red_max ||
              red_rng_[link].next() < p.red_slope * (left_bytes - p.red_min);
    }
    const bool ect = (k.flags & (kEct | kCe)) == kEct;
    bool by_marker = false;
    if (p.flags & (kMark | kPolicy))
        by_marker = mark(switches_[p.owner], link, p, k, start, left_bytes, left_packets, red);
    bool marked = ect && (red || by_marker);
    if (marked && k.job != 0 && jobs_[k.job - 1U].known) {
        marked = p.spacing.stands(static_cast<std::uint64_t>(start / kPsPerUs),
                                  switches_[p.owner].mark_gap_us, left_bytes, p.red_max);
    }
    if (marked) {
        k.flags |= kCe;
        p.marks_marker += by_marker;
        totals.marks_marker += by_marker;
        p.marks_red += red;
        totals.marks_red += red;
    }
    if ((p.flags & kInt) && has_int_) {
        IntRecord& r = int_[&k - &packets_[0]];
        if (r.hops < kMaxHops) {
            r.hop[r.hops++] = {start, p.bytes + k.size, static_cast<double>(p.rate_bps), left_bytes,
                               link};
        }
    }
    if (p.flags & kRecord) record(link, k, start, left_bytes, marked);
}

inline void Model::begin_transmission(std::uint32_t link, Port& p, std::uint32_t id, TimePs start) {
    Packet& k = packets_[id];
    ++p.packets;
    p.bytes += k.size;
    p.data_packets += k.kind == PacketKind::kData;
    p.busy_until = start + tx_time(p, k.size);
    k.arrival = p.busy_until + p.delay;
    k.next = kNone;
    if (p.flight_head == kNone) {
        p.flight_head = p.flight_tail = id;
        if (link != current_link_) events_.schedule(link, k.arrival);
    } else {
        packets_[p.flight_tail].next = id;
        p.flight_tail = id;
    }
}

void Model::enqueue(std::uint32_t link, std::uint32_t id) {
    Port& p = ports_[link];
    Packet& k = packets_[id];
    if (p.busy_until <= now_) {
        if (p.backlog != 0) advance(link, now_ - 1);
        if (p.busy_until <= now_ && !(p.paused >> k.cls & 1) && (p.backlog & ~p.paused) == 0) {
            const ClassQueue& q = queues_[static_cast<std::size_t>(link) * kClasses + k.cls];
            on_departure(link, p, k, now_, q.bytes, q.packets);
            begin_transmission(link, p, id, now_);
            return;
        }
    }
    ClassQueue& q = queues_[static_cast<std::size_t>(link) * kClasses + k.cls];
    k.next = kNone;
    if (q.head == kNone) {
        q.head = id;
        p.backlog |= static_cast<std::uint8_t>(1U << k.cls);
    } else {
        packets_[q.tail].next = id;
    }
    q.tail = id;
    q.bytes += k.size;
    ++q.packets;
    if (q.bytes > p.max_queue_bytes) p.max_queue_bytes = q.bytes;
    if (q.packets > p.max_queue_packets) p.max_queue_packets = q.packets;
    if (p.flags & kEager) want_departure_event(link, p);
}

void Model::want_departure_event(std::uint32_t link, Port& p) {
    if ((p.backlog & ~p.paused) != 0 && !events_.scheduled(links_ + link))
        events_.schedule(links_ + link, std::max(p.busy_until, now_));
}

void Model::kick_port(std::uint32_t link) {
    Port& p = ports_[link];
    if (p.busy_until < now_) p.busy_until = now_;
    advance(link, now_);
}

void Model::departure_event(std::uint32_t link) {
    if (ports_[link].busy_until <= now_) advance(link, now_);
    if (ports_[link].flags & kEager) want_departure_event(link, ports_[link]);
}

void Model::link_event(std::uint32_t link) {
    Port& p = ports_[link];
    current_link_ = link;
    const bool nic = p.flags & kNic;
    if (p.busy_until <= now_) {
        if (nic) {
            nic_advance(hosts_[p.owner], now_);
        } else if (p.backlog != 0) {
            // Without a delay nothing else would wake the port.
            advance(link, p.delay > 0 ? now_ - 1 : now_);
        }
    }
    current_link_ = kNone;
    const std::uint32_t id = p.flight_head;
    if (id == kNone || packets_[id].arrival > now_) {
        if (id != kNone) {
            events_.schedule(link, packets_[id].arrival);
        } else if (nic) {
            nic_settle(hosts_[p.owner]);
        }
        return;
    }
    const std::uint32_t next = packets_[id].next;
    p.flight_head = next;
    if (next != kNone) {
        events_.schedule(link, packets_[next].arrival);
    } else if (nic) {
        nic_settle(hosts_[p.owner]);
    }
    ++totals.hops;
    if ((p.flags & kTakeCare) && lost(link, p, packets_[id])) {
        drop_on_wire(link, id);
        return;
    }
    if (p.flags & kToHost) {
        host_receive(hosts_[p.peer], id, link);
    } else {
        switch_receive(link, id);
    }
}

bool Model::lost(std::uint32_t link, Port& p, const Packet& k) {
    if (k.kind == PacketKind::kPause) return false;
    if (p.loss > 0 && loss_rng_[link].uniform() < p.loss) return true;
    for (DropRule& rule : drops_) {
        const DropSpec& s = rule.spec;
        if (rule.done >= s.times || (s.link >= 0 && s.link != static_cast<std::int64_t>(link)))
            continue;
        const bool data = k.kind == PacketKind::kData;
        const bool ack = k.kind == PacketKind::kAck || k.kind == PacketKind::kNak;
        if (s.kind == "data" ? !data : s.kind == "ack" ? !ack : k.kind != PacketKind::kCnp)
            continue;
        if (s.step >= 0 && s.step != static_cast<std::int64_t>(k.step)) continue;
        const Qp& q = qps_[k.qp];
        if (s.src >= 0 && s.src != static_cast<std::int64_t>(hosts_[q.host].node)) continue;
        if (s.dst >= 0 && s.dst != static_cast<std::int64_t>(hosts_[q.peer].node)) continue;
        if (s.which == "last") {
            if (!(k.flags & (data ? kLast : kAckOfLast))) continue;
        } else if (++rule.seen != s.n) {
            continue;
        }
        ++rule.done;
        return true;
    }
    return false;
}

void Model::drop_on_wire(std::uint32_t link, std::uint32_t id) {
    ++ports_[link].drops_wire;
    ++totals.drops_wire;
    packets_.release(id);
}

void Model::purge(std::uint32_t link) {
    // A failed link loses what is on it and what waits for it.
    Port& p = ports_[link];
    for (std::uint32_t id = p.flight_head; id != kNone;) {
        const auto next = packets_[id].next;
        drop_on_wire(link, id);
        id = next;
    }
    p.flight_head = p.flight_tail = kNone;
    events_.cancel(link);
    events_.cancel(links_ + link);
    for (int cls = 0; cls < kClasses; ++cls) {
        ClassQueue& q = queues_[static_cast<std::size_t>(link) * kClasses + cls];
        for (std::uint32_t id = q.head; id != kNone;) {
            const auto next = packets_[id].next;
            if ((p.flags & kMmu) && packets_[id].cls != 0)
                release(switches_[p.owner], packets_[id]);
            drop_on_wire(link, id);
            id = next;
        }
        q = ClassQueue{};
    }
    p.backlog = 0;
    if (p.flags & kNic) {
        Host& h = hosts_[p.owner];
        for (std::uint32_t id = h.control.head; id != kNone;) {
            const auto next = packets_[id].next;
            drop_on_wire(link, id);
            id = next;
        }
        h.control = ClassQueue{};
    }
    p.paused = 0;
}

void Model::apply(const LinkEventSpec& e) {
    for (const auto link : {2 * e.cable, 2 * e.cable + 1}) {
        Port& p = ports_[link];
        if (p.flags & kNic) {
            touch(hosts_[p.owner]);
        } else if (p.busy_until <= now_) {
            advance(link, now_);
        }
        switch (e.action) {
            case LinkAction::kFail:
                p.flags &= ~static_cast<std::uint32_t>(kUp);
                up_[link] = 0;
                purge(link);
                break;
            case LinkAction::kRestore:
                p.flags |= kUp;
                up_[link] = 1;
                set_rate(p, net_.links[link].rate_bps);
                // What the far end had paused, it lets go with the link.
                for (int cls = 1; cls < kClasses; ++cls) {
                    Ingress& g = ingress(link ^ 1, static_cast<std::uint8_t>(cls));
                    if (!g.paused) continue;
                    Switch& s = switches_[p.owner];
                    g.paused = false;
                    --s.paused;
                    set_eager(s, s.always_eager || s.paused > 0);
                }
                break;
            case LinkAction::kDegrade:
                set_rate(p, e.rate_bps);
                break;
        }
    }
    if (e.action != LinkAction::kDegrade) {
        routes_.build(net_, up_);
        for (Message& m : messages_)
            if (m.live) lay_paths(m, qps_[m.qp]);
    }
    for (const auto link : {2 * e.cable, 2 * e.cable + 1})
        if (ports_[link].flags & kNic) kick(hosts_[ports_[link].owner]);
    flush_pauses();
}

void Model::record(std::uint32_t link, Packet& k, TimePs start, std::uint32_t left_bytes,
                   bool marked) {
    if (sc_.queue_bin_bytes > 0) {
        auto& bins = histogram_[link];
        const std::size_t bin = left_bytes / static_cast<std::uint32_t>(sc_.queue_bin_bytes);
        if (bin >= bins.size()) bins.resize(bin + 1, 0);
        ++bins[bin];
    }
    if (sc_.sample_ns == 0) return;
    const std::int32_t job = k.job == 0 ? 0 : jobs_[k.job - 1U].id;
    auto& here = series_[link];
    auto it =
        std::find_if(here.begin(), here.end(), [&](const LinkSeries& s) { return s.job() == job; });
    if (it == here.end()) it = here.emplace(here.end(), link, job);
    it->add(start, k.step, k.size, left_bytes, marked, sc_.sample_ns, series_out_);
}

// --- switches ------------------------------------------------------------------------------------

std::uint32_t Model::ecmp(std::uint32_t node, std::uint32_t from, std::uint32_t to,
                          std::uint32_t ports) const {
    return murmur3(address(from), address(to), ports, switches_[index_of_[node]].hash_seed);
}

std::uint32_t Model::choose(Switch& s, const Packet& k) {
    const Qp& q = qps_[k.qp];
    const std::uint32_t src = hosts_[k.rev ? q.peer : q.host].node;
    const std::uint32_t dst = hosts_[k.rev ? q.host : q.peer].node;
    const auto hops = routes_.next_hops(s.node, dst);
    if (hops.empty()) return kNone;
    if (hops.size() == 1) return hops.front();
    const auto n = static_cast<std::uint32_t>(hops.size());
    const std::uint32_t ports = k.kind == PacketKind::kData
                                    ? k.aux | tc_.dport << 16
                                    : ports_word(messages_[k.message], k.rev);
    const std::uint32_t hash = ecmp(s.node, src, dst, ports);
    if (k.kind != PacketKind::kData || s.lb == Switch::Lb::kEcmp) return hops[hash % n];
    if (s.lb == Switch::Lb::kSpray)
        return hops[static_cast<std::uint32_t>(static_cast<std::uint64_t>(s.spray.next()) * n >>
                                               32)];
    if (s.lb == Switch::Lb::kLeastLoaded) return least_loaded(s, k, hops, hash);
    Switch::Flowlet& f = s.flowlets[hash & 4095];
    const bool known = f.key == hash && f.link != kNone && (ports_[f.link].flags & kUp);
    if (!known || now_ - f.last > s.config->flowlet_gap_ns * kPsPerNs) {
        f.key = hash;
        f.link =
            hops[static_cast<std::uint32_t>(static_cast<std::uint64_t>(s.spray.next()) * n >> 32)];
    }
    f.last = now_;
    return f.link;
}

TimePs Model::load(std::uint32_t link, TimePs horizon) {
    Port& p = ports_[link];
    if (p.backlog && p.busy_until < now_) advance(link, now_ - 1);
    std::uint32_t queued = 0;
    for (int cls = 0; cls < kClasses; ++cls)
        queued += queues_[static_cast<std::size_t>(link) * kClasses + cls].bytes;
    const TimePs packet = tx_time(p, full_size_);
    TimePs time = tx_time(p, queued);
    for (const auto id : assigned_[link]) {
        std::uint32_t seen = messages_[id].begin;
        for (const Lane& lane : lanes_[id])
            if (lane.link == link) seen = std::max(seen, lane.seen);
        time += std::min(horizon, (messages_[id].end - seen) * packet);
    }
    return time;
}

std::uint32_t Model::least_loaded(const Switch& s, const Packet& k,
                                  std::span<const std::uint32_t> hops, std::uint32_t hash) {
    const Message& m = messages_[k.message];
    // A duplicate may come after its message is done and the slot is another's.
    const bool mine = m.live && m.qp == k.qp && k.psn >= m.begin && k.psn < m.end;
    if (!mine || k.hop >= kMaxHops) return hops[hash % hops.size()];
    Lane& lane = lanes_[k.message][k.hop];
    if (std::find(hops.begin(), hops.end(), lane.link) == hops.end()) {
        if (lane.link != kNone) std::erase(assigned_[lane.link], k.message);
        TimePs least = kNever;
        scratch_.clear();
        for (const auto link : hops) {
            const TimePs here = load(link, s.config->load_horizon_ns * kPsPerNs);
            if (here < least) {
                least = here;
                scratch_.clear();
            }
            if (here == least) scratch_.push_back(link);
        }
        lane.link = scratch_[hash % scratch_.size()];
        assigned_[lane.link].push_back(k.message);
    }
    lane.seen = std::max(lane.seen, k.psn + 1);
    return lane.link;
}

void Model::leave_lanes(std::uint32_t message) {
    for (Lane& lane : lanes_[message]) {
        if (lane.link != kNone) std::erase(assigned_[lane.link], message);
        lane = Lane{};
    }
}

void Model::switch_receive(std::uint32_t link, std::uint32_t id) {
    Packet& k = packets_[id];
    if (k.kind == PacketKind::kPause) {
        receive_pause(link, k);
        packets_.release(id);
        return;
    }
    k.in_link = link;
    std::uint32_t out;
    if (k.flags & kByHop) [[unlikely]] {
        out = choose(switches_[ports_[link].peer], k);
    } else {
        out = k.path[k.hop];
    }
    if (out == kNone || !(ports_[out].flags & kUp)) [[unlikely]] {
        k.flags |= kByHop;
        out = choose(switches_[ports_[link].peer], k);
        if (out == kNone) {
            drop_on_wire(link, id);
            return;
        }
    }
    ++k.hop;
    if (any_laggards_ && k.kind == PacketKind::kData) [[unlikely]]
        classify(k, out);
    if ((ports_[out].flags & kMmu) && k.cls != 0) {
        if (!admit(switches_[ports_[out].owner], out, k)) {
            ++ports_[out].drops_buffer;
            ++totals.drops_buffer;
            packets_.release(id);
            return;
        }
    }
    enqueue(out, id);
}

void Model::classify(Packet& k, std::uint32_t out) {
    k.cls = k.prio;
    Switch& s = switches_[ports_[out].owner];
    if (!s.strict_laggards || k.job == 0 || !s.markers[k.job - 1U]) return;
    // The class of a message at a switch is fixed by its first packet: a change would reorder.
    Message& m = messages_[k.message];
    if (m.qp != k.qp) return;
    const auto bit = static_cast<std::uint8_t>(1U << (k.hop & 7));
    if (!(m.lag_decided & bit)) {
        m.lag_decided |= bit;
        if (s.markers[k.job - 1U]->lagging(k.step, ports_[out].number)) m.lag_high |= bit;
    }
    if (m.lag_high & bit) k.cls = kLaggardClass;
}

bool Model::mark(Switch& s, std::uint32_t link, Port& p, const Packet& k, TimePs at,
                 std::uint32_t left_bytes, std::uint32_t left_packets, bool& red) {
    const bool ect = (k.flags & (kEct | kCe)) == kEct;
    const std::uint32_t psn = (tc_.first_psn + k.psn) & kPsnMask;
    if (s.policy) {
        const Qp& q = qps_[k.qp];
        PolicyPacket seen;
        seen.now_ns = at / kPsPerNs;
        seen.switch_node = static_cast<std::int32_t>(s.node);
        seen.port = static_cast<std::int32_t>(p.number);
        seen.job = k.job == 0 ? 0 : jobs_[k.job - 1U].id;
        seen.src = static_cast<std::int32_t>(hosts_[q.host].node);
        seen.dst = static_cast<std::int32_t>(hosts_[q.peer].node);
        seen.step = k.step;
        seen.psn = psn;
        seen.sport = k.aux;
        seen.dest_qp = k.qp + 1;
        seen.payload_bytes = k.size - static_cast<std::uint32_t>(tc_.header_bytes);
        seen.qdepth_packets = left_packets;
        seen.qdepth_bytes = left_bytes;
        seen.r = mark_rng_[link].next() >> 16;
        seen.first = k.flags & kFirst;
        seen.last = k.flags & kLast;
        seen.ect = ect;
        seen.red = red;
        try {
            return s.policy(seen);
        } catch (...) {
            fail(std::current_exception());
            return false;
        }
    }
    if (k.job == 0) return false;
    Marker* m = s.markers[k.job - 1U].get();
    if (m == nullptr) return false;
    const std::uint32_t r = mark_rng_[link].next() >> 16;
    bool marked;
    if (s.trial) {
        const auto verdict =
            s.trial->on_packet(*m, k.job - 1U,
                               {at / kPsPerNs, k.step, psn, (k.flags & kLast) != 0, ect, r,
                                left_packets, left_bytes, red, p.red_max, p.number});
        red = verdict.red;
        marked = verdict.mark;
    } else {
        marked = m->on_packet(static_cast<std::uint64_t>(at / kPsPerUs), k.step, psn,
                              k.flags & kLast, ect, r, left_packets, red, p.number)
                     .mark;
    }
    if (sc_.alpha_ns > 0) trace_alpha(s, *m, p, k, at);
    return marked;
}

void Model::trace_alpha(Switch& s, Marker& m, const Port& p, const Packet& k, TimePs at) {
    const bool shared = s.config->marker_scope == "switch";
    const std::uint32_t port = shared ? 0 : p.number;
    std::int64_t& next = s.alpha_next[(k.job - 1U) * (s.ports.size() + 1) + port];
    const std::int64_t ns = at / kPsPerNs;
    if (ns < next) return;
    next = (ns / sc_.alpha_ns + 1) * sc_.alpha_ns;
    const MarkerBlock& b = m.block(p.number);
    alpha_.time_ns.push_back(ns);
    alpha_.switch_node.push_back(static_cast<std::int32_t>(s.node));
    alpha_.port.push_back(static_cast<std::int32_t>(port));
    alpha_.job.push_back(jobs_[k.job - 1U].id);
    alpha_.alpha.push_back(static_cast<std::int32_t>(b.alpha));
    alpha_.step_min.push_back(static_cast<std::int32_t>(b.step_min));
    alpha_.psn_rec.push_back(static_cast<std::int32_t>(b.psn_rec));
}

// --- paths ---------------------------------------------------------------------------------------

std::uint32_t Model::ports_word(const Message& m, bool reverse) const {
    return reverse ? tc_.dport | m.sport << 16 : m.sport | tc_.dport << 16;
}

const std::vector<std::uint32_t>* Model::planned(std::uint32_t src, std::uint32_t dst,
                                                 std::uint32_t channel, int job,
                                                 std::uint32_t step) const {
    if (planned_.empty() || unplanned_.contains(job)) return nullptr;
    auto it = planned_.find({src, dst, channel, static_cast<std::uint32_t>(job)});
    if (it == planned_.end()) it = planned_.find({src, dst, channel, 0});
    if (it == planned_.end()) return nullptr;
    const auto& path = it->second[step % it->second.size()];
    for (const auto link : path)
        if (!up_[link]) return nullptr;
    return &path;
}

bool Model::walk(std::uint32_t from, std::uint32_t to, std::uint32_t ports,
                 std::vector<std::uint32_t>& path) const {
    path.clear();
    std::uint32_t at = from;
    while (at != to) {
        const auto hops = routes_.next_hops(at, to);
        if (hops.empty()) return false;
        const auto link =
            hops.size() == 1
                ? hops.front()
                : hops[ecmp(at, from, to, ports) % static_cast<std::uint32_t>(hops.size())];
        path.push_back(link);
        at = net_.links[link].to;
    }
    return true;
}

std::vector<std::uint32_t> Model::path(std::uint32_t src, std::uint32_t dst, std::uint32_t sport,
                                       std::uint32_t channel, int job) {
    if (const auto* plan = planned(src, dst, channel, job, 0)) return *plan;
    std::vector<std::uint32_t> out;
    if (!walk(src, dst, sport | tc_.dport << 16, out)) out.clear();
    return out;
}

void Model::lay_paths(Message& m, const Qp& q) {
    const std::uint32_t src = hosts_[q.host].node;
    const std::uint32_t dst = hosts_[q.peer].node;
    auto store = [&](const std::vector<std::uint32_t>& path,
                     std::array<std::uint16_t, kMaxHops>& into) {
        if (path.empty() || path.size() > kMaxHops || links_ > 65536) return false;
        // The first link is the NIC's own; switches read on from the second.
        for (std::size_t i = 1; i < path.size(); ++i)
            into[i - 1] = static_cast<std::uint16_t>(path[i]);
        return true;
    };
    m.by_hop = 0;
    m.forward = {};
    m.reverse = {};
    const int job = q.job == 0 ? 0 : jobs_[q.job - 1U].id;
    if (const auto* plan = planned(src, dst, q.channel, job, m.tag.step)) {
        store(*plan, m.forward);
    } else if (!walk(src, dst, ports_word(m, false), scratch_) || !store(scratch_, m.forward) ||
               dynamic_lb_) {
        m.by_hop |= 1;
    }
    if (!walk(dst, src, ports_word(m, true), scratch_) || !store(scratch_, m.reverse))
        m.by_hop |= 2;
}

TimePs Model::base_rtt(const Message& m, const Qp& q, double& slowest) {
    const std::uint32_t src = hosts_[q.host].node;
    const std::uint32_t dst = hosts_[q.peer].node;
    const int job = q.job == 0 ? 0 : jobs_[q.job - 1U].id;
    TimePs rtt = 0;
    slowest = line_rate(src);
    if (const auto* plan = planned(src, dst, q.channel, job, m.tag.step)) {
        scratch_ = *plan;
    } else if (!walk(src, dst, ports_word(m, false), scratch_)) {
        return kPsPerUs;
    }
    for (const auto link : scratch_) {
        const Port& p = ports_[link];
        rtt += p.delay + tx_time(p, mtu_) + ports_[link ^ 1].delay;
        slowest = std::min(slowest, static_cast<double>(p.rate_bps));
    }
    return rtt;
}

// --- hosts: sending ------------------------------------------------------------------------------

std::uint32_t Model::open_qp(const Connection& c) {
    std::uint32_t id;
    if (!free_qps_.empty()) {
        id = free_qps_.back();
        free_qps_.pop_back();
    } else {
        id = static_cast<std::uint32_t>(qps_.size());
        qps_.emplace_back();
    }
    Qp& q = qps_[id];
    const std::uint16_t use = q.use;
    q = Qp{};
    q.use = use;
    q.live = true;
    q.host = index_of_[c.src];
    q.peer = index_of_[c.dst];
    q.channel = c.channel;
    q.cc = c.cc;
    q.job = c.job;
    q.prio = c.prio;
    q.messages_left = c.messages;
    const CcKind& cc = ccs_[c.cc];
    if (cc.kind == CcKind::Kind::kDcqcn) q.rp.start(*cc.dcqcn);
    if (selective_) {
        if (free_selective_.empty()) {
            q.extra = static_cast<std::uint32_t>(selective_state_.size());
            selective_state_.emplace_back();
        } else {
            q.extra = free_selective_.back();
            free_selective_.pop_back();
            selective_state_[q.extra].clear();
        }
    }
    if (cc.kind == CcKind::Kind::kHpcc) {
        if (free_hpcc_.empty()) {
            q.hpcc = static_cast<std::uint32_t>(hpcc_.size());
            hpcc_.emplace_back();
        } else {
            q.hpcc = free_hpcc_.back();
            free_hpcc_.pop_back();
            hpcc_[q.hpcc] = Hpcc{};
        }
    }
    for (const auto& [src, dst] : rate_pairs_) q.traced |= src == c.src && dst == c.dst;
    return id;
}

void Model::free_qp(std::uint32_t id) {
    Qp& q = qps_[id];
    if (q.active) {
        auto& active = hosts_[q.host].active;
        active.erase(std::find(active.begin(), active.end(), id));
    }
    q.live = false;
    ++q.use;
    if (q.extra != kNone) free_selective_.push_back(q.extra);
    if (q.hpcc != kNone) free_hpcc_.push_back(q.hpcc);
    free_qps_.push_back(id);
}

void Model::post(std::uint32_t qp, std::int64_t bytes, std::uint32_t sport, const MessageTag& tag) {
    // First what was due before this message was there.
    Host& h = hosts_[qps_[qp].host];
    touch(h);
    std::uint32_t id;
    if (!free_messages_.empty()) {
        id = free_messages_.back();
        free_messages_.pop_back();
    } else {
        id = static_cast<std::uint32_t>(messages_.size());
        messages_.emplace_back();
    }
    Message& m = messages_[id];
    Qp& q = qps_[qp];
    m = Message{};
    m.live = true;
    m.qp = qp;
    m.bytes = bytes;
    m.tag = tag;
    m.sport = sport;
    m.start = now_;
    m.number = message_count_++;
    const std::int64_t count = std::max<std::int64_t>(1, (bytes + mtu_ - 1) / mtu_);
    if (count > static_cast<std::int64_t>(0xFFFFFFF0U) - q.snd_end)
        throw ConfigError("a queue pair cannot carry more than 2^32 packets (" +
                          std::to_string(bytes) + " B in packets of " + std::to_string(mtu_) +
                          " B); use a larger mtu_bytes or split the operation");
    m.begin = q.snd_end;
    m.end = q.snd_end + static_cast<std::uint32_t>(count);
    q.snd_end = m.end;
    lay_paths(m, q);
    if (least_loaded_) lanes_.resize(messages_.size());
    if (q.head == kNone) {
        q.head = id;
    } else {
        messages_[q.tail].next = id;
    }
    q.tail = id;
    if (q.message == kNone) q.message = id;
    if (q.rcv_message == kNone) q.rcv_message = id;
    if (m.begin == 0) {  // the first message tells how long the way is
        double slowest = 0;
        const bool hpcc = q.hpcc != kNone;
        if (hpcc || window_mode_ != 0) {
            const TimePs rtt = base_rtt(m, q, slowest);
            if (hpcc) hpcc_[q.hpcc].start(ccs_[q.cc].line_rate, rtt);
            q.window = tc_.window_bytes > 0
                           ? tc_.window_bytes
                           : static_cast<std::int64_t>(static_cast<double>(rtt) * slowest / 8e12);
        }
    }
    activate(qp);
    kick(h);
}

void Model::activate(std::uint32_t id) {
    Qp& q = qps_[id];
    if (q.active || !has_more(q)) return;
    q.active = true;
    hosts_[q.host].active.push_back(id);
}

bool Model::hole(Qp& q, std::uint32_t& psn) {
    Selective& s = selective_state_[q.extra];
    if (s.resend < q.snd_una) s.resend = q.snd_una;
    while (s.resend < s.highest && s.sacked.test(s.resend)) ++s.resend;
    psn = s.resend;
    return s.resend < s.highest;
}

bool Model::has_more(Qp& q) {
    std::uint32_t psn;
    return q.snd_nxt < q.snd_end || (q.extra != kNone && hole(q, psn));
}

bool Model::window_open(Qp& q, TimePs at) {
    if (q.window == 0) return true;
    std::uint32_t missing;
    if (q.extra != kNone && hole(q, missing)) return true;  // it is in the window already
    std::int64_t window = q.window;
    const CcKind& cc = ccs_[q.cc];
    if (q.hpcc != kNone || window_mode_ == 2) {
        double rate = cc.fixed_rate;
        if (cc.kind == CcKind::Kind::kHpcc) rate = hpcc_[q.hpcc].rate();
        if (cc.kind == CcKind::Kind::kDcqcn) rate = q.rp.advance(*cc.dcqcn, at);
        window = static_cast<std::int64_t>(static_cast<double>(window) * rate / cc.line_rate);
        // A window that shrinks below the ACK interval would wait for an ACK that nobody sends.
        window = std::max(window, static_cast<std::int64_t>(tc_.ack_interval) * mtu_);
    }
    return static_cast<std::int64_t>(q.snd_nxt - q.snd_una) * mtu_ < window;
}

std::uint32_t Model::message_of(const Qp& q, std::uint32_t psn) const {
    std::uint32_t id = q.head;
    while (id != kNone && messages_[id].end <= psn) id = messages_[id].next;
    return id;
}

std::uint32_t Model::next_size(Qp& q) {
    std::uint32_t psn = q.snd_nxt;
    std::uint32_t id = q.message;
    if (q.extra != kNone) {
        std::uint32_t missing;
        if (hole(q, missing)) {
            psn = missing;
            id = message_of(q, psn);
        }
    }
    const Message& m = messages_[id];
    if (psn + 1 < m.end) return full_size_;
    return static_cast<std::uint32_t>(
        m.bytes - static_cast<std::int64_t>(m.end - m.begin - 1) * mtu_ + tc_.header_bytes);
}

void Model::nic_advance(Host& h, TimePs now) {
    Port& p = ports_[h.nic];
    h.wake = kNever;
    while (p.busy_until <= now) {
        if (!(p.flags & kUp)) break;
        const TimePs at = p.busy_until;
        if (h.control.head != kNone && !(p.paused >> packets_[h.control.head].cls & 1)) {
            const std::uint32_t id = h.control.head;
            h.control.head = packets_[id].next;
            begin_transmission(h.nic, p, id, at);
            continue;
        }
        const auto n = static_cast<std::uint32_t>(h.active.size());
        std::uint32_t chosen = kNone;
        std::uint64_t oldest = ~0ULL;
        TimePs next = kNever;
        std::uint32_t next_qp = kNone;
        std::uint32_t i = h.rr;
        for (std::uint32_t tried = 0; tried < n; ++tried) {
            if (++i >= n) i = 0;
            Qp& q = qps_[h.active[i]];
            if (q.next_avail > at) {
                if (q.next_avail < next && !(p.paused >> q.prio & 1) && window_open(q, at)) {
                    next = q.next_avail;
                    next_qp = h.active[i];
                }
                continue;
            }
            if ((p.paused >> q.prio & 1) || !window_open(q, at)) continue;
            if (!in_order_nic_) {
                chosen = i;
                break;
            }
            const std::uint64_t age = messages_[q.message != kNone ? q.message : q.head].number;
            if (age < oldest) {
                oldest = age;
                chosen = i;
            }
        }
        if (chosen == kNone) {
            if (next > now) {
                h.wake = next;
                if (next_qp != kNone) h.wake_size = next_size(qps_[next_qp]);
                p.busy_until = now;
                break;
            }
            p.busy_until = next;
            continue;
        }
        h.rr = chosen;
        const std::uint32_t qp = h.active[chosen];
        Qp& q = qps_[qp];
        send_data(p, h, q, qp, at);
        if (!has_more(q)) {
            q.active = false;
            h.active.erase(h.active.begin() + chosen);
            h.rr = chosen == 0 ? static_cast<std::uint32_t>(h.active.size()) - 1 : chosen - 1;
            if (h.active.empty()) h.rr = 0;
        }
    }
}

void Model::nic_settle(Host& h) {
    Port& p = ports_[h.nic];
    if (p.flight_head != kNone) return;
    if (h.wake == kNever) {
        events_.cancel(h.nic);
    } else {
        events_.schedule(h.nic, h.wake + tx_time(p, h.wake_size) + p.delay);
    }
}

void Model::send_data(Port& p, Host& h, Qp& q, std::uint32_t qp, TimePs at) {
    std::uint32_t psn = q.snd_nxt;
    std::uint32_t message = q.message;
    bool resend = false;
    if (q.extra != kNone) {
        std::uint32_t missing;
        if (hole(q, missing)) {
            psn = missing;
            message = message_of(q, psn);
            ++selective_state_[q.extra].resend;
            resend = true;
        }
    }
    Message& m = messages_[message];
    const std::uint32_t id = packets_.alloc();
    Packet& k = packets_[id];
    std::uint32_t size = full_size_;
    std::uint8_t flags = kEct;
    if (psn + 1 == m.end) {
        size = static_cast<std::uint32_t>(
            m.bytes - static_cast<std::int64_t>(m.end - m.begin - 1) * mtu_ + tc_.header_bytes);
        flags |= kLast;
    }
    if (psn == m.begin) flags |= kFirst;
    if (m.by_hop & 1) flags |= kByHop;
    k.qp = qp;
    k.message = message;
    k.psn = psn;
    k.size = static_cast<std::uint16_t>(size);
    k.kind = PacketKind::kData;
    k.flags = flags;
    k.cls = k.prio = q.prio;
    k.hop = 0;
    k.job = q.job;
    k.step = m.tag.step;
    k.qp_use = q.use;
    k.rev = 0;
    k.aux = m.sport;
    k.path = m.forward;
    if (has_int_) {
        if (int_.size() < packets_.peak()) int_.resize(packets_.peak() * 2);
        int_[id].hops = 0;
    }
    ++totals.data_packets;
    if (psn < q.snd_max) {
        ++totals.retransmissions;
        ++m.retransmissions;
    } else {
        q.snd_max = psn + 1;
    }
    const bool idle = q.snd_nxt == q.snd_una;
    if (!resend) {
        ++q.snd_nxt;
        if (q.snd_nxt == m.end) q.message = m.next;
        if (tc_.ack_interval > 1 && !window_open(q, at)) k.flags |= kAckReq;
    } else {
        k.flags |= kAckReq;
    }
    if (rto_ != 0 && (idle || q.rto_deadline == kNever)) arm_rto(qp, q, at);

    if (p.flags & kRecord) record(h.nic, k, at, 0, false);
    begin_transmission(h.nic, p, id, at);
    const CcKind& cc = ccs_[q.cc];
    double rate = cc.fixed_rate;
    if (cc.kind == CcKind::Kind::kDcqcn) {
        rate = q.rp.on_sent(*cc.dcqcn, size, at);
        if (q.traced) trace(qp, q, at);
    } else if (cc.kind == CcKind::Kind::kHpcc) {
        rate = hpcc_[q.hpcc].rate();
    }
    if (rate >= static_cast<double>(p.rate_bps)) {
        q.next_avail = p.busy_until;
    } else {
        auto gap = static_cast<TimePs>(size * 8e12 / rate + 0.5);
        if (round_ns_) gap = (gap + 500) / 1000 * 1000;
        q.next_avail = at + gap;
    }
}

void Model::trace(std::uint32_t, Qp& q, TimePs at) {
    const CcKind& cc = ccs_[q.cc];
    if (cc.kind == CcKind::Kind::kDcqcn) q.rp.settle(*cc.dcqcn, at);
    const double rate = cc.kind == CcKind::Kind::kDcqcn  ? q.rp.rate()
                        : cc.kind == CcKind::Kind::kHpcc ? hpcc_[q.hpcc].rate()
                                                         : cc.fixed_rate;
    const auto message = q.head;
    rates_.flow.push_back(message == kNone ? -1
                                           : static_cast<std::int64_t>(messages_[message].number));
    rates_.time_ns.push_back(at / kPsPerNs);
    rates_.rate_bps.push_back(rate);
    rates_.alpha.push_back(q.rp.alpha());
}

void Model::arm_rto(std::uint32_t qp, Qp& q, TimePs from) {
    if (rto_ == 0) return;
    q.rto_deadline = from + rto_;
    if (q.timer_armed) return;
    q.timer_armed = true;
    schedule(q.rto_deadline, &rto_target_, static_cast<std::uint64_t>(q.use) << 32 | qp);
}

void Model::on_rto(std::uint64_t arg) {
    const auto qp = static_cast<std::uint32_t>(arg);
    Qp& q = qps_[qp];
    if (!q.live || q.use != static_cast<std::uint16_t>(arg >> 32)) return;
    q.timer_armed = false;
    if (q.rto_deadline == kNever) return;
    Host& h = hosts_[q.host];
    touch(h);
    if (q.rto_deadline > now_) {
        q.timer_armed = true;
        schedule(q.rto_deadline, &rto_target_, arg);
        nic_settle(h);
        return;
    }
    ++totals.timeouts;
    if (q.extra != kNone) {
        Selective& s = selective_state_[q.extra];
        s.resend = q.snd_una;
        s.highest = q.snd_max;
        activate(qp);
    } else {
        go_back(q, qp, q.snd_una);
    }
    arm_rto(qp, q, now_);
    kick(h);
}

void Model::go_back(Qp& q, std::uint32_t qp, std::uint32_t psn) {
    q.snd_nxt = psn;
    q.message = message_of(q, psn);
    activate(qp);
}

// --- hosts: receiving ----------------------------------------------------------------------------

void Model::host_receive(Host& h, std::uint32_t id, std::uint32_t link) {
    {
        const Packet& k = packets_[id];
        if (k.kind == PacketKind::kPause) {
            receive_pause(link, k);
            packets_.release(id);
            return;
        }
        const Qp& q = qps_[k.qp];
        if (!q.live || q.use != k.qp_use) {  // late news of a message that is done
            packets_.release(id);
            return;
        }
    }
    touch(h);
    switch (packets_[id].kind) {
        case PacketKind::kData:
            receive_data(h, id);
            break;
        case PacketKind::kCnp: {
            const Packet& k = packets_[id];
            Qp& q = qps_[k.qp];
            const CcKind& cc = ccs_[q.cc];
            if (cc.kind == CcKind::Kind::kDcqcn) q.rp.on_cnp(*cc.dcqcn, now_);
            if (q.traced) trace(k.qp, q, now_);
            packets_.release(id);
            nic_settle(h);
            break;
        }
        default:
            receive_ack(h, id);
            break;
    }
}

void Model::reply(Host& h, std::uint32_t id, PacketKind kind, const Qp& q) {
    // The data packet becomes its own acknowledgement.
    Packet& k = packets_[id];
    const Message& m = messages_[k.message];
    const bool last = k.flags & kLast;
    k.kind = kind;
    k.size = static_cast<std::uint16_t>(kind == PacketKind::kCnp ? tc_.cnp_bytes : tc_.ack_bytes);
    // A duplicate may come after its message is done and the slot is another's.
    const bool by_hop = (m.by_hop & 2) || !m.live || m.qp != k.qp;
    k.flags = static_cast<std::uint8_t>((last ? kAckOfLast : 0) | (by_hop ? kByHop : 0));
    k.psn = q.rcv_nxt;
    k.cls = control_class(q.prio);
    k.hop = 0;
    k.rev = 1;
    k.path = m.reverse;
    k.next = kNone;
    ClassQueue& c = h.control;
    if (c.head == kNone) {
        c.head = id;
    } else {
        packets_[c.tail].next = id;
    }
    c.tail = id;
}

void Model::receive_data(Host& h, std::uint32_t id) {
    Packet* k = &packets_[id];
    const std::uint32_t qp = k->qp;
    Qp& q = qps_[qp];
    bool tell = false;
    if (k->flags & kCe) {
        const CcKind& cc = ccs_[q.cc];
        if (cc.kind != CcKind::Kind::kDcqcn || cc.dcqcn->cnp_interval < 0) {
            tell = true;
        } else if (q.last_cnp < 0 || now_ - q.last_cnp >= cc.dcqcn->cnp_interval) {
            q.last_cnp = now_;
            const auto cnp = packets_.alloc();
            packets_[cnp] = packets_[id];
            reply(h, cnp, PacketKind::kCnp, q);
            ++totals.cnps;
            k = &packets_[id];
        }
    }
    tell |= q.ce_pending;
    const std::uint32_t psn = k->psn;
    const bool last = k->flags & kLast;
    bool acknowledge = true;
    bool arrived = false;
    PacketKind kind = PacketKind::kAck;
    if (psn == q.rcv_nxt) {
        ++q.rcv_nxt;
        if (q.extra != kNone) {
            FlagRing& received = selective_state_[q.extra].received;
            while (received.test(q.rcv_nxt)) received.clear(q.rcv_nxt++);
        }
        q.nak_for = kNone;
        ++q.rcv_unacked;
        arrived = q.rcv_nxt >= messages_[q.rcv_message].end;
        acknowledge = last || arrived || (k->flags & kAckReq) ||
                      static_cast<int>(q.rcv_unacked) >= tc_.ack_interval;
    } else if (psn > q.rcv_nxt) {
        if (q.extra != kNone) {
            selective_state_[q.extra].received.set(psn, q.rcv_nxt);
            kind = PacketKind::kNak;
        } else if (q.nak_for != q.rcv_nxt || now_ - q.nak_time >= nak_interval_) {
            q.nak_for = q.rcv_nxt;
            q.nak_time = now_;
            kind = PacketKind::kNak;
        } else {
            acknowledge = false;
        }
    }
    if (acknowledge) {
        q.rcv_unacked = 0;
        q.ce_pending = false;
        reply(h, id, kind, q);
        if (tell) k->flags |= kEcho;
        k->aux = psn;
        if (kind == PacketKind::kNak) {
            ++totals.naks;
        } else {
            ++totals.acks;
        }
    } else {
        q.ce_pending = tell;
        packets_.release(id);
    }
    kick(h);
    if (arrived) deliver(qp);
}

void Model::deliver(std::uint32_t qp) {
    for (;;) {
        Qp& q = qps_[qp];  // anew each time: the sink may open queue pairs
        const std::uint32_t id = q.rcv_message;
        if (id == kNone || q.rcv_nxt < messages_[id].end) return;
        Message& m = messages_[id];
        q.rcv_message = m.next;
        m.delivered = now_;
        const MessageTag tag = m.tag;
        const std::int64_t bytes = m.bytes;
        if (sink_ != nullptr) sink_->on_delivered(tag, bytes);
    }
}

void Model::receive_ack(Host& h, std::uint32_t id) {
    const Packet& k = packets_[id];
    const std::uint32_t qp = k.qp;
    const std::uint32_t psn = k.psn;
    const std::uint32_t came = k.aux;
    const bool nak = k.kind == PacketKind::kNak;
    Qp& q = qps_[qp];
    const CcKind& cc = ccs_[q.cc];
    if (cc.kind == CcKind::Kind::kDcqcn) {
        if (k.flags & kEcho) {
            q.rp.on_cnp(*cc.dcqcn, now_);
            if (q.traced) trace(qp, q, now_);
        }
    } else if (cc.kind == CcKind::Kind::kHpcc && !nak) {
        hpcc_[q.hpcc].on_ack(cc.hpcc, int_[id], psn, q.snd_nxt);
        if (q.traced) trace(qp, q, now_);
    }
    packets_.release(id);

    bool done = false;
    if (psn > q.snd_una) {
        q.snd_una = psn;
        if (q.snd_nxt < psn) {
            q.snd_nxt = psn;
            q.message = message_of(q, psn);
        }
        q.rto_deadline = q.snd_una == q.snd_max ? kNever : now_ + rto_;
        done = messages_[q.head].end <= psn;
    }
    if (nak) take_nak(q, qp, psn, came);
    // What was to be sent again may be known to have arrived by now.
    if (q.active && !has_more(q)) deactivate(h, qp);
    kick(h);
    if (done) complete(qp);
}

void Model::deactivate(Host& h, std::uint32_t qp) {
    qps_[qp].active = false;
    const auto at = std::find(h.active.begin(), h.active.end(), qp);
    const auto index = static_cast<std::uint32_t>(at - h.active.begin());
    h.active.erase(at);
    if (h.rr >= index && h.rr > 0) --h.rr;
}

void Model::take_nak(Qp& q, std::uint32_t qp, std::uint32_t psn, std::uint32_t came) {
    if (q.extra != kNone) {
        Selective& s = selective_state_[q.extra];
        if (came >= q.snd_una) s.sacked.set(came, q.snd_una);
        s.highest = std::max(s.highest, came + 1);
        activate(qp);
    } else if (psn >= q.snd_una && psn < q.snd_nxt) {
        go_back(q, qp, psn);
    }
}

void Model::complete(std::uint32_t qp) {
    for (;;) {
        Qp& q = qps_[qp];
        const std::uint32_t id = q.head;
        if (id == kNone || messages_[id].end > q.snd_una) return;
        Message& m = messages_[id];
        q.head = m.next;
        if (q.head == kNone) q.tail = kNone;
        m.acked = now_;
        m.live = false;
        const MessageTag tag = m.tag;
        const std::int64_t bytes = m.bytes;
        const bool over = q.messages_left != 0 && --q.messages_left == 0;
        if (sc_.flows) note_flow(m, q);
        if (least_loaded_) leave_lanes(id);
        free_messages_.push_back(id);
        if (over) free_qp(qp);
        if (sink_ != nullptr) sink_->on_acked(tag, bytes);
        if (over) return;
    }
}

void Model::note_flow(const Message& m, const Qp& q) {
    flows.job.push_back(q.job == 0 ? 0 : jobs_[q.job - 1U].id);
    flows.op.push_back(static_cast<std::int32_t>(m.tag.op));
    flows.ring.push_back(static_cast<std::int32_t>(m.tag.ring));
    flows.step.push_back(static_cast<std::int32_t>(m.tag.step));
    flows.src.push_back(static_cast<std::int32_t>(hosts_[q.host].node));
    flows.dst.push_back(static_cast<std::int32_t>(hosts_[q.peer].node));
    flows.id.push_back(static_cast<std::int64_t>(m.number));
    flows.bytes.push_back(m.bytes);
    flows.start_ns.push_back(to_ns(m.start));
    flows.end_ns.push_back(to_ns(m.acked));
    flows.delivered_ns.push_back(to_ns(m.delivered));
    flows.retransmissions.push_back(static_cast<std::int32_t>(m.retransmissions));
    flows.sport.push_back(static_cast<std::int32_t>(m.sport));
    flows.qp.push_back(static_cast<std::int32_t>(m.qp));
}

// --- time ----------------------------------------------------------------------------------------

void Model::schedule(TimePs at, TimerTarget* target, std::uint64_t arg) {
    timers_.push_back({at, ++timer_order_, target, arg});
    std::push_heap(timers_.begin(), timers_.end(), std::greater<>{});
    if (timers_.front().order == timer_order_) events_.schedule(timer_source_, at);
}

void Model::timer_event() {
    while (!timers_.empty() && timers_.front().time <= now_) {
        std::pop_heap(timers_.begin(), timers_.end(), std::greater<>{});
        const Timer t = timers_.back();
        timers_.pop_back();
        t.target->on_timer(t.arg);
    }
    if (!timers_.empty()) events_.schedule(timer_source_, timers_.front().time);
}

bool Model::run_before(const std::int64_t& limit_ns, std::uint64_t budget) {
    // The limit can come nearer while events run: others may put one into ns-3's queue.
    std::int64_t seen = limit_ns;
    TimePs limit = seen >= kNever / kPsPerNs ? kNever : seen * kPsPerNs;
    TimePs time = 0;
    std::uint64_t left = budget;
    while (left != 0 && !stop_) {
        if (limit_ns != seen) [[unlikely]] {
            seen = limit_ns;
            limit = seen >= kNever / kPsPerNs ? kNever : seen * kPsPerNs;
        }
        const std::uint32_t source = events_.pop_before(limit, time);
        if (source == kNone) break;
        now_ = time;
        --left;
        if (source < links_) {
            link_event(source);
        } else if (source == timer_source_) {
            timer_event();
        } else {
            departure_event(source - links_);
        }
        if (!pauses_.empty()) [[unlikely]]
            flush_pauses();
    }
    totals.events += budget - left;
    totals.peak_packets = packets_.peak();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return left == 0;
}

// --- tables --------------------------------------------------------------------------------------

Table Model::flow_table() const {
    Table t = {{"id", flows.id},
               {"job", flows.job},
               {"op", flows.op},
               {"ring", flows.ring},
               {"step", flows.step},
               {"src", flows.src},
               {"dst", flows.dst},
               {"bytes", flows.bytes},
               {"start_ns", flows.start_ns},
               {"end_ns", flows.end_ns},
               {"delivered_ns", flows.delivered_ns},
               {"retransmissions", flows.retransmissions},
               {"sport", flows.sport},
               {"qp", flows.qp}};
    // Messages under way come last.
    for (const Message& m : messages_) {
        if (!m.live || !sc_.flows) continue;
        const Qp& q = qps_[m.qp];
        auto add = [&](std::size_t column, std::int64_t value) {
            std::visit(
                [&](auto& v) {
                    v.push_back(static_cast<typename std::decay_t<decltype(v)>::value_type>(value));
                },
                t[column].second);
        };
        add(0, static_cast<std::int64_t>(m.number));
        add(1, q.job == 0 ? 0 : jobs_[q.job - 1U].id);
        add(2, m.tag.op);
        add(3, m.tag.ring);
        add(4, m.tag.step);
        add(5, hosts_[q.host].node);
        add(6, hosts_[q.peer].node);
        add(7, m.bytes);
        add(8, to_ns(m.start));
        add(9, kNever);
        add(10, to_ns(m.delivered));
        add(11, m.retransmissions);
        add(12, m.sport);
        add(13, m.qp);
    }
    return t;
}

Table Model::link_table() {
    const std::size_t n = links_;
    auto id = reserve_column<std::int32_t>(n), src = reserve_column<std::int32_t>(n),
         dst = reserve_column<std::int32_t>(n), steps = reserve_column<std::int32_t>(n),
         distance = reserve_column<std::int32_t>(n);
    std::vector<std::vector<std::int64_t>> wide(14);
    for (std::uint32_t i = 0; i < links_; ++i) {
        const Port& p = ports_[i];
        id.push_back(static_cast<std::int32_t>(i));
        src.push_back(static_cast<std::int32_t>(net_.links[i].from));
        dst.push_back(static_cast<std::int32_t>(net_.links[i].to));
        const TimePs paused = p.paused_time + (p.paused != 0 ? now_ - p.paused_since : 0);
        const std::int64_t values[] = {p.rate_bps,
                                       static_cast<std::int64_t>(p.packets),
                                       static_cast<std::int64_t>(p.bytes),
                                       static_cast<std::int64_t>(p.data_packets),
                                       static_cast<std::int64_t>(p.marks_red),
                                       static_cast<std::int64_t>(p.marks_marker),
                                       static_cast<std::int64_t>(p.drops_buffer),
                                       static_cast<std::int64_t>(p.drops_wire),
                                       static_cast<std::int64_t>(p.pauses_sent),
                                       static_cast<std::int64_t>(p.pauses_received),
                                       paused / kPsPerNs,
                                       p.max_queue_bytes,
                                       p.max_queue_packets};
        for (std::size_t c = 0; c < std::size(values); ++c) wide[c].push_back(values[c]);
        LinkSeries::Peak peak;
        for (const LinkSeries& s : series_[i]) {
            const auto here = s.peak();
            peak.steps = std::max(peak.steps, here.steps);
            peak.distance = std::max(peak.distance, here.distance);
        }
        steps.push_back(peak.steps);
        distance.push_back(peak.distance);
    }
    return {{"link", id},
            {"src", src},
            {"dst", dst},
            {"rate_bps", wide[0]},
            {"packets", wide[1]},
            {"bytes", wide[2]},
            {"data_packets", wide[3]},
            {"marks_red", wide[4]},
            {"marks_marker", wide[5]},
            {"drops_buffer", wide[6]},
            {"drops_wire", wide[7]},
            {"pauses_sent", wide[8]},
            {"pauses_received", wide[9]},
            {"paused_ns", wide[10]},
            {"max_queue_bytes", wide[11]},
            {"max_queue_packets", wide[12]},
            {"max_steps", steps},
            {"max_distance", distance}};
}

Table Model::series_table() {
    SeriesColumns c = series_out_;  // with the windows under way, which stay open in the model
    for (auto& here : series_)
        for (LinkSeries s : here) s.flush(sc_.sample_ns, c);
    // A window is closed when the next packet comes, which is no order to show.
    std::vector<std::size_t> order(c.link.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::tie(c.time_ns[a], c.link[a], c.job[a]) <
               std::tie(c.time_ns[b], c.link[b], c.job[b]);
    });
    auto arrange = [&](auto& column) {
        auto sorted = column;
        for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = column[order[i]];
        column = std::move(sorted);
    };
    for (auto* column : {&c.time_ns, &c.data_bytes, &c.queue_bytes}) arrange(*column);
    for (auto* column : {&c.link, &c.job, &c.data_packets, &c.steps, &c.distance, &c.marks})
        arrange(*column);
    return {{"link", c.link},
            {"job", c.job},
            {"time_ns", c.time_ns},
            {"data_bytes", c.data_bytes},
            {"data_packets", c.data_packets},
            {"steps", c.steps},
            {"distance", c.distance},
            {"queue_bytes", c.queue_bytes},
            {"marks", c.marks}};
}

Table Model::alpha_table() const {
    return {{"time_ns", alpha_.time_ns}, {"switch", alpha_.switch_node},
            {"port", alpha_.port},       {"job", alpha_.job},
            {"alpha", alpha_.alpha},     {"step_min", alpha_.step_min},
            {"psn_rec", alpha_.psn_rec}};
}

Table Model::histogram_table() const {
    std::vector<std::int32_t> link;
    std::vector<std::int64_t> bin, count;
    for (std::uint32_t i = 0; i < links_; ++i)
        for (std::size_t b = 0; b < histogram_[i].size(); ++b) {
            if (histogram_[i][b] == 0) continue;
            link.push_back(static_cast<std::int32_t>(i));
            bin.push_back(static_cast<std::int64_t>(b) * sc_.queue_bin_bytes);
            count.push_back(static_cast<std::int64_t>(histogram_[i][b]));
        }
    return {{"link", link}, {"bin", bin}, {"packets", count}};
}

Table Model::marker_table() const {
    std::vector<std::int32_t> node, job;
    std::vector<std::int64_t> data, marks, red, corrections, advances;
    for (const Switch& s : switches_)
        for (std::size_t j = 0; j < s.markers.size(); ++j) {
            if (!s.markers[j]) continue;
            const MarkerCounters& c = s.markers[j]->counters();
            const TrialShift shift =
                s.trial ? s.trial->shift(static_cast<std::uint32_t>(j)) : TrialShift{};
            node.push_back(static_cast<std::int32_t>(s.node));
            job.push_back(jobs_[j].id);
            data.push_back(static_cast<std::int64_t>(c.data));
            marks.push_back(static_cast<std::int64_t>(c.marks) + shift.marks);
            red.push_back(static_cast<std::int64_t>(c.red_marks) + shift.red_marks);
            corrections.push_back(static_cast<std::int64_t>(c.corrections));
            advances.push_back(static_cast<std::int64_t>(c.advances));
        }
    return {{"switch", node},      {"job", job},       {"data", data},
            {"marks", marks},      {"red_marks", red}, {"corrections", corrections},
            {"advances", advances}};
}

Table Model::rate_table() const {
    return {{"flow", rates_.flow},
            {"time_ns", rates_.time_ns},
            {"rate_bps", rates_.rate_bps},
            {"alpha", rates_.alpha}};
}

}  // namespace ringstep
