#include "collectives/job.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace ringstep {

namespace {

constexpr int kStageShift = 40;
constexpr std::uint64_t kCookieMask = (1ULL << kStageShift) - 1;
enum Wake : std::uint64_t { kJobStart, kComputeDone, kDelayedSend, kDelayedArrival, kStageWake };
constexpr int kWakeShift = 60;

}  // namespace

class Job::StageWaist final : public Waist {
  public:
    StageWaist(Job& job, std::uint32_t op, std::uint32_t stage)
        : job_(job), op_(op), stage_(stage) {}
    void send(const Transfer& t) override { job_.send(op_, stage_, t); }
    void schedule(TimePs delay, std::uint64_t arg) override { job_.wake(op_, stage_, delay, arg); }
    TimePs now() const override { return job_.network_.now(); }
    void done(std::int32_t rank) override { job_.stage_done(op_, stage_, rank); }

  private:
    Job& job_;
    std::uint32_t op_;
    std::uint32_t stage_;
};

struct Job::OpState {
    struct Stage {
        std::unique_ptr<StageWaist> waist;
        std::unique_ptr<Collective> run;
        std::size_t left = 0;  // ranks not done
    };
    using Make = std::function<std::unique_ptr<Collective>(Waist&)>;

    std::vector<Make> stage_kinds;          // one pass
    std::vector<std::uint32_t> kind_steps;  // steps of each of them
    std::uint32_t pass_steps = 0;
    std::uint32_t stages = 0;  // over all passes
    std::uint32_t steps = 0;
    std::uint32_t step_base = 0;
    std::uint32_t rings = 1;
    bool compute = false;
    std::vector<Stage> stage;
    std::vector<std::uint32_t> at;     // by rank: stage
    std::vector<std::uint32_t> needs;  // by rank: operations before it that are not done
    std::vector<std::uint32_t> then;
    std::vector<TimePs> start, end;   // by rank
    std::size_t left = 0;             // ranks not done
    std::vector<StepRecord> records;  // [ring][step]

    std::uint32_t base_of(std::uint32_t s) const {
        const auto kinds = static_cast<std::uint32_t>(stage_kinds.size());
        std::uint32_t base = s / kinds * pass_steps;
        for (std::uint32_t k = 0; k < s % kinds; ++k) base += kind_steps[k];
        return base;
    }
};

Job::~Job() = default;

std::string Job::op_text(std::size_t op) const {
    const Op& o = spec_.ops[op];
    return "job " + std::to_string(spec_.job_id) + ", operation " + std::to_string(op) +
           (o.name.empty() ? "" : " (" + o.name + ")");
}

