/* Tuner ABI v5: the communicator's id, NVLink domains and model constants at init;
 * ncclTunerPlugin_v5 (NCCL 2.28 and later). */
#ifndef RINGSTEP_NCCL_TUNER_V5_H
#define RINGSTEP_NCCL_TUNER_V5_H

#include "nccl_abi.h"

typedef struct {
    int n_nvl_domains;
    int min_ranks_per_nvl_domain;
    int max_ranks_per_nvl_domain;
} rs_nvl_domain_info_v5;

/* In and out: NCCL's cost model. [algorithm][protocol], [link], [GPU generation][1, 2, 4 nodes]. */
typedef struct {
    double base_latencies[7][3];
    double hw_latencies[3][7][3];
    double ll_max_bws[4][3];
    double per_ch_max_ring_ll128_bws[4][3];
    double per_ch_max_tree_ll128_bws[4][3];
    double per_ch_max_tree_bws[4][3];
    double per_ch_max_nvls_tree_bws[4][3];
} rs_tuner_constants_v5;

typedef struct {
    const char* name;
    int (*init)(void** context, uint64_t comm_id, size_t n_ranks, size_t n_nodes, rs_nccl_log log,
                rs_nvl_domain_info_v5* nvl_domain_info, rs_tuner_constants_v5* constants);
    int (*get_coll_info)(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                         float** cost_table, int num_algo, int num_proto, int reg_buff,
                         int* n_channels);
    int (*finalize)(void* context);
} rs_tuner_v5;

RS_STATIC_ASSERT(sizeof(rs_nvl_domain_info_v5) == 12, "three ints");
RS_STATIC_ASSERT(sizeof(rs_tuner_constants_v5) == 8 * (21 + 63 + 5 * 12), "144 doubles");
RS_STATIC_ASSERT(offsetof(rs_tuner_constants_v5, hw_latencies) == 8 * 21, "hwLatencies");
RS_STATIC_ASSERT(offsetof(rs_tuner_constants_v5, ll_max_bws) == 8 * 84, "llMaxBws");
RS_STATIC_ASSERT(sizeof(rs_tuner_v5) == 32, "tuner v5 has four pointers");
RS_STATIC_ASSERT(offsetof(rs_tuner_v5, init) == 8, "tuner v5 init");
RS_STATIC_ASSERT(offsetof(rs_tuner_v5, get_coll_info) == 16, "tuner v5 getCollInfo");
RS_STATIC_ASSERT(offsetof(rs_tuner_v5, finalize) == 24, "tuner v5 finalize");

#endif
