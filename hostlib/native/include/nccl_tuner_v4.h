/* Tuner ABI v4: v3 with reg_buff before n_channels; ncclTunerPlugin_v4 (NCCL 2.24 and later). */
#ifndef RINGSTEP_NCCL_TUNER_V4_H
#define RINGSTEP_NCCL_TUNER_V4_H

#include "nccl_abi.h"

typedef struct {
    const char* name;
    int (*init)(size_t n_ranks, size_t n_nodes, rs_nccl_log log, void** context);
    int (*get_coll_info)(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                         float** cost_table, int num_algo, int num_proto, int reg_buff,
                         int* n_channels);
    int (*destroy)(void* context);
} rs_tuner_v4;

RS_STATIC_ASSERT(sizeof(rs_tuner_v4) == 32, "tuner v4 has four pointers");
RS_STATIC_ASSERT(offsetof(rs_tuner_v4, init) == 8, "tuner v4 init");
RS_STATIC_ASSERT(offsetof(rs_tuner_v4, get_coll_info) == 16, "tuner v4 getCollInfo");
RS_STATIC_ASSERT(offsetof(rs_tuner_v4, destroy) == 24, "tuner v4 destroy");

#endif
