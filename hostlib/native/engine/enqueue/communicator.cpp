#include "enqueue/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace ringstep {
namespace {

struct Inputs {
    Allowed allowed;
    double alpha_us;
    double beta_gbps;
    std::int32_t min_channels;
    std::int32_t max_channels;
    std::uint32_t has_slot;
    std::uint32_t reserved;
};

int most_channels(const re_config& config) {
    const int standard = config.max_channels == 0 ? 8 : config.max_channels;
    const char* text = std::getenv("NCCL_MAX_NCHANNELS");
    const long limit = text != nullptr ? std::strtol(text, nullptr, 10) : 0;
    return limit >= 1 && limit < standard ? static_cast<int>(limit) : standard;
}

void align(re_comm& comm) {
    Comm& connections = *comm.connections;
    CostModel& model = comm.model;
    Inputs mine = {};
    mine.allowed = comm.allowed;
    mine.alpha_us = model.alpha_us;
    mine.beta_gbps = model.beta_gbps;
    mine.min_channels = model.min_channels;
    mine.max_channels = connections.max_channels();
    mine.has_slot = comm.fence.found();
    std::vector<Inputs> all(static_cast<std::size_t>(connections.n_ranks()));
    connections.exchange(&mine, all.data(), sizeof mine);
    model.max_channels = mine.max_channels;
    for (const Inputs& one : all) {
        comm.allowed = common(comm.allowed, one.allowed);
        model.alpha_us = std::max(model.alpha_us, one.alpha_us);
        model.beta_gbps = std::min(model.beta_gbps, one.beta_gbps);
        model.min_channels = std::max(model.min_channels, one.min_channels);
        model.max_channels = std::min(model.max_channels, one.max_channels);
        comm.fences = comm.fences || one.has_slot != 0;
    }
}

template <class P>
std::string described(const char* kind, const P& plugin) {
    if (plugin == nullptr) return std::string("no ") + kind;
    return std::string(kind) + " " + plugin->name() + " v" + std::to_string(plugin->version());
}

}  // namespace

std::unique_ptr<re_comm> make_communicator(const re_unique_id& id, int n_ranks, int rank,
                                           const re_config& config) {
    auto comm = std::make_unique<re_comm>();
    comm->allowed = read_allowed();
    comm->model = CostModel::from_environment();
    re_config used = config;
    used.max_channels = most_channels(config);
    comm->connections = Comm::create(id, n_ranks, rank, used);
    const Comm& connections = *comm->connections;
    comm->model.n_ranks = n_ranks;
    if (!config.no_plugins) {
        const std::uint64_t name = connections.id();
        const int n_nodes = connections.n_nodes();
        comm->profiler = Profiler::open(name, n_ranks, n_nodes, rank);
        comm->tuner = Tuner::open(name, n_ranks, n_nodes);
        if (comm->tuner != nullptr) comm->fence.find(connections);
    }
    align(*comm);
    comm->description = described("tuner", comm->tuner) + ", " +
                        described("profiler", comm->profiler);
    return comm;
}

}  // namespace ringstep
