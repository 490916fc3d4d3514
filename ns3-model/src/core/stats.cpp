#include "core/stats.h"

#include <algorithm>

namespace ringstep {

void LinkSeries::flush(std::int64_t width_ns, SeriesColumns& out) {
    if (packets_ == 0) return;
    const auto distance = static_cast<std::int32_t>(high_ - low_);
    peak_.steps = std::max(peak_.steps, steps_);
    peak_.distance = std::max(peak_.distance, distance);
    out.link.push_back(static_cast<std::int32_t>(link_));
    out.job.push_back(job_);
    out.time_ns.push_back(window_ * width_ns);
    out.data_bytes.push_back(bytes_);
    out.data_packets.push_back(packets_);
    out.steps.push_back(steps_);
    out.distance.push_back(distance);
    out.queue_bytes.push_back(queue_);
    out.marks.push_back(marks_);
    steps_ = packets_ = marks_ = 0;
    bytes_ = 0;
    queue_ = 0;
}

}  // namespace ringstep
