/* Profiler ABI v6: v5 with copy-engine events; data symbol ncclProfiler_v6 (NCCL 2.29 and later).
 */
#ifndef RINGSTEP_NCCL_PROFILER_V6_H
#define RINGSTEP_NCCL_PROFILER_V6_H

#include "nccl_profiler_v5.h"

typedef struct {
    uint64_t seq_number;
    const char* func;
    const void* send_buff;
    void* recv_buff;
    size_t count;
    int root;
    const char* datatype;
    const char* sync_strategy;
    bool intra_batch_sync;
    uint32_t batch_size;
    uint32_t num_batches;
    uint32_t ce_seq_num;
    void* stream;
} rs_prof_ce_coll_v6;

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
        rs_prof_ce_coll_v6 ce_coll;
    };
} rs_prof_descr_v6;

typedef struct {
    const char* name;
    int (*init)(void** context, uint64_t comm_id, int* activation_mask, const char* comm_name,
                int n_nodes, int n_ranks, int rank, rs_nccl_log log);
    int (*start_event)(void* context, void** handle, rs_prof_descr_v6* descr);
    int (*stop_event)(void* handle);
    int (*record_event_state)(void* handle, int state, rs_prof_state_args* args);
    int (*finalize)(void* context);
} rs_profiler_v6;

RS_STATIC_ASSERT(sizeof(rs_prof_ce_coll_v6) == 88, "ceColl v6");
RS_STATIC_ASSERT(sizeof(rs_prof_descr_v6) == 112, "descriptor v6");
RS_STATIC_ASSERT(offsetof(rs_prof_descr_v6, ce_coll) == 24, "descriptor v6 union");
RS_STATIC_ASSERT(sizeof(rs_profiler_v6) == 48, "profiler v6 has six pointers");

#endif
