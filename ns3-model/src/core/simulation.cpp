#include "core/simulation.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

namespace ringstep {

namespace {

constexpr std::uint64_t kPollEvents = 200'000;  // between looks at signals

std::string key_of(const CcConfig& cc, double line) {
    // Equal configurations share their constants.
    std::ostringstream out;
    out.precision(17);
    const DcqcnParams& d = cc.dcqcn;
    out << cc.kind << '|' << cc.preset << '|' << line << '|' << cc.fixed_rate_bps << '|'
        << d.t_alpha_us << '|' << d.t_dec_us << '|' << d.t_rp_us << '|' << d.g << '|' << d.f << '|'
        << d.rate_ai_bps << '|' << d.rate_hai_bps << '|' << d.min_rate_bps << '|'
        << d.byte_counter_bytes.value_or(-1) << '|' << d.clamp_target << d.clamp_after_time_inc
        << d.hai_scaling << '|' << d.gd << '|' << d.min_dec_fac << '|' << d.rate_on_first_cnp << '|'
        << d.initial_alpha << '|' << d.reaction << '|' << d.cnp_interval_us.value_or(-1) << '|'
        << cc.hpcc.eta << '|' << cc.hpcc.max_stage << '|' << cc.hpcc.rate_ai_bps << '|'
        << cc.hpcc.min_rate_bps;
    return out.str();
}

}  // namespace

Simulation::Simulation(const Network& network, const TransportConfig& transport, std::uint32_t seed,
                       const StatsConfig& stats)
    : network_(network),
      transport_(transport),
      stats_(stats),
      model_(network, transport, stats, seed),
      port_seed_(Ns3Bridge::stream_seed(seed, static_cast<std::uint64_t>(Stream::kPort) << 32)) {
    model_.set_sink(this);
    for (std::uint32_t n = 0; n < network_.nodes.size(); ++n)
        if (network_.nodes[n].is_host) cc_for(std::nullopt, n);
    for (const LinkEventSpec& e : network_.events) {
        const LinkEventSpec event = e;
        at(e.time_ns, [this, event] { model_.apply(event); });
    }
}

Simulation::~Simulation() = default;

std::vector<std::string> Simulation::warnings() const {
    std::vector<std::string> out = model_.warnings();
    for (const JobState& s : jobs_) {
        const JobSpec& spec = s.job->spec();
        if (s.persistent && !s.sticky && transport_.recovery == "gbn")
            out.push_back("job " + std::to_string(spec.job_id) +
                          ": a persistent connection whose source port changes with the step can "
                          "take another path while packets are under way, and go-back-N takes the "
                          "reordering for loss; use port = \"sticky\", planned paths or recovery = "
                          "\"selective\"");
        const bool priority = std::any_of(
            network_.nodes.begin(), network_.nodes.end(),
            [](const NodeSpec& n) { return !n.is_host && n.config.marking == "priority"; });
        if ((s.persistent || s.pool || spec.messages_per_step > 1) && spec.marker && priority)
            out.push_back("job " + std::to_string(spec.job_id) +
                          ": priority for laggards puts messages of one connection into different "
                          "queues, which reorders; use sender = \"qp_per_step\" and one message "
                          "per step with it");
    }
    return out;
}

std::uint32_t Simulation::cc_for(const std::optional<CcConfig>& cc, std::uint32_t node) {
    const CcConfig& config = cc ? *cc : transport_.cc;
    const double line = model_.line_rate(node);
    const std::string key = key_of(config, line);
    for (const auto& [known, id] : cc_known_)
        if (known == key) return id;
    const std::uint32_t id = model_.add_cc(config, line);
    cc_known_.emplace_back(key, id);
    return id;
}

void Simulation::add_job(const JobSpec& spec) {
    if (started_) throw ConfigError("jobs are added before the run");
    for (std::size_t r = 0; r < spec.hosts.size(); ++r)
        require(network_.is_host(spec.hosts[r]), "job " + std::to_string(spec.job_id) + ": hosts",
                spec.hosts[r], "rank " + std::to_string(r) + " is not on a host of this network");
    for (const JobState& other : jobs_)
        require(other.job->spec().job_id != spec.job_id, "job_id", spec.job_id, "is in use");
    std::vector<int> sorted = spec.hosts;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
        throw ConfigError("job " + std::to_string(spec.job_id) + ": host " +
                          std::to_string(*twice) +
                          " carries two ranks; a host carries one per job");
    JobState s;
    JobNetwork& waist = *this;
    s.job = std::make_unique<Job>(spec, static_cast<std::uint16_t>(jobs_.size() + 1), waist,
                                  stats_.steps);
    for (const auto& [a, b] : s.job->pairs()) {
        const int from = spec.hosts[static_cast<std::size_t>(a)];
        const int to = spec.hosts[static_cast<std::size_t>(b)];
        if (model_.path(static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to), 0, 0, 0)
                .empty())
            throw ConfigError("job " + std::to_string(spec.job_id) + ": host " +
                              std::to_string(to) + " cannot be reached from host " +
                              std::to_string(from));
    }
    for (const int host : spec.hosts)
        s.cc.push_back(cc_for(spec.cc, static_cast<std::uint32_t>(host)));
    s.persistent = spec.sender == "persistent";
    s.pool = spec.sender == "qp_pool";
    s.sticky = spec.port == "sticky";
    s.sender_ack = spec.notify == "sender_ack";
    model_.add_job(spec.job_id, spec.marker, spec.known, static_cast<std::uint8_t>(spec.priority));
    Job* job = s.job.get();
    jobs_.push_back(std::move(s));
    ++jobs_left_;
    at(spec.start_ns, [job] { job->start(); });
}

