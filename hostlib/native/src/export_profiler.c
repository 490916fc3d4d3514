/* ncclProfiler_v4 .. v6: descriptors of each ABI turned into rs_start. */
#include "events.h"
#include "export.h"
#include "nccl_profiler_v4.h"
#include "nccl_profiler_v6.h"

static int init(void** context, uint64_t comm_id, int* mask, int n_nodes, int n_ranks, int rank,
                rs_nccl_log log, uint32_t abi) {
    void* handle = rs_ctx_open_profiler(comm_id, n_nodes, n_ranks, rank, log, abi);
    if (context) *context = handle;
    if (mask) *mask = rs_events_mask();
    return RS_NCCL_SUCCESS;
}

static int init_v4(void** context, int* mask, const char* comm_name, uint64_t comm_id, int n_nodes,
                   int n_ranks, int rank, rs_nccl_log log) {
    (void)comm_name;
    return init(context, comm_id, mask, n_nodes, n_ranks, rank, log, 4);
}

static int init_v5(void** context, uint64_t comm_id, int* mask, const char* comm_name, int n_nodes,
                   int n_ranks, int rank, rs_nccl_log log) {
    (void)comm_name;
    return init(context, comm_id, mask, n_nodes, n_ranks, rank, log, 5);
}

static int start_v4(void* context, void** handle, rs_prof_descr_v4* descr) {
    if (handle == NULL) return RS_NCCL_SUCCESS;
    *handle = NULL;
    if (descr == NULL) return RS_NCCL_SUCCESS;
    rs_start start = {.type = descr->type, .parent = descr->parent};
    switch (descr->type) {
        case RS_EV_COLL:
            start.coll = &descr->coll;
            start.parent = NULL; /* the group: says nothing about graphs */
            break;
        case RS_EV_PROXY_OP:
            start.channel = descr->proxy_op.channel_id;
            start.send = descr->proxy_op.is_send != 0;
            start.foreign = descr->proxy_op.pid != (int32_t)rs_process_pid();
            break;
        case RS_EV_KERNEL_CH:
            start.channel = descr->kernel_ch.channel_id;
            start.p_timer = descr->kernel_ch.p_timer;
            break;
        case RS_EV_PROXY_STEP:
            break;
        default:
            return RS_NCCL_SUCCESS;
    }
    rs_event_start(context, handle, &start);
    return RS_NCCL_SUCCESS;
}

/* v6's descriptor has v5's layout in everything that is read here. */
static int start_v5(void* context, void** handle, rs_prof_descr_v5* descr) {
    if (handle == NULL) return RS_NCCL_SUCCESS;
    *handle = NULL;
    if (descr == NULL) return RS_NCCL_SUCCESS;
    rs_start start = {.type = descr->type, .parent = descr->parent};
    switch (descr->type) {
        case RS_EV_COLL:
            start.coll = &descr->coll.base;
            break;
        case RS_EV_COLL_API:
            start.captured = descr->coll_api.graph_captured;
            break;
        case RS_EV_P2P_API:
            start.captured = descr->p2p_api.graph_captured;
            break;
        case RS_EV_PROXY_OP:
            start.channel = descr->proxy_op.channel_id;
            start.send = descr->proxy_op.is_send != 0;
            start.foreign = descr->proxy_op.pid != (int32_t)rs_process_pid();
            break;
        case RS_EV_KERNEL_CH:
            start.channel = descr->kernel_ch.channel_id;
            start.p_timer = descr->kernel_ch.p_timer;
            break;
        case RS_EV_PROXY_STEP:
            break;
        default:
            return RS_NCCL_SUCCESS;
    }
    rs_event_start(context, handle, &start);
    return RS_NCCL_SUCCESS;
}

RS_STATIC_ASSERT(offsetof(rs_prof_descr_v6, coll) == offsetof(rs_prof_descr_v5, coll) &&
                     sizeof(rs_prof_descr_v6) == sizeof(rs_prof_descr_v5),
                 "v6 read as v5");

static int start_v6(void* context, void** handle, rs_prof_descr_v6* descr) {
    return start_v5(context, handle, (rs_prof_descr_v5*)(void*)descr);
}

static int stop(void* handle) {
    rs_event_stop(handle);
    return RS_NCCL_SUCCESS;
}

static int record(void* handle, int state, rs_prof_state_args* args) {
    rs_event_record(handle, state, args);
    return RS_NCCL_SUCCESS;
}

static int finalize(void* context) {
    const rs_ctx* ctx = rs_ctx_get(context);
    if (ctx != NULL) rs_events_flush(ctx->comm ? ctx->comm_index : RS_NO_COMM, ctx->rank);
    rs_ctx_close(context, false);
    return RS_NCCL_SUCCESS;
}

RS_EXPORT const rs_profiler_v4 ncclProfiler_v4 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v4,
    .start_event = start_v4,
    .stop_event = stop,
    .record_event_state = record,
    .finalize = finalize,
};

RS_EXPORT const rs_profiler_v5 ncclProfiler_v5 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v5,
    .start_event = start_v5,
    .stop_event = stop,
    .record_event_state = record,
    .finalize = finalize,
};

RS_EXPORT const rs_profiler_v6 ncclProfiler_v6 = {
    .name = RS_PLUGIN_NAME,
    .init = init_v5,
    .start_event = start_v6,
    .stop_event = stop,
    .record_event_state = record,
    .finalize = finalize,
};
