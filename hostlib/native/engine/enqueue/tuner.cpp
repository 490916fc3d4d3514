#include "enqueue/tuner.h"

#include <dlfcn.h>

#include "core.h"
#include "enqueue/library.h"
#include "enqueue/log.h"
#include "nccl_tuner_v3.h"
#include "nccl_tuner_v4.h"
#include "nccl_tuner_v6.h"

namespace ringstep {
namespace {

Library& library() {
    static Library* one = new Library("NCCL_TUNER_PLUGIN", "libnccl-tuner", "tuner");
    return *one;  // never destroyed: communicators may outlive static objects
}

// The engine has no NVLink and none of NCCL's constants: a plugin may read and write these zeros.
int init_with_id(const rs_tuner_v5& plugin, void** context, std::uint64_t comm_id,
                 std::size_t n_ranks, std::size_t n_nodes) {
    rs_nvl_domain_info_v5 domains = {static_cast<int>(n_ranks), 1, 1};
    rs_tuner_constants_v5 constants = {};
    return plugin.init(context, comm_id, n_ranks, n_nodes, nccl_log, &domains, &constants);
}

}  // namespace

Tuner::Tuner(const void* exported, int version) : exported_(exported), version_(version) {
    const char* name = *static_cast<const char* const*>(exported);  // first in every version
    name_ = name != nullptr ? name : "unnamed";
}

std::unique_ptr<Tuner> Tuner::open(std::uint64_t comm_id, int n_ranks, int n_nodes) {
    const int wanted = wanted_abi("RINGSTEP_ENGINE_TUNER_ABI", 3, 6);
    void* handle = library().acquire();
    if (handle == nullptr) return nullptr;
    const void* exported = nullptr;
    int version = 7;
    while (exported == nullptr && --version >= 3) {
        if (wanted != 0 && version != wanted) continue;
        exported = dlsym(handle, ("ncclTunerPlugin_v" + std::to_string(version)).c_str());
    }
    if (exported == nullptr) {
        nccl_log(RS_LOG_WARN, kInit, __FILE__, __LINE__,
                 "tuner plugin: no ncclTunerPlugin_v3 to v6");
        library().reject();
        return nullptr;
    }
    std::unique_ptr<Tuner> tuner(new Tuner(exported, version));  // releases the library
    const auto ranks = static_cast<std::size_t>(n_ranks), nodes = static_cast<std::size_t>(n_nodes);
    void** context = &tuner->context_;
    int result = 0;
    if (version >= 5) {  // v6 is v5 with one function more
        result = init_with_id(*static_cast<const rs_tuner_v5*>(exported), context, comm_id, ranks,
                              nodes);
    } else if (version == 4) {
        result = static_cast<const rs_tuner_v4*>(exported)->init(ranks, nodes, nccl_log, context);
    } else {
        result = static_cast<const rs_tuner_v3*>(exported)->init(ranks, nodes, nccl_log, context);
    }
    tuner->check(result, "init");
    tuner->live_ = true;
    nccl_log(RS_LOG_INFO, kInit | kTuning, __FILE__, __LINE__, "using tuner plugin %s (v%d)",
             tuner->name_.c_str(), version);
    return tuner;
}

Tuner::~Tuner() {
    if (live_ && version_ >= 5) {
        static_cast<const rs_tuner_v5*>(exported_)->finalize(context_);
    } else if (live_) {  // v3 and v4 have the same layout
        static_cast<const rs_tuner_v4*>(exported_)->destroy(context_);
    }
    library().release();
}

void Tuner::check(int result, const char* function) const {
    if (result == RS_NCCL_SUCCESS) return;
    throw Error(RE_TUNER, "tuner plugin " + name_ + " (v" + std::to_string(version_) + "): " +
                              function + " returned " + std::to_string(result) +
                              "; a plugin that has nothing to say returns 0");
}

void Tuner::coll_info(int coll, std::size_t bytes, int pipe_ops, CostTable& table,
                      int& n_channels) {
    auto** costs = reinterpret_cast<float**>(&table.us[0][0]);  // typed so, contiguous in truth
    int result = 0;
    if (version_ >= 5) {
        result = static_cast<const rs_tuner_v5*>(exported_)->get_coll_info(
            context_, coll, bytes, pipe_ops, costs, kAlgos, kProtos, 0, &n_channels);
    } else if (version_ == 4) {
        result = static_cast<const rs_tuner_v4*>(exported_)->get_coll_info(
            context_, coll, bytes, pipe_ops, costs, kAlgos, kProtos, 0, &n_channels);
    } else {
        result = static_cast<const rs_tuner_v3*>(exported_)->get_coll_info(
            context_, coll, bytes, pipe_ops, costs, kAlgos, kProtos, &n_channels);
    }
    check(result, "getCollInfo");
}

void Tuner::chunk_size(int coll, std::size_t bytes, int algo, int proto, int n_channels,
                       std::size_t& chunk) {
    if (version_ < 6) return;
    const auto* plugin = static_cast<const rs_tuner_v6*>(exported_);
    if (plugin->get_chunk_size == nullptr) return;
    check(plugin->get_chunk_size(context_, coll, bytes, algo, proto, n_channels, &chunk),
          "getChunkSize");
}

}  // namespace ringstep