std::int64_t Simulation::add_flow(const FlowSpec& flow) {
    if (started_) throw ConfigError("flows are added before the run");
    require(network_.is_host(flow.src), "src", flow.src, "not a host of this network");
    require(network_.is_host(flow.dst), "dst", flow.dst, "not a host of this network");
    require(flow.src != flow.dst, "dst", flow.dst, "a flow needs two hosts");
    require(flow.bytes >= 0, "bytes_", flow.bytes, "must not be negative");
    require(flow.start_ns >= 0, "start_ns", flow.start_ns, "must not be negative");
    require(flow.priority >= 2 && flow.priority < kClasses, "priority", flow.priority,
            "must lie in 2..7");
    require(flow.sport <= 65535, "sport", flow.sport, "must be a UDP port");
    if (model_
            .path(static_cast<std::uint32_t>(flow.src), static_cast<std::uint32_t>(flow.dst),
                  flow.sport, 0, 0)
            .empty())
        throw ConfigError("host " + std::to_string(flow.dst) + " cannot be reached from host " +
                          std::to_string(flow.src));
    if (flow.cc) cc_for(flow.cc, static_cast<std::uint32_t>(flow.src));
    model_.use_class(static_cast<std::uint8_t>(flow.priority));
    flow_specs_.push_back(flow);
    flow_bytes_ += static_cast<double>(flow.bytes);
    ++flows_left_;
    return static_cast<std::int64_t>(flow_specs_.size()) - 1;
}

void Simulation::set_marking_policy(int node, MarkingPolicy policy) {
    require(node >= 0 && static_cast<std::size_t>(node) < network_.nodes.size() &&
                !network_.is_host(node),
            "switch", node, "not a switch of this network");
    model_.set_policy(static_cast<std::uint32_t>(node), std::move(policy));
}

void Simulation::at(std::int64_t time_ns, std::function<void()> action) {
    require(time_ns >= 0, "time_ns", time_ns, "must not be negative");
    auto event = std::make_unique<SlowEvent>();
    event->time_ns = time_ns;
    event->action = std::move(action);
    SlowEvent* e = event.get();
    slow_.push_back(std::move(event));
    if (bridge_ != nullptr) {
        bridge_->schedule_at(time_ns, [this, e] {
            e->done = true;
            guarded(std::exchange(e->action, nullptr));
        });
    }
}

