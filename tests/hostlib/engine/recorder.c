/* Plugins for the tests: write down every call, answer as RECORDER says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_profiler_v5.h"
#include "nccl_tuner_v6.h"

#define EXPORT __attribute__((visibility("default")))

static FILE* log_file;
static int profilers; /* that are initialised and not finalized */

static int mode_is(const char* name) {
    const char* mode = getenv("RECORDER");
    return mode != NULL && strcmp(mode, name) == 0;
}

static int init(void** context, uint64_t comm_id, size_t n_ranks, size_t n_nodes, rs_nccl_log log,
                rs_nvl_domain_info_v6* domains, rs_tuner_constants_v6* constants) {
    char path[512];
    if (log == NULL || domains == NULL || constants == NULL) return 3;
    if (mode_is("init fails")) return 3;
    snprintf(path, sizeof path, "%s.%d", getenv("RECORDER_LOG"), (int)getpid());
    if (log_file == NULL) log_file = fopen(path, "w");
    *context = malloc(8);
    memcpy(*context, &comm_id, 8);
    fprintf(log_file, "init %llx %zu %zu %d\n", (unsigned long long)comm_id, n_ranks, n_nodes,
            profilers);
    fflush(log_file);
    return 0;
}

static int get_coll_info(void* context, int coll, size_t n_bytes, int num_pipe_ops, float** typed,
                         int num_algo, int num_proto, int reg_buff, int* n_channels) {
    float* costs = (float*)typed;
    const int cells = num_algo * num_proto;
    unsigned long long id = 0;
    (void)reg_buff;
    memcpy(&id, context, 8);
    fprintf(log_file, "info %llx %d %zu %d %d %d %d", id, coll, n_bytes, num_pipe_ops, num_algo,
            num_proto, *n_channels);
    for (int i = 0; i < cells; ++i) fprintf(log_file, " %d", costs[i] >= 0);
    fprintf(log_file, "\n");
    fflush(log_file);
    if (mode_is("fails")) return 3;
    if (mode_is("all ignored")) {
        for (int i = 0; i < cells; ++i) costs[i] = RS_COST_IGNORE;
    } else if (mode_is("nan")) {
        for (int i = 0; i < cells; ++i) costs[i] = i == RS_ALGO_RING * num_proto ? 1.0f : NAN;
    } else if (mode_is("absent algorithms")) { /* makes what the engine does not have the cheapest */
        for (int i = 0; i < cells; ++i) costs[i] = costs[i] < 0 ? 0.0f : costs[i];
    } else if (mode_is("equal")) {
        for (int i = 0; i < cells; ++i) costs[i] = costs[i] < 0 ? costs[i] : 1.0f;
    } else if (mode_is("negative channels")) {
        *n_channels = -5;
    } else if (mode_is("200 channels")) {
        *n_channels = 200;
    } else if (mode_is("3 channels")) {
        *n_channels = 3;
    }
    return 0;
}

static int finalize(void* context) {
    fprintf(log_file, "finalize %d\n", profilers);
    fflush(log_file);
    free(context);
    return 0;
}

static int get_chunk_size(void* context, int coll, size_t n_bytes, int algo, int proto,
                          int n_channels, size_t* chunk_size) {
    (void)context;
    fprintf(log_file, "chunk %d %zu %d %d %d %zu\n", coll, n_bytes, algo, proto, n_channels,
            *chunk_size);
    fflush(log_file);
    if (mode_is("chunk of 28 bytes fails") && n_bytes == 28) return 3;
    if (mode_is("chunk of 1")) *chunk_size = 1;
    if (mode_is("endless chunk")) *chunk_size = SIZE_MAX;
    return 0;
}

EXPORT const rs_tuner_v6 ncclTunerPlugin_v6 = {"recorder", init, get_coll_info, finalize,
                                               get_chunk_size};

static FILE* event_file;

static int start_profiler(void** context, uint64_t comm_id, int* mask, const char* comm_name,
                          int n_nodes, int n_ranks, int rank, rs_nccl_log log) {
    char path[512];
    const char* wanted = getenv("RECORDER_MASK");
    (void)comm_id;
    (void)comm_name;
    if (mode_is("profiler fails") || n_nodes < 1 || log == NULL) return 3;
    snprintf(path, sizeof path, "%s-events.%d", getenv("RECORDER_LOG"), (int)getpid());
    if (event_file == NULL) event_file = fopen(path, "w");
    fprintf(event_file, "init %d %d\n", rank, n_ranks);
    ++profilers;
    *context = event_file;
    *mask = wanted ? atoi(wanted) : 0;
    return 0;
}

static int start_event(void* context, void** handle, rs_prof_descr_v5* descr) {
    static uintptr_t number;
    *handle = (void*)++number;
    fprintf(context, "start %ju %ju %ju\n", (uintmax_t)number, (uintmax_t)descr->type,
            (uintmax_t)(uintptr_t)descr->parent);
    return 0;
}

static int stop_event(void* handle) {
    fprintf(event_file, "stop %ju\n", (uintmax_t)(uintptr_t)handle);
    return 0;
}

static int record_state(void* handle, int state, rs_prof_state_args* args) {
    fprintf(event_file, "state %ju %d %d\n", (uintmax_t)(uintptr_t)handle, state, args != NULL);
    return 0;
}

static int end_profiler(void* context) {
    --profilers;
    fprintf(context, "finalize\n");
    fflush(context);
    return 0;
}

EXPORT const rs_profiler_v5 ncclProfiler_v5 = {"recorder", start_profiler, start_event,
                                               stop_event, record_state, end_profiler};
