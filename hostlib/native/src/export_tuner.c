/* ncclTunerPlugin_v3 .. v6: one struct per ABI over the same decisions.
 *
 * NCCL checks every result and kills the job for an error, so there is none: whatever goes wrong
 * is a bypass, success with every output as it came. */
#include "core.h"
#include "export.h"
#include "nccl_tuner_v3.h"
#include "nccl_tuner_v4.h"
#include "nccl_tuner_v6.h"

/* The argument is typed float** and points at one block of floats. */
static float* flat(float** cost_table) {
    return (float*)(void*)cost_table;
}

static int init_v3(size_t n_ranks, size_t n_nodes, rs_nccl_log log, void** context) {
    void* handle = rs_ctx_open_tuner(false, 0, n_ranks, n_nodes, log);
    if (context) *context = handle;
    return RS_NCCL_SUCCESS;
}

static int init_v5(void** context, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                   rs_nccl_log log, rs_nvl_domain_info_v5* nvl, rs_tuner_constants_v5* constants) {
    (void)nvl;
    (void)constants; /* NCCL's model stays as it is */
    void* handle = rs_ctx_open_tuner(true, comm_id, n_ranks, n_nodes, log);
    if (context) *context = handle;
    return RS_NCCL_SUCCESS;
}

static int get_coll_info_v3(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                            float** cost_table, int num_algo, int num_proto, int* n_channels) {
    (void)num_pipe_ops;
    return rs_decide(context, coll, n_bytes, flat(cost_table), num_algo, num_proto, n_channels);
}

static int get_coll_info_v4(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                            float** cost_table, int num_algo, int num_proto, int reg_buff,
                            int* n_channels) {
    (void)num_pipe_ops;
    (void)reg_buff;
    return rs_decide(context, coll, n_bytes, flat(cost_table), num_algo, num_proto, n_channels);
}

static int get_chunk_size_v6(void* context, int coll, size_t n_bytes, int algo, int proto,
                             int n_channels, size_t* chunk_size) {
    (void)n_channels;
    return rs_decide_chunk(context, coll, n_bytes, algo, proto, chunk_size);
}

static int finalize(void* context) {
    rs_ctx_close(context, true);
    return RS_NCCL_SUCCESS;
}

RS_EXPORT const rs_tuner_v3 ncclTunerPlugin_v3 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v3,
    .get_coll_info = get_coll_info_v3,
    .destroy = finalize,
};

RS_EXPORT const rs_tuner_v4 ncclTunerPlugin_v4 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v3,
    .get_coll_info = get_coll_info_v4,
    .destroy = finalize,
};

RS_EXPORT const rs_tuner_v5 ncclTunerPlugin_v5 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v5,
    .get_coll_info = get_coll_info_v4,
    .finalize = finalize,
};

RS_EXPORT const rs_tuner_v6 ncclTunerPlugin_v6 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v5,
    .get_coll_info = get_coll_info_v4,
    .finalize = finalize,
    .get_chunk_size = get_chunk_size_v6,
};