std::uint16_t Simulation::index_of(int job_id) const {
    for (std::size_t i = 0; i < jobs_.size(); ++i)
        if (jobs_[i].job->spec().job_id == job_id) return static_cast<std::uint16_t>(i + 1);
    throw ConfigError("job = " + std::to_string(job_id) + ": no such job");
}

void Simulation::set_planned(int job_id, bool on) {
    index_of(job_id);
    model_.set_planned(job_id, on);
}

void Simulation::set_marker(int job_id, const MarkerParams& params) {
    const std::uint16_t index = index_of(job_id);
    require(jobs_[index - 1U].job->spec().marker.has_value(), "job", job_id,
            "was added without a marker");
    model_.set_marker(index, params);
}

std::vector<std::uint32_t> Simulation::path(int src, int dst, std::uint32_t sport, int channel,
                                            int job) {
    require(network_.is_host(src), "src", src, "not a host of this network");
    require(network_.is_host(dst), "dst", dst, "not a host of this network");
    return model_.path(static_cast<std::uint32_t>(src), static_cast<std::uint32_t>(dst), sport,
                       static_cast<std::uint32_t>(channel), job);
}

void Simulation::trace_rate(int src, int dst) {
    require(network_.is_host(src), "src", src, "not a host of this network");
    require(network_.is_host(dst), "dst", dst, "not a host of this network");
    model_.trace_rate(static_cast<std::uint32_t>(src), static_cast<std::uint32_t>(dst));
}

// --- messages ------------------------------------------------------------------------------------

void Simulation::send(std::uint16_t index, std::uint32_t op, std::uint64_t cookie,
                      const Transfer& t, std::uint32_t step_tag) {
    JobState& s = jobs_[index - 1U];
    const JobSpec& spec = s.job->spec();
    Model::Connection c;
    c.src = static_cast<std::uint32_t>(spec.hosts[static_cast<std::size_t>(t.src)]);
    c.dst = static_cast<std::uint32_t>(spec.hosts[static_cast<std::size_t>(t.dst)]);
    c.channel = t.ring;
    c.cc = s.cc[static_cast<std::size_t>(t.src)];
    c.job = index;
    c.prio = static_cast<std::uint8_t>(spec.priority);
    std::uint32_t lane = 0;
    std::uint32_t qp;
    if (s.persistent || s.pool) {
        if (s.pool) lane = step_tag % static_cast<std::uint32_t>(spec.pool);
        c.messages = 0;
        const std::uint64_t key = (static_cast<std::uint64_t>(t.src) << 44) |
                                  (static_cast<std::uint64_t>(t.dst) << 24) |
                                  (static_cast<std::uint64_t>(t.ring) << 8) | lane;
        const auto [entry, fresh] = s.qps.try_emplace(key, 0);
        if (fresh) entry->second = model_.open_qp(c);
        qp = entry->second;
    } else if (t.messages > 1) {
        // The messages of a step share its queue pair; the last of them lets go of it.
        c.messages = static_cast<std::uint16_t>(t.messages);
        const std::uint64_t key = (static_cast<std::uint64_t>(t.src) << 48) |
                                  (static_cast<std::uint64_t>(t.ring) << 32) | step_tag;
        const auto [entry, fresh] = s.steps.try_emplace(key, StepQp{0, t.messages});
        if (fresh) entry->second.qp = model_.open_qp(c);
        qp = entry->second.qp;
        if (--entry->second.left == 0) s.steps.erase(entry);
    } else {
        qp = model_.open_qp(c);
    }
    std::uint32_t sport = transport_.sport_base;
    const bool tagged = sport == 0xC000;
    if (s.sticky) {
        // A port of its own per queue pair, drawn from the seed.
        const std::uint64_t draw =
            mix64(mix64(port_seed_ ^ index) ^ (static_cast<std::uint64_t>(c.src) << 40) ^
                  (static_cast<std::uint64_t>(c.dst) << 16) ^
                  (static_cast<std::uint64_t>(t.ring) << 8) ^ lane);
        sport = 0xC000U | static_cast<std::uint32_t>(draw & 0x3FFF);
    } else if (s.pool) {
        // Ports are set once per queue pair: they carry the step modulo the size of the pool.
        sport = (sport + lane) & 0xFFFF;
    } else if (tagged) {
        sport |= step_tag & 0x3FFF;
    } else {
        sport = (sport + step_tag) & 0xFFFF;
    }
    MessageTag tag;
    tag.cookie = cookie;
    tag.op = op;
    tag.ring = t.ring;
    tag.step = step_tag;
    tag.job = index;
    model_.post(qp, t.bytes, sport, tag);
}

