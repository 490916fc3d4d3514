/* Tuner ABI v3: data symbol ncclTunerPlugin_v3 (NCCL 2.22 and later). */
#ifndef RINGSTEP_NCCL_TUNER_V3_H
#define RINGSTEP_NCCL_TUNER_V3_H

#include "nccl_abi.h"

typedef struct {
    const char* name;
    int (*init)(size_t n_ranks, size_t n_nodes, rs_nccl_log log, void** context);
    /* cost_table is typed float** and is one contiguous float[num_algo][num_proto]. */
    int (*get_coll_info)(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                         float** cost_table, int num_algo, int num_proto, int* n_channels);
    int (*destroy)(void* context);
} rs_tuner_v3;

RS_STATIC_ASSERT(sizeof(rs_tuner_v3) == 32, "tuner v3 has four pointers");
RS_STATIC_ASSERT(offsetof(rs_tuner_v3, init) == 8, "tuner v3 init");
RS_STATIC_ASSERT(offsetof(rs_tuner_v3, get_coll_info) == 16, "tuner v3 getCollInfo");
RS_STATIC_ASSERT(offsetof(rs_tuner_v3, destroy) == 24, "tuner v3 destroy");

#endif
