// ringstep-perf's command line.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "ringstep_engine.h"

namespace perf {

// What was wrong with the command line, where, and what would be right; exit status 2.
struct UsageError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    re_coll coll = RE_ALL_REDUCE;
    std::vector<std::size_t> sizes;  // bytes, of the larger side
    std::vector<re_type> types = {RE_FLOAT32};
    std::vector<re_op> ops = {RE_SUM};
    int iterations = 20;
    int warmup = 5;
    bool check = true;
    int root = 0;

    int local_ranks = 0;  // forked; 0: this process is one rank
    int rank = 0;
    int n_ranks = 0;
    std::string root_address;
    std::optional<std::string> bind;
    std::optional<std::string> bridge;

    int comms = 1;
    int group = 1;
    int fence_every = 0;
    int channels = 0;
    double duration_s = 0;
    double timeout_s = 0;
    bool json = false;
    bool per_iteration = false;
};

// Also reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the like, and sets NCCL_ALGO,
// NCCL_PROTO and NCCL_MIN_NCHANNELS where options say so. Throws UsageError. nullopt: help was
// printed.
std::optional<Options> parse(int argc, char** argv);

const char* name_of(re_coll coll);  // "all_reduce"
const char* name_of(re_type type);  // as nccl-tests: "float"
const char* name_of(re_op op);      // "sum"; "none" where the collective has no operation
bool has_op(re_coll coll);

}  // namespace perf
