#include "perf/measure.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace perf {
namespace {

double now_us() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Free {
    void operator()(char* at) const { std::free(at); }
};
using Buffer = std::unique_ptr<char, Free>;

Buffer allocate(std::size_t bytes) {
    constexpr std::size_t kPage = 4096;
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    auto* at = static_cast<char*>(std::aligned_alloc(kPage, rounded));
    if (at == nullptr) {
        throw Failure("no memory for a buffer of " + std::to_string(bytes) +
                      " bytes; take a smaller -e, --group or --comms");
    }
    std::memset(at, 0, rounded);
    return Buffer(at);
}

// One task's buffers: both of the larger side's size.
struct Task {
    re_comm* comm;
    int number;
    Buffer a;
    Buffer b;
};

class Runner {
  public:
    Runner(const Options& options, Session& session, std::size_t size, re_type type, re_op op);
    Row measure();

  private:
    const void* send_of(const Task& task, bool in_place) const;
    void* recv_of(const Task& task, bool in_place) const;
    void call(const Task& task, bool in_place) const;
    void run_once(bool in_place);
    void fence_if_due();
    void note_run();
    void time_runs(bool in_place, double until_us, std::vector<double>& times);
    Timing timed(bool in_place);
    std::int64_t count_wrong(bool in_place);
    void audit();

