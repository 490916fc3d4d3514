// From what was called to what is run: bins of like tasks, one decision each, as NCCL makes them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "enqueue/communicator.h"

namespace ringstep {

// One call of the application.
struct Task {
    re_comm* comm;
    re_coll coll;
    re_type type;
    re_op op;
    const void* send;
    void* recv;
    std::size_t count;  // of the smaller side
    int root;
    std::size_t bytes;  // of the larger side
    void* api_event;    // of the profiler
};

struct Planned {
    Task task;
    re_algo algo;
    re_proto proto;
    int n_channels;
    std::size_t chunk_bytes;
    bool decided;  // the tuner plugin changed something
};

// Decides for one communicator's tasks of a group, in the order in which they will run. Asks the
// tuner once per bin. Throws Error: nothing is run then.
std::vector<Planned> plan(re_comm& comm, std::span<const Task> tasks);

// Asks the tuner for the chunk of one planned task, at launch.
void decide_chunk(Planned& planned);

}  // namespace ringstep