void Job::check() const {
    const std::string who = "job " + std::to_string(spec_.job_id);
    require(spec_.job_id >= 1 && spec_.job_id <= 16383, "job_id", spec_.job_id,
            "must lie in 1..16383");
    if (spec_.hosts.empty()) throw ConfigError(who + " has no hosts");
    require(spec_.start_ns >= 0, who + ": start_ns", spec_.start_ns, "must not be negative");
    require(
        spec_.sender == "qp_per_step" || spec_.sender == "persistent" || spec_.sender == "qp_pool",
        who + ": sender", spec_.sender, "must be \"qp_per_step\", \"persistent\" or \"qp_pool\"");
    require(spec_.pool >= 1 && spec_.pool <= 256, who + ": pool", spec_.pool, "must lie in 1..256");
    require(spec_.messages_per_step >= 1 && spec_.messages_per_step <= 256,
            who + ": messages_per_step", spec_.messages_per_step, "must lie in 1..256");
    require(spec_.hosts.size() <= 65536, who + ": hosts", spec_.hosts.size(),
            "a job has at most 65536 ranks");
    require(spec_.port == "per_step" || spec_.port == "sticky", who + ": port", spec_.port,
            "must be \"per_step\" or \"sticky\"");
    require(spec_.notify == "receiver" || spec_.notify == "sender_ack", who + ": notify",
            spec_.notify, "must be \"receiver\" or \"sender_ack\"");
    require(spec_.endpoint_delay_ns >= 0, who + ": endpoint_delay_ns", spec_.endpoint_delay_ns,
            "must not be negative");
    require(spec_.priority >= 2 && spec_.priority < kClasses, who + ": priority", spec_.priority,
            "must lie in 2..7");
    const std::size_t n = spec_.hosts.size();
    auto per_rank = [&](const char* name, std::size_t size) {
        require(size == 0 || size == n, who + ": " + name, size,
                "one value per rank (" + std::to_string(n) + ") or none");
    };
    per_rank("rank_delay_ns", spec_.rank_delay_ns.size());
    per_rank("step_delay_ns", spec_.step_delay_ns.size());
    per_rank("compute_scale", spec_.compute_scale.size());
    for (const auto d : spec_.rank_delay_ns)
        require(d >= 0, who + ": rank_delay_ns", d, "must not be negative");
    for (const auto d : spec_.step_delay_ns)
        require(d >= 0, who + ": step_delay_ns", d, "must not be negative");
    for (const auto d : spec_.compute_scale)
        require(d >= 0, who + ": compute_scale", d, "must not be negative");

    const std::size_t count = spec_.ops.size();
    for (std::size_t i = 0; i < count; ++i)
        for (const int a : spec_.ops[i].after)
            require(a >= 0 && static_cast<std::size_t>(a) < count, op_text(i) + ": after", a,
                    "no such operation");
    // Depth-first search; an operation met again while still open closes a cycle.
    std::vector<int> state(count, 0);
    std::vector<std::size_t> open;
    std::function<void(std::size_t)> visit = [&](std::size_t i) {
        state[i] = 1;
        open.push_back(i);
        for (const int a : spec_.ops[i].after) {
            const auto next = static_cast<std::size_t>(a);
            if (state[next] == 1) {
                std::string cycle;
                auto it = std::find(open.begin(), open.end(), next);
                for (; it != open.end(); ++it) cycle += std::to_string(*it) + " after ";
                throw ConfigError(who + ": operations depend on each other in a cycle: " + cycle +
                                  std::to_string(next) + "; take one of these out of `after`");
            }
            if (state[next] == 0) visit(next);
        }
        open.pop_back();
        state[i] = 2;
    };
    for (std::size_t i = 0; i < count; ++i)
        if (state[i] == 0) visit(i);
}

Job::Job(const JobSpec& spec, std::uint16_t index, JobNetwork& network, bool keep_steps)
    : spec_(spec),
      index_(index),
      network_(network),
      keep_steps_(keep_steps),
      ranks_(spec.hosts.size()) {
    check();
    if (spec_.dependency == "count") {
        dependency_ = Dependency::kCount;
    } else if (spec_.dependency == "in_order") {
        dependency_ = Dependency::kInOrder;
    } else if (spec_.dependency == "per_chunk") {
        dependency_ = Dependency::kPerChunk;
    } else {
        require(false, "job " + std::to_string(spec_.job_id) + ": dependency", spec_.dependency,
                "must be \"count\", \"in_order\" or \"per_chunk\"");
    }
    std::uint32_t base = 0;
    for (std::uint32_t i = 0; i < spec_.ops.size(); ++i) {
        ops_.push_back(std::make_unique<OpState>());
        OpState& s = *ops_.back();
        s.at.assign(ranks_, 0);
        s.needs.assign(ranks_, static_cast<std::uint32_t>(spec_.ops[i].after.size()));
        s.start.assign(ranks_, kNever);
        s.end.assign(ranks_, kNever);
        s.left = ranks_;
        expand(i);
        s.step_base = base;
        base += s.steps;
        if (keep_steps_ && !s.compute)
            s.records.resize(static_cast<std::size_t>(s.rings) * s.steps);
    }
    for (std::uint32_t i = 0; i < spec_.ops.size(); ++i)
        for (const int a : spec_.ops[i].after) ops_[static_cast<std::size_t>(a)]->then.push_back(i);
    unfinished_ = spec_.ops.size() * ranks_;
}