    const Options& options_;
    Session& session_;
    Pattern pattern_;
    Row row_;
    std::size_t part_bytes_;   // of the smaller side
    std::size_t whole_bytes_;  // of the larger side
    std::vector<Task> tasks_;
    int since_fence_ = 0;
};

Runner::Runner(const Options& options, Session& session, std::size_t size, re_type type, re_op op)
    : options_(options),
      session_(session),
      pattern_(options.coll, type, op, options.n_ranks, options.root) {
    const bool parted = options.coll == RE_ALL_GATHER || options.coll == RE_REDUCE_SCATTER;
    const std::size_t parts = parted ? static_cast<std::size_t>(options.n_ranks) : 1;
    row_.type = type;
    row_.op = op;
    row_.count = size / size_of(type) / parts;
    part_bytes_ = row_.count * size_of(type);
    whole_bytes_ = part_bytes_ * parts;
    row_.size = whole_bytes_;
    int number = 0;
    for (re_comm* comm : session.comms()) {
        for (int i = 0; i < options.group; ++i) {
            tasks_.push_back({comm, number++, allocate(whole_bytes_), allocate(whole_bytes_)});
        }
    }
}

const void* Runner::send_of(const Task& task, bool in_place) const {
    const std::size_t own = static_cast<std::size_t>(session_.rank()) * part_bytes_;
    if (!in_place) return task.a.get();
    return options_.coll == RE_ALL_GATHER ? task.b.get() + own : task.b.get();
}

void* Runner::recv_of(const Task& task, bool in_place) const {
    const std::size_t own = static_cast<std::size_t>(session_.rank()) * part_bytes_;
    return in_place && options_.coll == RE_REDUCE_SCATTER ? task.b.get() + own : task.b.get();
}

void Runner::call(const Task& task, bool in_place) const {
    const void* send = send_of(task, in_place);
    void* recv = recv_of(task, in_place);
    const std::size_t count = row_.count;
    switch (options_.coll) {
        case RE_ALL_REDUCE:
            return check(re_all_reduce(send, recv, count, row_.type, row_.op, task.comm));
        case RE_ALL_GATHER: return check(re_all_gather(send, recv, count, row_.type, task.comm));
        case RE_REDUCE_SCATTER:
            return check(re_reduce_scatter(send, recv, count, row_.type, row_.op, task.comm));
        case RE_BROADCAST:
            return check(re_broadcast(send, recv, count, row_.type, options_.root, task.comm));
    }
}

void Runner::run_once(bool in_place) {
    if (tasks_.size() == 1) return call(tasks_.front(), in_place);
    check(re_group_start());
    for (const Task& task : tasks_) call(task, in_place);
    check(re_group_end());
}

void Runner::fence_if_due() {
    if (options_.fence_every == 0 || ++since_fence_ < options_.fence_every) return;
    since_fence_ = 0;
    for (re_comm* comm : session_.comms()) check(re_comm_fence(comm));
}

void Runner::note_run() {
    if (row_.count == 0 || session_.n_ranks() == 1) return;
    check(re_comm_last_run(session_.comms().front(), &row_.last));
    row_.has_run = true;
    ++row_.ran[ran_as(row_.last)];
}

void Runner::time_runs(bool in_place, double until_us, std::vector<double>& times) {
    double go_on = 1;
    while (go_on > 0) {
        for (int i = 0; i < options_.iterations; ++i) {
            fence_if_due();
            const double start = now_us();
            run_once(in_place);
            times.push_back(now_us() - start);
            note_run();
        }
        go_on = 0;
        if (options_.duration_s > 0 && session_.rank() == 0) go_on = now_us() < until_us ? 1 : 0;
        if (options_.duration_s > 0) session_.most({&go_on, 1});
    }
}

Timing Runner::timed(bool in_place) {
    for (const Task& task : tasks_) {  // floats that stay what they are, however often reduced
        std::memset(task.a.get(), 0, whole_bytes_);
        std::memset(task.b.get(), 0, whole_bytes_);
    }
    for (int i = 0; i < options_.warmup; ++i) {
        fence_if_due();
        run_once(in_place);
    }
    double ready = 0;
    session_.most({&ready, 1});
    Timing timing;
    const double until = now_us() + options_.duration_s * 1e6 / 2;  // half for either place
    time_runs(in_place, until, timing.times_us);
    double total = 0;
    for (const double one : timing.times_us) total += one;
    timing.mean_us = total / static_cast<double>(timing.times_us.size());
    session_.most({&timing.mean_us, 1});
    session_.most(timing.times_us);
    std::vector<double> sorted = timing.times_us;
    std::sort(sorted.begin(), sorted.end());
    timing.median_us = sorted[(sorted.size() - 1) / 2];
    timing.p99_us = sorted[(sorted.size() - 1) * 99 / 100];
    const double bytes = static_cast<double>(whole_bytes_ * tasks_.size());
    timing.algbw = bytes / (timing.mean_us * 1e3);
    const double n = session_.n_ranks();
    const double share = options_.coll == RE_BROADCAST    ? 1
                         : options_.coll == RE_ALL_REDUCE ? 2 * (n - 1) / n
                                                          : (n - 1) / n;
    timing.busbw = timing.algbw * share;
    if (options_.check) timing.wrong = count_wrong(in_place);
    return timing;
}

std::int64_t Runner::count_wrong(bool in_place) {
    const bool whole_input = options_.coll == RE_REDUCE_SCATTER;
    for (const Task& task : tasks_) {
        std::memset(task.b.get(), 0x5A, whole_bytes_);
        const bool silent = options_.coll == RE_BROADCAST && session_.rank() != options_.root;
        if (silent) continue;  // what it must not send
        const std::size_t count =
            whole_input ? row_.count * static_cast<std::size_t>(session_.n_ranks()) : row_.count;
        auto* input = static_cast<char*>(const_cast<void*>(send_of(task, in_place)));
        pattern_.fill(input, count, session_.rank(), task.number);
    }
    run_once(in_place);
    std::int64_t wrong = 0;
    for (const Task& task : tasks_) {
        wrong += static_cast<std::int64_t>(pattern_.wrong(recv_of(task, in_place), row_.count,
                                                          session_.rank(), task.number));
    }
    session_.sum({&wrong, 1});
    return wrong;
}

// Ranks that ran different things got through by luck.
void Runner::audit() {
    const re_run& run = row_.last;
    const double code = static_cast<double>(run.algo * 100 + run.proto * 10 + run.coll) * 1e9 +
                        run.n_channels * 1e8 + static_cast<double>(run.chunk_bytes);
    double both[2] = {code, -code};
    session_.most(both);
    if (both[0] != -both[1]) {
        throw Failure("ranks ran different things: this one " + ran_as(run) + " with chunks of " +
                      std::to_string(run.chunk_bytes) + " bytes; plugins have to agree");
    }
}

Row Runner::measure() {
    row_.out_of_place = timed(false);
    row_.in_place = timed(true);
    audit();
    return row_;
}

}  // namespace

Row measure(const Options& options, Session& session, std::size_t size, re_type type, re_op op) {
    return Runner(options, session, size, type, op).measure();
}

std::string ran_as(const re_run& run) {
    return std::string(run.algo == RE_TREE ? "TREE" : "RING") +
           (run.proto == RE_LL ? "/LL/" : "/SIMPLE/") + std::to_string(run.n_channels);
}

}  // namespace perf