void Simulation::on_delivered(const MessageTag& tag, std::int64_t bytes) {
    if (tag.job == 0) {
        flow_bytes_done_ += static_cast<double>(bytes);
        return;
    }
    JobState& s = jobs_[tag.job - 1U];
    s.job->note_delivery(tag.op, tag.ring, tag.step, bytes);
    if (!s.sender_ack) s.job->on_arrived(tag.op, tag.cookie, tag.step);
}

void Simulation::on_acked(const MessageTag& tag, std::int64_t) {
    if (tag.job == 0) {
        --flows_left_;
    } else {
        JobState& s = jobs_[tag.job - 1U];
        s.job->on_acked(tag.op, tag.cookie, tag.step);
        if (s.sender_ack) s.job->on_arrived(tag.op, tag.cookie, tag.step);
    }
    if (complete()) model_.stop();
}

void Simulation::op_done(std::uint16_t job, std::uint32_t op) {
    if (!on_operation_) return;
    try {
        on_operation_(jobs_[job - 1U].job->spec().job_id, op, to_ns(model_.now()));
    } catch (...) {
        model_.fail(std::current_exception());
    }
}

void Simulation::job_done(std::uint16_t) {
    --jobs_left_;
    if (complete()) model_.stop();
}

// --- background flows ----------------------------------------------------------------------------

void Simulation::arm_flows() {
    flow_order_.resize(flow_specs_.size());
    std::iota(flow_order_.begin(), flow_order_.end(), 0U);
    std::stable_sort(flow_order_.begin(), flow_order_.end(), [this](auto a, auto b) {
        return flow_specs_[a].start_ns < flow_specs_[b].start_ns;
    });
    if (!flow_order_.empty())
        model_.schedule(flow_specs_[flow_order_[0]].start_ns * kPsPerNs, this, 0);
}

void Simulation::on_timer(std::uint64_t) {
    while (next_flow_ < flow_order_.size()) {
        const std::uint32_t id = flow_order_[next_flow_];
        const FlowSpec& f = flow_specs_[id];
        if (f.start_ns * kPsPerNs > model_.now()) {
            model_.schedule(f.start_ns * kPsPerNs, this, 0);
            return;
        }
        ++next_flow_;
        Model::Connection c;
        c.src = static_cast<std::uint32_t>(f.src);
        c.dst = static_cast<std::uint32_t>(f.dst);
        c.cc = cc_for(f.cc, c.src);
        c.prio = static_cast<std::uint8_t>(f.priority);
        MessageTag tag;
        tag.op = id;
        // Untagged: below the range in which a source port carries a step.
        const std::uint32_t sport = f.sport != 0 ? f.sport : 0x4000U + (id & 0x3FFF);
        model_.post(model_.open_qp(c), f.bytes, sport, tag);
    }
}

// --- running -------------------------------------------------------------------------------------

double Simulation::fraction() const {
    double total = 0;
    double done = 0;
    for (const JobState& s : jobs_) {
        total += s.job->total_bytes();
        done += s.job->delivered_bytes;
    }
    if (jobs_.empty()) {
        total = flow_bytes_;
        done = flow_bytes_done_;
    }
    return total > 0 ? std::min(1.0, done / total) : complete() ? 1.0 : 0.0;
}

void Simulation::guarded(const std::function<void()>& action) {
    // An exception must not pass through ns-3's frames: it waits until the run is over.
    if (failure_) return;
    try {
        model_.set_now(bridge_->now_ns() * kPsPerNs);
        action();
    } catch (...) {
        failure_ = std::current_exception();
        stopped_ = "callback";
        model_.stop();
        bridge_->stop();
    }
}