void Job::expand(std::uint32_t index) {
    const Op& o = spec_.ops[index];
    OpState& s = *ops_[index];
    const std::string who = op_text(index);
    const int ranks = static_cast<int>(ranks_);
    auto rank_ok = [&](const char* name, int rank) {
        require(rank >= 0 && rank < ranks, who + ": " + name, rank,
                "the job has ranks 0.." + std::to_string(ranks - 1));
    };
    require(o.passes >= 1, who + ": passes", o.passes, "must be at least 1");
    require(o.channels >= 1, who + ": channels", o.channels, "must be at least 1");
    require(o.chunks >= 1, who + ": chunks", o.chunks, "must be at least 1");
    require(o.window >= 0, who + ": window", o.window, "must not be negative; 0 = all at once");
    require(o.bytes >= 0, who + ": bytes_", o.bytes, "must not be negative");

    if (o.kind == "compute") {
        require(o.compute_ns.size() == 1 || o.compute_ns.size() == ranks_, who + ": compute_ns",
                o.compute_ns.size(), "one number, or one per rank");
        for (const auto t : o.compute_ns)
            require(t >= 0, who + ": compute_ns", t, "must not be negative");
        s.compute = true;
        return;
    }

    // Groups of ranks.
    auto groups = o.rings;
    if (groups.empty()) {
        groups.emplace_back();
        for (int r = 0; r < ranks; ++r) groups[0].push_back(r);
    }
    std::set<int> seen;
    for (const auto& group : groups) {
        for (const int r : group) {
            rank_ok("rings", r);
            require(seen.insert(r).second, who + ": rings", r, "a rank is in two rings or twice");
        }
        if (o.kind != "send")
            require(group.size() >= 2, who + ": rings", group.size(),
                    "a collective needs at least two ranks");
    }

    auto graph_stage = [&](std::shared_ptr<MessageGraph> graph) {
        total_bytes_ += static_cast<double>(graph->total_bytes()) * o.passes;
        for (const auto& m : graph->messages) s.rings = std::max(s.rings, m.ring + 1);
        s.kind_steps.push_back(graph->steps());
        s.stage_kinds.push_back([graph, ranks](Waist& w) {
            return std::make_unique<GraphCollective>(w, graph, ranks);
        });
        s.stages = static_cast<std::uint32_t>(o.passes);
    };
    auto ring_stage = [&](RingCollective::Kind kind, std::vector<std::vector<int>> rings,
                          std::int64_t bytes, int passes) {
        const int channels = o.channels;
        const int messages = spec_.messages_per_step;
        const Dependency dependency = dependency_;
        auto make = [=](Waist& w) {
            return std::make_unique<RingCollective>(w, kind, rings, channels, bytes, passes,
                                                    messages, dependency, ranks);
        };
        StageWaist none(*this, index, 0);
        const auto probe = make(none);
        total_bytes_ += static_cast<double>(probe->total_bytes());
        s.kind_steps.push_back(probe->steps());
        s.rings = std::max(s.rings, static_cast<std::uint32_t>(rings.size()) *
                                        static_cast<std::uint32_t>(channels));
        s.stage_kinds.push_back(make);
    };

    const std::map<std::string, RingCollective::Kind> ring_kinds = {
        {"all_reduce", RingCollective::Kind::kAllReduce},
        {"all_gather", RingCollective::Kind::kAllGather},
        {"reduce_scatter", RingCollective::Kind::kReduceScatter}};
    const auto ring_kind = ring_kinds.find(o.kind);
    auto no_such = [&] {
        throw ConfigError(who + ": algorithm \"" + o.algorithm + "\" does not do " + o.kind +
                          "; ring does all_reduce, all_gather, reduce_scatter and broadcast, "
                          "ring_2d, double_binary_tree and halving_doubling do all_reduce, direct "
                          "does all_to_all and send");
    };
    if (o.kind == "send") {
        rank_ok("src", o.src);
        rank_ok("dst", o.dst);
        require(o.src != o.dst, who + ": dst", o.dst, "a rank does not send to itself");
        auto graph = std::make_shared<MessageGraph>();
        graph->add(o.src, o.dst, o.bytes, 0, {});
        graph_stage(graph);
    } else if (ring_kind != ring_kinds.end() && o.algorithm == "ring") {
        ring_stage(ring_kind->second, groups, o.bytes, o.passes);
        s.stages = 1;  // the ring itself runs the passes, with steps that count on
    } else if (o.kind == "all_reduce" && o.algorithm == "ring_2d") {
        require(o.rings.empty(), who + ": rings", o.rings.size(),
                "ring_2d takes its rings from dims");
        require(o.dims.size() == 2 && o.dims[0] >= 2 && o.dims[1] >= 2 &&
                    static_cast<std::int64_t>(o.dims[0]) * o.dims[1] == ranks,
                who + ": dims", o.dims.size(),
                "ring_2d needs two dimensions of at least 2 whose product is the number of ranks");
        const int inner = o.dims[0];
        const int outer = o.dims[1];
        std::vector<std::vector<int>> rows, columns;
        for (int j = 0; j < outer; ++j) {
            rows.emplace_back();
            for (int i = 0; i < inner; ++i) rows.back().push_back(j * inner + i);
        }
        for (int i = 0; i < inner; ++i) {
            columns.emplace_back();
            for (int j = 0; j < outer; ++j) columns.back().push_back(j * inner + i);
        }
        const double before = total_bytes_;
        ring_stage(RingCollective::Kind::kReduceScatter, rows, o.bytes, 1);
        // Columns hold parts that differ by a byte; the largest stands for all.
        ring_stage(RingCollective::Kind::kAllReduce, columns, (o.bytes + inner - 1) / inner, 1);
        ring_stage(RingCollective::Kind::kAllGather, rows, o.bytes, 1);
        total_bytes_ = before + (total_bytes_ - before) * o.passes;
        s.stages = 3 * static_cast<std::uint32_t>(o.passes);
    } else if (o.kind == "broadcast" && o.algorithm == "ring") {
        rank_ok("root", o.root);
        auto graph = std::make_shared<MessageGraph>();
        std::uint32_t ring = 0;
        for (const auto& group : groups) {
            const auto root = std::find(group.begin(), group.end(), o.root);
            require(root != group.end(), who + ": root", o.root, "is not in each of the rings");
            for (int c = 0; c < o.channels; ++c)
                add_broadcast_chain(*graph, group, static_cast<std::size_t>(root - group.begin()),
                                    part(o.bytes, o.channels, c), o.chunks, ring++);
        }
        graph_stage(graph);
    } else if (o.kind == "all_reduce" &&
               (o.algorithm == "double_binary_tree" || o.algorithm == "halving_doubling")) {
        auto graph = std::make_shared<MessageGraph>();
        std::uint32_t ring = 0;
        for (const auto& group : groups) {
            for (int c = 0; c < o.channels; ++c) {
                const std::int64_t bytes = part(o.bytes, o.channels, c);
                if (o.algorithm == "double_binary_tree") {
                    add_double_binary_tree(*graph, group, bytes, o.chunks, ring);
                    ring += 2;
                } else {
                    add_halving_doubling(*graph, group, bytes, ring++);
                }
            }
        }
        graph_stage(graph);
    } else if (o.kind == "all_to_all" && (o.algorithm == "direct" || o.algorithm == "ring")) {
        if (o.algorithm == "ring") no_such();
        auto graph = std::make_shared<MessageGraph>();
        std::uint32_t ring = 0;
        for (const auto& group : groups) add_all_to_all(*graph, group, o.bytes, o.window, ring++);
        graph_stage(graph);
    } else if (ring_kind != ring_kinds.end() || o.kind == "broadcast" || o.kind == "all_to_all") {
        no_such();
    } else {
        require(false, who + ": kind", o.kind,
                "must be \"compute\", \"all_reduce\", \"all_gather\", \"reduce_scatter\", "
                "\"broadcast\", \"all_to_all\" or \"send\"");
    }
    require(s.rings <= 65536, who + ": channels", s.rings,
            "rings times channels must not exceed 65536");
    for (const auto k : s.kind_steps) s.pass_steps += k;
    const auto kinds = static_cast<std::uint32_t>(s.stage_kinds.size());
    s.steps = s.pass_steps * (s.stages / kinds);
    s.stage.resize(s.stages);
}

