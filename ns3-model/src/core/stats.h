// What a run records, in columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/types.h"

namespace ringstep {

using Column =
    std::variant<std::vector<std::int64_t>, std::vector<std::int32_t>, std::vector<double>>;
using Table = std::vector<std::pair<std::string, Column>>;

struct RunTotals {
    std::uint64_t hops = 0;
    std::uint64_t events = 0;
    std::uint64_t ns3_events = 0;
    std::uint64_t data_packets = 0;
    std::uint64_t acks = 0;
    std::uint64_t cnps = 0;
    std::uint64_t naks = 0;
    std::uint64_t timeouts = 0;
    std::uint64_t retransmissions = 0;
    std::uint64_t drops_buffer = 0;
    std::uint64_t drops_wire = 0;
    std::uint64_t pauses = 0;
    std::uint64_t marks_red = 0;
    std::uint64_t marks_marker = 0;
    std::uint64_t peak_packets = 0;
    TimePs sim_time = 0;
    bool finished = false;
    std::string stopped;
};

struct FlowColumns {
    std::vector<std::int64_t> id, bytes, start_ns, end_ns, delivered_ns;
    std::vector<std::int32_t> job, op, ring, step, src, dst, retransmissions, sport, qp;
};

struct SeriesColumns {
    std::vector<std::int64_t> time_ns, data_bytes, queue_bytes;
    std::vector<std::int32_t> link, job, data_packets, steps, distance, marks;
};

// Steps that a job sends over a link, window by window.
class LinkSeries {
  public:
    LinkSeries(std::uint32_t link, std::int32_t job) : link_(link), job_(job), seen_(kSlots) {}

    struct Peak {
        std::int32_t steps = 0;
        std::int32_t distance = 0;
    };

    // A data packet that left at `at`; `queue` is what it left behind, in bytes.
    void add(TimePs at, std::uint32_t step, std::uint32_t bytes, std::uint32_t queue, bool marked,
             std::int64_t width_ns, SeriesColumns& out) {
        if (at >= window_end_) {
            flush(width_ns, out);
            const TimePs width = width_ns * kPsPerNs;
            window_ = at / width;
            window_end_ = (window_ + 1) * width;
            low_ = high_ = step;
        }
        Seen& s = seen_[step & (kSlots - 1)];
        if (s.window != window_ || s.step != step) {
            s = {window_, step};
            ++steps_;
            if (step < low_) low_ = step;
            if (step > high_) high_ = step;
        }
        ++packets_;
        bytes_ += bytes;
        marks_ += marked;
        if (queue > queue_) queue_ = queue;
    }
    void flush(std::int64_t width_ns, SeriesColumns& out);
    // Over all windows, the one under way included.
    Peak peak() const {
        return {std::max(peak_.steps, steps_),
                std::max(peak_.distance, static_cast<std::int32_t>(high_ - low_))};
    }
    std::int32_t job() const { return job_; }

  private:
    static constexpr std::uint32_t kSlots = 1024;
    struct Seen {
        std::int64_t window = -1;
        std::uint32_t step = 0;
    };
    std::int64_t window_ = -1;
    TimePs window_end_ = -1;
    std::int64_t bytes_ = 0;
    std::uint32_t low_ = 0;
    std::uint32_t high_ = 0;
    std::int32_t steps_ = 0;
    std::int32_t packets_ = 0;
    std::int32_t marks_ = 0;
    std::uint32_t queue_ = 0;
    std::uint32_t link_;
    std::int32_t job_;
    Peak peak_;
    std::vector<Seen> seen_;
};

struct AlphaColumns {
    std::vector<std::int64_t> time_ns;
    std::vector<std::int32_t> switch_node, port, job, alpha, step_min, psn_rec;
};

struct RateColumns {
    std::vector<std::int64_t> flow, time_ns;
    std::vector<double> rate_bps, alpha;
};

}  // namespace ringstep
