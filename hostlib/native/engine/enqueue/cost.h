// The engine's own cost model: what NCCL's built-in tuning is to NCCL.
#pragma once

#include <cstddef>

#include "enqueue/choose.h"

namespace ringstep {

// What the costs come from; made equal on all ranks when a communicator is set up.
struct CostModel {
    double alpha_us = 0;   // from a message sent to its successor sent on by the peer
    double beta_gbps = 0;  // bytes that one rank's bulk connections carry, 10^9 per second
    int n_ranks = 1;
    int min_channels = 1;
    int max_channels = 8;

    // Defaults, or RINGSTEP_ENGINE_ALPHA_US, RINGSTEP_ENGINE_BETA_GBPS, NCCL_MIN_NCHANNELS.
    // Throws Error(RE_BAD_ARGUMENT) for settings that are no such numbers.
    static CostModel from_environment();
};

// bytes: of the larger side, all tasks of the bin. pipe_ops: tasks per channel.
CostTable costs_of(const CostModel& model, const Allowed& allowed, re_coll coll, std::size_t bytes,
                   int pipe_ops);

// Channels where no tuner says: few for small tasks, as every channel costs its own messages.
// bytes: of the larger side, one task.
int default_channels(const CostModel& model, std::size_t bytes);

// Bytes of one message, from what a tuner said: as many as the engine can do.
std::size_t clamp_chunk(re_proto proto, std::size_t chunk);

}  // namespace ringstep