std::vector<std::pair<int, int>> Job::pairs() const {
    // Rank 0 with every other, both ways, tells of a split network without naming every edge.
    std::vector<std::pair<int, int>> out;
    for (int r = 1; r < static_cast<int>(ranks_); ++r) {
        out.emplace_back(0, r);
        out.emplace_back(r, 0);
    }
    return out;
}

void Job::start() {
    started_ = network_.now();
    if (ops_.empty()) {
        ended_ = started_;
        network_.job_done(index_);
        return;
    }
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(ranks_); ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        const std::int64_t delay = spec_.rank_delay_ns.empty() ? 0 : spec_.rank_delay_ns[r];
        network_.schedule(network_.now() + delay * kPsPerNs, this,
                          static_cast<std::uint64_t>(kJobStart) << kWakeShift | r);
    }
}

void Job::on_timer(std::uint64_t arg) {
    const std::uint64_t what = arg >> kWakeShift;
    arg &= (1ULL << kWakeShift) - 1;
    if (what == kJobStart) {
        for (std::uint32_t op = 0; op < ops_.size(); ++op)
            if (ops_[op]->needs[arg] == 0 && ops_[op]->start[arg] == kNever)
                start_op(op, static_cast<std::int32_t>(arg));
        return;
    }
    if (what == kComputeDone) {
        finish_op(static_cast<std::uint32_t>(arg >> 24), static_cast<std::int32_t>(arg & 0xFFFFFF));
        return;
    }
    const Parked p = parked_[arg];
    free_parked_.push_back(static_cast<std::uint32_t>(arg));
    if (what == kDelayedSend) {
        put_on_wire(p.op, p.stage, p.transfer);
    } else if (what == kDelayedArrival) {
        arrived(p.op, p.cookie, p.step_tag);
    } else if (auto& run = ops_[p.op]->stage[p.stage].run) {
        run->on_wakeup(p.cookie);
    }
}

