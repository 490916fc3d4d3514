// All ranks of a run as children of this process.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ringstep_engine.h"

namespace perf {

// A collective or a system call failed; exit status 1.
struct Failure : std::runtime_error {
    explicit Failure(const std::string& what, re_result why = RE_SYSTEM)
        : std::runtime_error(what), code(why) {}
    re_result code;
};

// Throws Failure with the engine's text where the result is an error.
void check(re_result result);

// Runs one rank and returns its exit status; ids: one per communicator, the same on all ranks.
using RankBody = std::function<int(int rank, const std::vector<re_unique_id>& ids)>;

// Forks n_ranks ranks, waits for them, ends all where one fails or the user interrupts. Returns the
// exit status: 0, 1 (said on standard error), 128 + signal.
int run_local(int n_ranks, int n_ids, const RankBody& body);

}  // namespace perf
