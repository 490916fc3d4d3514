// One run: the model, its jobs and background flows, and ns-3's clock that drives them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/job.h"
#include "core/config.h"
#include "core/model.h"
#include "core/network.h"
#include "core/ns3_bridge.h"
#include "core/stats.h"

namespace ringstep {

class Simulation final : private MessageSink, private JobNetwork, private TimerTarget {
  public:
    using Progress = std::function<void(std::int64_t, double, std::uint64_t)>;
    // Called now and then; may throw to end the run.
    using Poll = std::function<void()>;

    Simulation(const Network& network, const TransportConfig& transport, std::uint32_t seed,
               const StatsConfig& stats);
    ~Simulation();
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;

    std::vector<std::string> warnings() const;
    /// Packets that each rule of Network::drops took, in their order.
    std::vector<std::int64_t> drops_done() const { return model_.drops_done(); }
    void add_job(const JobSpec& spec);
    std::int64_t add_flow(const FlowSpec& flow);
    void set_marking_policy(int node, MarkingPolicy policy);
    void at(std::int64_t time_ns, std::function<void()> action);
    // Calls (job id, operation, time in ns) when the last rank is done with an operation.
    using OnOperation = std::function<void(int, std::uint32_t, std::int64_t)>;
    void on_operation(OnOperation action) { on_operation_ = std::move(action); }
    // From now on, for messages that are posted later: whether a job's planned paths are taken.
    void set_planned(int job_id, bool on);
    // From now on: parameters of a job's marker, which keeps its state.
    void set_marker(int job_id, const MarkerParams& params);
    std::vector<std::uint32_t> path(int src, int dst, std::uint32_t sport, int channel, int job);
    void trace_rate(int src, int dst);
    // `progress` may be empty. Exceptions of the callbacks end the run and come out of it.
    RunTotals run(std::int64_t until_ns, const Progress& progress, std::uint64_t progress_events,
                  const Poll& poll);
    RunTotals stats() const;

    Table flows() const { return model_.flow_table(); }
    Table steps() const;
    Table collectives() const;
    Table op_ranks() const;
    Table jobs() const;
    Table links() { return model_.link_table(); }
    Table link_series() { return model_.series_table(); }
    Table alpha_trace() const { return model_.alpha_table(); }
    Table queue_histogram() const { return model_.histogram_table(); }
    Table markers() const { return model_.marker_table(); }
    Table rate_trace() const { return model_.rate_table(); }

  private:
    struct SlowEvent {
        std::int64_t time_ns;
        std::function<void()> action;
        bool done = false;
    };

    void on_delivered(const MessageTag& tag, std::int64_t bytes) override;
    void on_acked(const MessageTag& tag, std::int64_t bytes) override;
    void send(std::uint16_t job, std::uint32_t op, std::uint64_t cookie, const Transfer& t,
              std::uint32_t step_tag) override;
    void schedule(TimePs at, TimerTarget* target, std::uint64_t arg) override {
        model_.schedule(at, target, arg);
    }
    TimePs now() const override { return model_.now(); }
    void op_done(std::uint16_t job, std::uint32_t op) override;
    void job_done(std::uint16_t job) override;
    void on_timer(std::uint64_t arg) override;

    std::uint16_t index_of(int job_id) const;  // from 1
    std::uint32_t cc_for(const std::optional<CcConfig>& cc, std::uint32_t host_node);
    void arm_flows();
    double fraction() const;
    bool complete() const {
        return jobs_left_ == 0 && flows_left_ == 0 && model_.open_messages() == 0;
    }
    void pump();
    void guarded(const std::function<void()>& action);

    Network network_;
    TransportConfig transport_;
    StatsConfig stats_;
    Model model_;
    std::uint64_t port_seed_;  // of the source ports of sticky connections
    struct StepQp {
        std::uint32_t qp;
        std::uint32_t left;  // messages of the step that are not posted yet
    };
    struct JobState {
        std::unique_ptr<Job> job;
        std::vector<std::uint32_t> cc;  // by rank
        bool persistent = false;
        bool pool = false;
        bool sticky = false;
        bool sender_ack = false;
        std::unordered_map<std::uint64_t, std::uint32_t> qps;  // by connection
        std::unordered_map<std::uint64_t, StepQp> steps;       // of several messages, by sender
    };
    std::vector<JobState> jobs_;
    std::vector<FlowSpec> flow_specs_;
    std::vector<std::uint32_t> flow_order_;  // by start time
    std::size_t next_flow_ = 0;
    std::size_t flows_left_ = 0;
    std::size_t jobs_left_ = 0;
    double flow_bytes_ = 0;
    double flow_bytes_done_ = 0;
    std::vector<std::unique_ptr<SlowEvent>> slow_;
    OnOperation on_operation_;
    std::vector<std::pair<std::string, std::uint32_t>> cc_known_;
    bool started_ = false;

    Ns3Bridge* bridge_ = nullptr;
    std::int64_t until_ns_ = 0;
    std::uint64_t budget_ = 0;
    std::uint64_t poll_left_ = 0;
    std::uint64_t progress_left_ = 0;
    const Progress* progress_ = nullptr;
    const Poll* poll_ = nullptr;
    std::uint64_t progress_events_ = 0;
    std::exception_ptr failure_;
    std::string stopped_;
};

}  // namespace ringstep