void Job::start_op(std::uint32_t op, std::int32_t rank) {
    OpState& s = *ops_[op];
    const auto r = static_cast<std::size_t>(rank);
    s.start[r] = network_.now();
    if (s.compute) {
        const auto& ns = spec_.ops[op].compute_ns;
        double time = static_cast<double>(ns.size() == 1 ? ns[0] : ns[r]);
        if (!spec_.compute_scale.empty()) time *= spec_.compute_scale[r];
        network_.schedule(network_.now() + std::llround(time * kPsPerNs), this,
                          static_cast<std::uint64_t>(kComputeDone) << kWakeShift |
                              static_cast<std::uint64_t>(op) << 24 | r);
        return;
    }
    enter_stage(op, rank);
}

void Job::enter_stage(std::uint32_t op, std::int32_t rank) {
    OpState& s = *ops_[op];
    const auto r = static_cast<std::size_t>(rank);
    const std::uint32_t stage = s.at[r];
    if (stage == s.stages) {
        finish_op(op, rank);
        return;
    }
    OpState::Stage& g = s.stage[stage];
    if (!g.waist) {
        g.waist = std::make_unique<StageWaist>(*this, op, stage);
        g.run = s.stage_kinds[stage % s.stage_kinds.size()](*g.waist);
        g.left = ranks_;
    }
    if (g.run->involves(rank)) {
        g.run->start(rank);
    } else {
        stage_done(op, stage, rank);
    }
}

