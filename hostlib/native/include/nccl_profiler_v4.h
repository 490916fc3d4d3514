/* Profiler ABI v4: data symbol ncclProfiler_v4 (NCCL 2.27 and later). */
#ifndef RINGSTEP_NCCL_PROFILER_V4_H
#define RINGSTEP_NCCL_PROFILER_V4_H

#include "nccl_profiler_abi.h"

typedef struct {
    uint8_t type;
    void* parent;
    int rank;
    union {
        rs_prof_coll_v4 coll;
        rs_prof_p2p_v4 p2p;
        rs_prof_proxy_op proxy_op;
        int proxy_step;
        rs_prof_kernel_ch kernel_ch;
        rs_prof_net_plugin net_plugin;
    };
} rs_prof_descr_v4;

typedef struct {
    const char* name;
    int (*init)(void** context, int* activation_mask, const char* comm_name, uint64_t comm_id,
                int n_nodes, int n_ranks, int rank, rs_nccl_log log);
    int (*start_event)(void* context, void** handle, rs_prof_descr_v4* descr);
    int (*stop_event)(void* handle);
    int (*record_event_state)(void* handle, int state, rs_prof_state_args* args);
    int (*finalize)(void* context);
} rs_profiler_v4;

RS_STATIC_ASSERT(sizeof(rs_prof_descr_v4) == 104, "descriptor v4");
RS_STATIC_ASSERT(offsetof(rs_prof_descr_v4, parent) == 8, "descriptor v4 parentObj");
RS_STATIC_ASSERT(offsetof(rs_prof_descr_v4, rank) == 16, "descriptor v4 rank");
RS_STATIC_ASSERT(offsetof(rs_prof_descr_v4, coll) == 24, "descriptor v4 union");
RS_STATIC_ASSERT(sizeof(rs_profiler_v4) == 48, "profiler v4 has six pointers");
RS_STATIC_ASSERT(offsetof(rs_profiler_v4, record_event_state) == 32, "recordEventState");

#endif
