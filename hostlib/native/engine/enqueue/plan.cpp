#include "enqueue/plan.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace ringstep {
namespace {

bool alike(const Task& a, const Task& b) {
    return a.coll == b.coll && a.op == b.op && a.type == b.type;
}

// Kinds (function, operation, type) in the order of their largest task, each kind from its smallest
// task up: what NCCL's sorter yields.
std::vector<Task> ordered(std::span<const Task> tasks) {
    std::vector<Task> descending(tasks.begin(), tasks.end());
    std::stable_sort(descending.begin(), descending.end(),
                     [](const Task& a, const Task& b) { return a.bytes > b.bytes; });
    std::vector<Task> result;
    while (!descending.empty()) {
        const Task first = descending.front();
        const auto others =
            std::stable_partition(descending.begin(), descending.end(),
                                  [&](const Task& one) { return alike(one, first); });
        std::stable_sort(descending.begin(), others,
                         [](const Task& a, const Task& b) { return a.bytes < b.bytes; });
        result.insert(result.end(), descending.begin(), others);
        descending.erase(descending.begin(), others);
    }
    return result;
}

[[noreturn]] void nothing_left(const re_comm& comm, re_coll coll) {
    const auto f = static_cast<std::size_t>(coll);
    const bool by_user = comm.allowed.algos[f] != 0x7F || comm.allowed.protos[f] != 0x7;
    const std::string what = std::string("no algorithm and protocol left for ") + name_of(coll);
    if (by_user) {
        throw Error(RE_BAD_ARGUMENT,
                    what + ": NCCL_ALGO and NCCL_PROTO of all ranks have to leave RING" +
                        (coll == RE_ALL_REDUCE ? " or TREE" : "") + " with LL or SIMPLE");
    }
    throw Error(RE_TUNER, what + ": the tuner plugin excluded all of them");
}

// One bin: tasks like the first, of so many bytes together.
Planned decide(re_comm& comm, const Task& first, std::size_t n_tasks, std::size_t bytes,
               int pipe_ops) {
    CostTable table = costs_of(comm.model, comm.allowed, first.coll, bytes, pipe_ops);
    const CostTable offered = table;
    int channels = 0;
    if (comm.tuner != nullptr) comm.tuner->coll_info(first.coll, bytes, pipe_ops, table, channels);
    const std::optional<Pick> pick = cheapest(table, comm.allowed, first.coll);
    if (!pick) nothing_left(comm, first.coll);
    Planned made = {};
    made.algo = pick->algo;
    made.proto = pick->proto;
    made.n_channels = channels == 0 ? default_channels(comm.model, bytes / n_tasks)
                                    : std::clamp(channels, 1, comm.model.max_channels);
    made.decided = channels != 0 || std::memcmp(&table, &offered, sizeof table) != 0;
    return made;
}

}  // namespace

std::vector<Planned> plan(re_comm& comm, std::span<const Task> tasks) {
    const std::vector<Task> all = ordered(tasks);
    const int n_tasks = static_cast<int>(all.size());
    const int per_channel = (n_tasks + comm.model.max_channels - 1) / comm.model.max_channels;
    std::vector<Planned> made;
    for (std::size_t begin = 0; begin < all.size();) {
        std::size_t end = begin, bytes = 0;
        do {
            bytes += all[end++].bytes;
        } while (end < all.size() && alike(all[end], all[begin]) &&
                 all[end].bytes / 4 < all[begin].bytes);
        Planned bin = decide(comm, all[begin], end - begin, bytes, per_channel);
        for (; begin < end; ++begin) {
            bin.task = all[begin];
            bin.chunk_bytes = default_chunk(bin.proto);
            made.push_back(bin);
        }
    }
    return made;
}

void decide_chunk(Planned& planned) {
    const Task& task = planned.task;
    if (task.comm->tuner == nullptr) return;
    std::size_t chunk = planned.chunk_bytes;
    task.comm->tuner->chunk_size(task.coll, task.bytes, planned.algo, planned.proto,
                                 planned.n_channels, chunk);
    if (chunk != planned.chunk_bytes) planned.chunk_bytes = clamp_chunk(planned.proto, chunk);
}

}  // namespace ringstep
