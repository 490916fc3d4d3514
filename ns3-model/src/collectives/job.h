// A job: a program of operations, run rank by rank over the waist.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "collectives/graphs.h"
#include "collectives/ring.h"
#include "collectives/waist.h"
#include "core/config.h"
#include "core/model.h"

namespace ringstep {

// What a job needs of the network.
class JobNetwork {
  public:
    virtual void send(std::uint16_t job, std::uint32_t op, std::uint64_t cookie, const Transfer& t,
                      std::uint32_t step_tag) = 0;
    virtual void schedule(TimePs at, TimerTarget* target, std::uint64_t arg) = 0;
    virtual TimePs now() const = 0;
    // The last rank is done with an operation; nothing that waits for it there has begun.
    virtual void op_done(std::uint16_t job, std::uint32_t op) = 0;
    virtual void job_done(std::uint16_t job) = 0;

  protected:
    ~JobNetwork() = default;
};

class Job final : public TimerTarget {
  public:
    // `index` counts from 1. Raises ConfigError for a program that cannot run.
    Job(const JobSpec& spec, std::uint16_t index, JobNetwork& network, bool keep_steps);
    ~Job();

    const JobSpec& spec() const { return spec_; }
    void start();
    // A message arrived (by the notify rule) or was acknowledged.
    void on_arrived(std::uint32_t op, std::uint64_t cookie, std::uint32_t step_tag);
    void on_acked(std::uint32_t op, std::uint64_t cookie, std::uint32_t step_tag);
    // A message is in at the receiver, whatever the notify rule; for progress and the step table.
    void note_delivery(std::uint32_t op, std::uint32_t ring, std::uint32_t step_tag,
                       std::int64_t bytes);
    void on_timer(std::uint64_t arg) override;

    bool done() const { return unfinished_ == 0; }
    double total_bytes() const { return total_bytes_; }
    double delivered_bytes = 0;

    // Pairs of ranks that exchange data, for checks of reachability.
    std::vector<std::pair<int, int>> pairs() const;
    void append_steps(Table& table) const;
    void append_ops(Table& table) const;
    void append_op_ranks(Table& table) const;
    TimePs started() const { return started_; }
    TimePs ended() const { return ended_; }
    static Table step_columns();
    static Table op_columns();
    static Table op_rank_columns();

  private:
    struct OpState;
    class StageWaist;

    void check() const;
    void expand(std::uint32_t op);
    std::string op_text(std::size_t op) const;
    void start_op(std::uint32_t op, std::int32_t rank);
    void enter_stage(std::uint32_t op, std::int32_t rank);
    void stage_done(std::uint32_t op, std::uint32_t stage, std::int32_t rank);
    void finish_op(std::uint32_t op, std::int32_t rank);
    void wake(std::uint32_t op, std::uint32_t stage, TimePs delay, std::uint64_t arg);
    void send(std::uint32_t op, std::uint32_t stage, const Transfer& t);
    void put_on_wire(std::uint32_t op, std::uint32_t stage, const Transfer& t);
    void arrived(std::uint32_t op, std::uint64_t cookie, std::uint32_t step_tag);
    std::uint32_t park(std::uint32_t op, std::uint32_t stage, const Transfer& t);

    struct StepRecord {
        TimePs start = kNever;
        TimePs end = kNever;
        std::int32_t messages = 0;
        std::int32_t left = 0;
    };
    struct Parked {  // a transfer or a call that waits for a delay to pass
        std::uint32_t op = 0;
        std::uint32_t stage = 0;
        std::uint64_t cookie = 0;
        std::uint32_t step_tag = 0;
        Transfer transfer;
    };

    JobSpec spec_;
    std::uint16_t index_;
    JobNetwork& network_;
    bool keep_steps_;
    std::size_t ranks_;
    Dependency dependency_ = Dependency::kInOrder;
    std::vector<std::unique_ptr<OpState>> ops_;
    std::uint64_t unfinished_ = 0;  // operations times ranks
    double total_bytes_ = 0;
    TimePs started_ = kNever;
    TimePs ended_ = kNever;
    std::vector<Parked> parked_;
    std::vector<std::uint32_t> free_parked_;
};

}  // namespace ringstep