void Job::stage_done(std::uint32_t op, std::uint32_t stage, std::int32_t rank) {
    OpState& s = *ops_[op];
    // The stage may be in the middle of a call: it is freed when a later one begins to be done.
    --s.stage[stage].left;
    if (stage > 0 && s.stage[stage - 1].left == 0 && s.stage[stage - 1].run) {
        s.stage[stage - 1].run.reset();
    }
    ++s.at[static_cast<std::size_t>(rank)];
    enter_stage(op, rank);
}

void Job::finish_op(std::uint32_t op, std::int32_t rank) {
    OpState& s = *ops_[op];
    const auto r = static_cast<std::size_t>(rank);
    s.end[r] = network_.now();
    if (--s.left == 0) network_.op_done(index_, op);
    if (--unfinished_ == 0) {
        ended_ = network_.now();
        network_.job_done(index_);
        return;
    }
    for (const auto next : s.then) {
        OpState& n = *ops_[next];
        if (--n.needs[r] == 0) start_op(next, rank);
    }
}

std::uint32_t Job::park(std::uint32_t op, std::uint32_t stage, const Transfer& t) {
    std::uint32_t id;
    if (free_parked_.empty()) {
        id = static_cast<std::uint32_t>(parked_.size());
        parked_.emplace_back();
    } else {
        id = free_parked_.back();
        free_parked_.pop_back();
    }
    parked_[id].op = op;
    parked_[id].stage = stage;
    parked_[id].transfer = t;
    return id;
}

void Job::wake(std::uint32_t op, std::uint32_t stage, TimePs delay, std::uint64_t arg) {
    const std::uint32_t id = park(op, stage, {});
    parked_[id].cookie = arg;
    network_.schedule(network_.now() + delay, this,
                      static_cast<std::uint64_t>(kStageWake) << kWakeShift | id);
}

void Job::send(std::uint32_t op, std::uint32_t stage, const Transfer& t) {
    const auto src = static_cast<std::size_t>(t.src);
    const std::int64_t delay = spec_.step_delay_ns.empty() ? 0 : spec_.step_delay_ns[src];
    if (delay == 0) {
        put_on_wire(op, stage, t);
        return;
    }
    network_.schedule(network_.now() + delay * kPsPerNs, this,
                      static_cast<std::uint64_t>(kDelayedSend) << kWakeShift | park(op, stage, t));
}

void Job::put_on_wire(std::uint32_t op, std::uint32_t stage, const Transfer& t) {
    OpState& s = *ops_[op];
    const std::uint32_t step = s.base_of(stage) + t.step;
    if (keep_steps_) {
        StepRecord& record = s.records[static_cast<std::size_t>(t.ring) * s.steps + step];
        if (record.start == kNever) record.start = network_.now();
        ++record.messages;
        ++record.left;
    }
    network_.send(index_, op, static_cast<std::uint64_t>(stage) << kStageShift | t.cookie, t,
                  s.step_base + step);
}

void Job::on_arrived(std::uint32_t op, std::uint64_t cookie, std::uint32_t step_tag) {
    if (spec_.endpoint_delay_ns == 0) {
        arrived(op, cookie, step_tag);
        return;
    }
    const std::uint32_t id = park(op, 0, {});
    parked_[id].cookie = cookie;
    parked_[id].step_tag = step_tag;
    network_.schedule(network_.now() + spec_.endpoint_delay_ns * kPsPerNs, this,
                      static_cast<std::uint64_t>(kDelayedArrival) << kWakeShift | id);
}

void Job::arrived(std::uint32_t op, std::uint64_t cookie, std::uint32_t step_tag) {
    OpState& s = *ops_[op];
    const auto stage = static_cast<std::uint32_t>(cookie >> kStageShift);
    Transfer t;
    t.cookie = cookie & kCookieMask;
    t.step = step_tag - s.step_base - s.base_of(stage);
    s.stage[stage].run->on_delivered(t);
}

void Job::on_acked(std::uint32_t op, std::uint64_t cookie, std::uint32_t) {
    const auto stage = static_cast<std::uint32_t>(cookie >> kStageShift);
    Transfer t;
    t.cookie = cookie & kCookieMask;
    // The last ACK may come after all ranks are done and the stage is gone.
    if (auto& run = ops_[op]->stage[stage].run) run->on_acked(t);
}

