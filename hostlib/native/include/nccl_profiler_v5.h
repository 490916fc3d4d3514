/* Profiler ABI v5: API events, a wider type, the communicator's id first;
 * data symbol ncclProfiler_v5 (NCCL 2.28 and later). */
#ifndef RINGSTEP_NCCL_PROFILER_V5_H
#define RINGSTEP_NCCL_PROFILER_V5_H

#include "nccl_profiler_abi.h"

typedef struct {
    rs_prof_coll_v4 base;
    void* parent_group;
} rs_prof_coll_v5;

typedef struct {
    rs_prof_p2p_v4 base;
    void* parent_group;
} rs_prof_p2p_v5;

typedef struct {
    const char* func;
    size_t count;
    const char* datatype;
    int root;
    void* stream;
    bool graph_captured;
} rs_prof_coll_api_v5;

typedef struct {
    const char* func;
    size_t count;
    const char* datatype;
    void* stream;
    bool graph_captured;
} rs_prof_p2p_api_v5;

typedef struct {
    bool graph_captured;
    int group_depth;
} rs_prof_group_api_v5;

typedef struct {
    uint64_t type;
    void* parent;
    int rank;
    union {
        rs_prof_group_api_v5 group_api;
        rs_prof_coll_api_v5 coll_api;
        rs_prof_p2p_api_v5 p2p_api;
        void* kernel_launch_stream;
        rs_prof_coll_v5 coll;
        rs_prof_p2p_v5 p2p;
        rs_prof_proxy_op proxy_op;
        int proxy_step;
        rs_prof_kernel_ch kernel_ch;
        rs_prof_net_plugin net_plugin;
    };
} rs_prof_descr_v5;

typedef struct {
    const char* name;
    int (*init)(void** context, uint64_t comm_id, int* activation_mask, const char* comm_name,
                int n_nodes, int n_ranks, int rank, rs_nccl_log log);
    int (*start_event)(void* context, void** handle, rs_prof_descr_v5* descr);
    int (*stop_event)(void* handle);
    int (*record_event_state)(void* handle, int state, rs_prof_state_args* args);
    int (*finalize)(void* context);
} rs_profiler_v5;

RS_STATIC_ASSERT(sizeof(rs_prof_coll_v5) == 88, "coll v5");
RS_STATIC_ASSERT(offsetof(rs_prof_coll_v5, parent_group) == 80, "coll v5 parentGroup");
RS_STATIC_ASSERT(sizeof(rs_prof_coll_api_v5) == 48, "collApi v5");
RS_STATIC_ASSERT(offsetof(rs_prof_coll_api_v5, graph_captured) == 40, "collApi graphCaptured");
RS_STATIC_ASSERT(sizeof(rs_prof_descr_v5) == 112, "descriptor v5");
RS_STATIC_ASSERT(offsetof(rs_prof_descr_v5, coll) == 24, "descriptor v5 union");
RS_STATIC_ASSERT(sizeof(rs_profiler_v5) == 48, "profiler v5 has six pointers");

#endif
