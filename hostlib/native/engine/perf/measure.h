// Running, timing and checking one size.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "perf/data.h"
#include "perf/session.h"

namespace perf {

struct Timing {
    double mean_us = 0;  // of the slowest rank
    double median_us = 0;
    double p99_us = 0;
    double algbw = 0;  // 10^9 bytes per second
    double busbw = 0;
    std::int64_t wrong = -1;  // elements on all ranks; -1: not checked
    std::vector<double> times_us;
};

struct Row {
    std::size_t size = 0;   // bytes, of the larger side
    std::size_t count = 0;  // elements, of the smaller side
    re_type type = RE_FLOAT32;
    re_op op = RE_SUM;
    Timing out_of_place;
    Timing in_place;
    re_run last = {};
    bool has_run = false;
    std::map<std::string, long> ran;  // "RING/SIMPLE/4" -> timed runs
};

// Throws Failure.
Row measure(const Options& options, Session& session, std::size_t size, re_type type, re_op op);

std::string ran_as(const re_run& run);  // "RING/SIMPLE/4"

}  // namespace perf