void Job::note_delivery(std::uint32_t op, std::uint32_t ring, std::uint32_t step_tag,
                        std::int64_t bytes) {
    delivered_bytes += static_cast<double>(bytes);
    if (!keep_steps_) return;
    OpState& s = *ops_[op];
    StepRecord& record =
        s.records[static_cast<std::size_t>(ring) * s.steps + (step_tag - s.step_base)];
    --record.left;
    record.end = network_.now();
}

namespace {

template <typename T>
std::vector<T>& column(Table& table, std::size_t i) {
    return std::get<std::vector<T>>(table[i].second);
}
using I32 = std::vector<std::int32_t>;
using I64 = std::vector<std::int64_t>;

}  // namespace

Table Job::step_columns() {
    return {{"job", I32{}},      {"op", I32{}},     {"ring", I32{}},    {"step", I32{}},
            {"start_ns", I64{}}, {"end_ns", I64{}}, {"messages", I32{}}};
}

void Job::append_steps(Table& t) const {
    for (std::size_t op = 0; op < ops_.size(); ++op) {
        const OpState& s = *ops_[op];
        for (std::size_t i = 0; i < s.records.size(); ++i) {
            const StepRecord& r = s.records[i];
            if (r.messages == 0) continue;
            column<std::int32_t>(t, 0).push_back(spec_.job_id);
            column<std::int32_t>(t, 1).push_back(static_cast<std::int32_t>(op));
            column<std::int32_t>(t, 2).push_back(static_cast<std::int32_t>(i / s.steps));
            column<std::int32_t>(t, 3).push_back(
                static_cast<std::int32_t>(s.step_base + i % s.steps));
            column<std::int64_t>(t, 4).push_back(to_ns(r.start));
            column<std::int64_t>(t, 5).push_back(r.left == 0 ? to_ns(r.end) : kNever);
            column<std::int32_t>(t, 6).push_back(r.messages);
        }
    }
}

Table Job::op_columns() {
    return {{"job", I32{}},    {"op", I32{}},     {"start_ns", I64{}},
            {"end_ns", I64{}}, {"cct_ns", I64{}}, {"bytes", I64{}}};
}

void Job::append_ops(Table& t) const {
    for (std::size_t op = 0; op < ops_.size(); ++op) {
        const OpState& s = *ops_[op];
        const TimePs start = *std::min_element(s.start.begin(), s.start.end());
        const TimePs end = *std::max_element(s.end.begin(), s.end.end());
        column<std::int32_t>(t, 0).push_back(spec_.job_id);
        column<std::int32_t>(t, 1).push_back(static_cast<std::int32_t>(op));
        column<std::int64_t>(t, 2).push_back(to_ns(start));
        column<std::int64_t>(t, 3).push_back(to_ns(end));
        column<std::int64_t>(t, 4).push_back(end == kNever ? kNever : to_ns(end) - to_ns(start));
        column<std::int64_t>(t, 5).push_back(spec_.ops[op].bytes);
    }
}

Table Job::op_rank_columns() {
    return {{"job", I32{}}, {"op", I32{}}, {"rank", I32{}}, {"start_ns", I64{}}, {"end_ns", I64{}}};
}

void Job::append_op_ranks(Table& t) const {
    for (std::size_t op = 0; op < ops_.size(); ++op) {
        const OpState& s = *ops_[op];
        for (std::size_t r = 0; r < ranks_; ++r) {
            column<std::int32_t>(t, 0).push_back(spec_.job_id);
            column<std::int32_t>(t, 1).push_back(static_cast<std::int32_t>(op));
            column<std::int32_t>(t, 2).push_back(static_cast<std::int32_t>(r));
            column<std::int64_t>(t, 3).push_back(to_ns(s.start[r]));
            column<std::int64_t>(t, 4).push_back(to_ns(s.end[r]));
        }
    }
}

}  // namespace ringstep
