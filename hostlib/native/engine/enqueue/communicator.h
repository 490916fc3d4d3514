// What the C interface's re_comm is.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "enqueue/choose.h"
#include "core.h"
#include "enqueue/cost.h"
#include "enqueue/fence.h"
#include "enqueue/profiler.h"
#include "enqueue/tuner.h"

struct re_comm {
    // Members end in reverse: the tuner before the profiler, both before the connections.
    std::unique_ptr<ringstep::Comm> connections;
    std::unique_ptr<ringstep::Profiler> profiler;
    std::unique_ptr<ringstep::Tuner> tuner;
    ringstep::Fence fence;
    bool fences = false;  // some rank has a slot, so all take part
    ringstep::Allowed allowed = {};
    ringstep::CostModel model;
    std::array<std::uint64_t, ringstep::kFunctions> launched = {};  // per function, as NCCL counts
    re_run last = {};
    bool has_run = false;
    std::string description;
};

namespace ringstep {

// Connects, loads the plugins, makes equal on all ranks what the choice depends on. Throws Error.
std::unique_ptr<re_comm> make_communicator(const re_unique_id& id, int n_ranks, int rank,
                                           const re_config& config);

}  // namespace ringstep
