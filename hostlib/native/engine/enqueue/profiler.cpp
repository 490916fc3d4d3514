#include "enqueue/profiler.h"

#include <dlfcn.h>

#include "core.h"
#include "enqueue/library.h"
#include "enqueue/log.h"
#include "nccl_profiler_v4.h"

namespace ringstep {
namespace {

Library& library() {
    static Library* one = new Library("NCCL_PROFILER_PLUGIN", "libnccl-profiler", "profiler");
    return *one;  // never destroyed: communicators may outlive static objects
}

const rs_profiler_v4& v4(const void* exported) {
    return *static_cast<const rs_profiler_v4*>(exported);
}

// v5 and v6 differ in the descriptor of copy-engine events only, which the engine has not.
const rs_profiler_v6& v6(const void* exported) {
    return *static_cast<const rs_profiler_v6*>(exported);
}

// A child's event has a parent: whoever wants steps gets operations, collectives and groups.
int with_parents(int mask) {
    if (mask & RS_EV_PROXY_STEP) mask |= RS_EV_PROXY_OP;
    if (mask & (RS_EV_PROXY_OP | RS_EV_KERNEL_CH)) mask |= RS_EV_COLL;
    if (mask & RS_EV_COLL) mask |= RS_EV_GROUP | RS_EV_COLL_API;
    if (mask & (RS_EV_COLL_API | RS_EV_KERNEL_LAUNCH)) mask |= RS_EV_GROUP_API;
    return mask;
}

rs_prof_descr_v4 older(const rs_prof_descr_v6& descr) {
    rs_prof_descr_v4 made = {};
    made.type = static_cast<std::uint8_t>(descr.type);
    made.parent = descr.parent;
    made.rank = descr.rank;
    switch (descr.type) {
        case RS_EV_COLL:
            made.coll = descr.coll.base;
            made.parent = descr.coll.parent_group;  // v4 knows no API events
            break;
        case RS_EV_PROXY_OP: made.proxy_op = descr.proxy_op; break;
        case RS_EV_PROXY_STEP: made.proxy_step = descr.proxy_step; break;
        case RS_EV_KERNEL_CH: made.kernel_ch = descr.kernel_ch; break;
        default: break;
    }
    return made;
}

}  // namespace

Profiler::Profiler(const void* exported, int version, int rank)
    : exported_(exported), version_(version), rank_(rank) {
    const char* name = *static_cast<const char* const*>(exported);  // first in every version
    name_ = name != nullptr ? name : "unnamed";
}

int Profiler::initialise(std::uint64_t comm_id, int n_ranks, int n_nodes) {
    int mask = 0;
    const int result = version_ == 4
                           ? v4(exported_).init(&context_, &mask, nullptr, comm_id, n_nodes,
                                                n_ranks, rank_, nccl_log)
                           : v6(exported_).init(&context_, comm_id, &mask, nullptr, n_nodes,
                                                n_ranks, rank_, nccl_log);
    wanted_ = with_parents(mask);
    if (version_ == 4) wanted_ &= 0xFF;  // API events came with v5
    live_ = result == RS_NCCL_SUCCESS;
    return result;
}

std::unique_ptr<Profiler> Profiler::open(std::uint64_t comm_id, int n_ranks, int n_nodes,
                                         int rank) {
    const int wanted = wanted_abi("RINGSTEP_ENGINE_PROFILER_ABI", 4, 6);
    void* handle = library().acquire();
    if (handle == nullptr) return nullptr;
    const void* exported = nullptr;
    int version = 7;
    while (exported == nullptr && --version >= 4) {
        if (wanted != 0 && version != wanted) continue;
        exported = dlsym(handle, ("ncclProfiler_v" + std::to_string(version)).c_str());
    }
    if (exported == nullptr) {
        nccl_log(RS_LOG_WARN, kInit, __FILE__, __LINE__,
                 "profiler plugin: no ncclProfiler_v4 to v6");
        library().reject();
        return nullptr;
    }
    std::unique_ptr<Profiler> profiler(new Profiler(exported, version, rank));
    if (const int result = profiler->initialise(comm_id, n_ranks, n_nodes); result != 0) {
        nccl_log(RS_LOG_WARN, kInit | kProfile, __FILE__, __LINE__,
                 "profiler plugin %s (v%d): init returned %d; going on without it",
                 profiler->name_.c_str(), version, result);
        return nullptr;
    }
    nccl_log(RS_LOG_INFO, kInit | kProfile, __FILE__, __LINE__, "using profiler plugin %s (v%d)",
             profiler->name_.c_str(), version);
    return profiler;
}

Profiler::~Profiler() {
    if (live_ && version_ == 4) {
        v4(exported_).finalize(context_);
    } else if (live_) {
        v6(exported_).finalize(context_);
    }
    library().release();
}

void* Profiler::start(rs_prof_descr_v6& descr) const {
    void* handle = nullptr;
    descr.rank = rank_;
    if (version_ == 4) {
        rs_prof_descr_v4 made = older(descr);
        v4(exported_).start_event(context_, &handle, &made);
    } else {
        v6(exported_).start_event(context_, &handle, &descr);
    }
    return handle;
}

void Profiler::stop(void* handle) const {
    if (handle == nullptr) return;
    if (version_ == 4) {
        v4(exported_).stop_event(handle);
    } else {
        v6(exported_).stop_event(handle);
    }
}

void Profiler::record(void* handle, int state, std::uint64_t p_timer) const {
    if (handle == nullptr) return;
    rs_prof_state_args arguments = {};
    arguments.kernel_ch_p_timer = p_timer;
    if (version_ == 4) {
        v4(exported_).record_event_state(handle, state, &arguments);
    } else {
        v6(exported_).record_event_state(handle, state, &arguments);
    }
}

}  // namespace ringstep
