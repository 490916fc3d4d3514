/* A tuner plugin that hands every call to another one and notes how long getCollInfo took.
 *
 *   cc -O2 -shared -fPIC -I hostlib/native/include -o libtimed.so bench/native/tuner_timer.c -ldl
 *
 * RINGSTEP_TIMED_PLUGIN names the plugin; when a communicator ends, percentiles of its process so
 * far are appended to RINGSTEP_TIMED_OUT as a line of JSON. Measures only: a failure to load the
 * other plugin is success and bypass. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl_tuner_v4.h"
#include "nccl_tuner_v5.h"
#include "nccl_tuner_v6.h"

#define EXPORT __attribute__((visibility("default")))

enum { SAMPLES = 1 << 16 };

static struct {
    void* library;
    const rs_tuner_v4* v4;
    const rs_tuner_v5* v5;
    const rs_tuner_v6* v6;
    uint64_t taken;
    uint32_t took_ns[SAMPLES];
} timed;

static void load(void) {
    if (timed.library != NULL) return;
    const char* path = getenv("RINGSTEP_TIMED_PLUGIN");
    timed.library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (timed.library == NULL) return;
    timed.v4 = dlsym(timed.library, "ncclTunerPlugin_v4");
    timed.v5 = dlsym(timed.library, "ncclTunerPlugin_v5");
    timed.v6 = dlsym(timed.library, "ncclTunerPlugin_v6");
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void note(uint64_t before) {
    const uint64_t took = now_ns() - before;
    const uint64_t at = __atomic_fetch_add(&timed.taken, 1, __ATOMIC_RELAXED);
    timed.took_ns[at % SAMPLES] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
}

static int smaller(const void* a, const void* b) {
    const uint32_t x = *(const uint32_t*)a, y = *(const uint32_t*)b;
    return (x > y) - (x < y);
}

static void report(void) {
    const char* path = getenv("RINGSTEP_TIMED_OUT");
    const size_t n = timed.taken < SAMPLES ? (size_t)timed.taken : SAMPLES;
    if (path == NULL || n == 0) return;
    uint32_t* sorted = malloc(n * sizeof *sorted);
    if (sorted == NULL) return;
    memcpy(sorted, timed.took_ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, smaller);
    char line[256];
    const int length =
        snprintf(line, sizeof line,
                 "{\"pid\": %d, \"calls\": %zu, \"p50_ns\": %u, \"p99_ns\": %u, \"max_ns\": %u}\n",
                 (int)getpid(), n, sorted[n / 2], sorted[n * 99 / 100], sorted[n - 1]);
    free(sorted);
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, (size_t)length) != length) { /* a torn line is seen by who reads it */
    }
    close(fd);
}

static int init_v4(size_t n_ranks, size_t n_nodes, rs_nccl_log log, void** context) {
    *context = NULL;
    load();
    return timed.v4 ? timed.v4->init(n_ranks, n_nodes, log, context) : RS_NCCL_SUCCESS;
}

static int init_v5(void** context, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                   rs_nccl_log log, rs_nvl_domain_info_v5* domains,
                   rs_tuner_constants_v5* constants) {
    *context = NULL;
    load();
    return timed.v5 ? timed.v5->init(context, comm_id, n_ranks, n_nodes, log, domains, constants)
                    : RS_NCCL_SUCCESS;
}

static int get_coll_info(void* context, int coll, size_t n_bytes, int num_pipe_ops,
                         float** cost_table, int num_algo, int num_proto, int reg_buff,
                         int* n_channels) {
    if (timed.v4 == NULL) return RS_NCCL_SUCCESS;
    const uint64_t before = now_ns();
    const int result = timed.v4->get_coll_info(context, coll, n_bytes, num_pipe_ops, cost_table,
                                               num_algo, num_proto, reg_buff, n_channels);
    note(before);
    return result;
}

static int get_chunk_size(void* context, int coll, size_t n_bytes, int algo, int proto,
                          int n_channels, size_t* chunk_size) {
    if (timed.v6 == NULL) return RS_NCCL_SUCCESS;
    return timed.v6->get_chunk_size(context, coll, n_bytes, algo, proto, n_channels, chunk_size);
}

static int finalize(void* context) {
    report();
    return timed.v4 ? timed.v4->destroy(context) : RS_NCCL_SUCCESS;
}

EXPORT const rs_tuner_v4 ncclTunerPlugin_v4 = {
    .name = "ringstep-timed",
    .init = init_v4,
    .get_coll_info = get_coll_info,
    .destroy = finalize,
};

EXPORT const rs_tuner_v5 ncclTunerPlugin_v5 = {
    .name = "ringstep-timed",
    .init = init_v5,
    .get_coll_info = get_coll_info,
    .finalize = finalize,
};

EXPORT const rs_tuner_v6 ncclTunerPlugin_v6 = {
    .name = "ringstep-timed",
    .init = init_v5,
    .get_coll_info = get_coll_info,
    .finalize = finalize,
    .get_chunk_size = get_chunk_size,
};
