/* Tuner ABI v6: v5 with getChunkSize at the end; ncclTunerPlugin_v6 (NCCL 2.30 and later). */
#ifndef RINGSTEP_NCCL_TUNER_V6_H
#define RINGSTEP_NCCL_TUNER_V6_H

#include "nccl_tuner_v5.h"

typedef rs_nvl_domain_info_v5 rs_nvl_domain_info_v6;
typedef rs_tuner_constants_v5 rs_tuner_constants_v6;

typedef struct {
    const char* name;
    int (*init)(void** context, uint64_t comm_id, size_t n_ranks, size_t n_nodes, rs_nccl_log log,
                rs_nvl_domain_info_v6* nvl_domain_info, rs_tuner_constants_v6* constants);
    int (*get_coll_info)(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                         float** cost_table, int num_algo, int num_proto, int reg_buff,
                         int* n_channels);
    int (*finalize)(void* context);
    /* chunk_size: in NCCL's choice, out ours, in bytes; NCCL clamps to its buffers. */
    int (*get_chunk_size)(void* context, int coll, size_t n_bytes, int algo, int proto,
                          int n_channels, size_t* chunk_size);
} rs_tuner_v6;

RS_STATIC_ASSERT(sizeof(rs_tuner_v6) == 40, "tuner v6 has five pointers");
RS_STATIC_ASSERT(offsetof(rs_tuner_v6, init) == 8, "tuner v6 init");
RS_STATIC_ASSERT(offsetof(rs_tuner_v6, get_coll_info) == 16, "tuner v6 getCollInfo");
RS_STATIC_ASSERT(offsetof(rs_tuner_v6, finalize) == 24, "tuner v6 finalize");
RS_STATIC_ASSERT(offsetof(rs_tuner_v6, get_chunk_size) == 32, "tuner v6 getChunkSize");

#endif