void Simulation::pump() {
    guarded([this] {
        for (;;) {
            const std::uint64_t chunk = std::min(poll_left_, progress_left_);
            const bool spent = model_.run_before(bridge_->next_ns(), chunk);
            if (complete()) {
                stopped_ = "done";
                bridge_->stop();
                return;
            }
            if (!spent) break;
            poll_left_ -= chunk;
            progress_left_ -= chunk;
            if (poll_left_ == 0) {
                poll_left_ = kPollEvents;
                if (*poll_) (*poll_)();
            }
            if (progress_left_ == 0) {
                progress_left_ = progress_events_;
                if (*progress_)
                    (*progress_)(model_.now() / kPsPerNs, fraction(), model_.totals.events);
            }
        }
        const std::int64_t next = bridge_->next_ns();
        if (next == INT64_MAX) {
            // Nothing left on either side although not all is done.
            stopped_ = "stalled";
            return;
        }
        bridge_->schedule_at(next, [this] { pump(); });
    });
}

RunTotals Simulation::run(std::int64_t until_ns, const Progress& progress,
                          std::uint64_t progress_events, const Poll& poll) {
    require(until_ns >= 0, "until_ns", until_ns, "must not be negative; 0 = no limit");
    require(progress_events >= 1, "progress_events", progress_events, "must be at least 1");
    if (!started_) {
        started_ = true;
        model_.start();
        arm_flows();
    }
    failure_ = nullptr;
    stopped_ = "done";
    model_.clear_stop();
    if (!complete()) {
        Ns3Bridge bridge;
        bridge_ = &bridge;
        progress_ = &progress;
        poll_ = &poll;
        progress_events_ = progress_left_ = progress_events;
        poll_left_ = kPollEvents;
        for (auto& event : slow_) {
            if (event->done) continue;
            SlowEvent* e = event.get();
            bridge.schedule_at(e->time_ns, [this, e] {
                e->done = true;
                guarded(std::exchange(e->action, nullptr));
                if (failure_ == nullptr && complete()) {
                    stopped_ = "done";
                    bridge_->stop();
                }
            });
        }
        if (until_ns > 0) {
            bridge.schedule_at(until_ns, [this] {
                guarded([] {});
                stopped_ = "until";
                bridge_->stop();
            });
        }
        bridge.schedule_at(model_.now() / kPsPerNs, [this] { pump(); });
        bridge.run();
        model_.totals.ns3_events += bridge.executed();
        bridge_ = nullptr;
    }
    model_.totals.stopped = stopped_;
    if (failure_) std::rethrow_exception(failure_);
    return stats();
}

RunTotals Simulation::stats() const {
    RunTotals t = model_.totals;
    t.sim_time = model_.now();
    t.finished = complete();
    return t;
}

// --- tables --------------------------------------------------------------------------------------

Table Simulation::steps() const {
    Table t = Job::step_columns();
    for (const JobState& s : jobs_) s.job->append_steps(t);
    return t;
}

Table Simulation::collectives() const {
    Table t = Job::op_columns();
    for (const JobState& s : jobs_) s.job->append_ops(t);
    return t;
}

Table Simulation::op_ranks() const {
    Table t = Job::op_rank_columns();
    for (const JobState& s : jobs_) s.job->append_op_ranks(t);
    return t;
}

Table Simulation::jobs() const {
    std::vector<std::int32_t> job, ranks;
    std::vector<std::int64_t> start, end, jct, bytes;
    for (const JobState& s : jobs_) {
        const Job& j = *s.job;
        job.push_back(j.spec().job_id);
        ranks.push_back(static_cast<std::int32_t>(j.spec().hosts.size()));
        start.push_back(to_ns(j.started()));
        end.push_back(to_ns(j.ended()));
        jct.push_back(j.ended() == kNever ? kNever : to_ns(j.ended()) - to_ns(j.started()));
        bytes.push_back(static_cast<std::int64_t>(j.delivered_bytes));
    }
    return {{"job", job},    {"start_ns", start}, {"end_ns", end},
            {"jct_ns", jct}, {"bytes", bytes},    {"ranks", ranks}};
}

}  // namespace ringstep
