/* Communicators of this process, the mapped file, and who may touch them.
 *
 * All state is static: nothing is allocated, so nothing can leak, and a handle that NCCL kept too
 * long is a number that no longer fits, not a pointer to something else. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

enum { GUARD_BUSY = 1, GUARD_ALIVE = 0x52535450 };

static struct {
    pthread_mutex_t lock; /* init and finalize only */
    uint32_t* guard;      /* points at GUARD_ALIVE in this process, at zero in its children */
    uint16_t tag;
    uint32_t pid;
    uint32_t live;
    uint64_t births;
    rs_file* file;
    rs_proc* proc;
    char path[512];
    rs_ctx contexts[RS_CONTEXTS];
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool rs_process_owns_state(void) {
    const uint32_t* guard = rs_load_acquire(&process.guard);
    return guard != NULL && rs_load_acquire(guard) == GUARD_ALIVE;
}

rs_proc* rs_process_ring(void) {
    return rs_process_owns_state() ? rs_load_acquire(&process.proc) : NULL;
}

uint16_t rs_process_tag(void) {
    return process.tag;
}

uint32_t rs_process_pid(void) {
    return process.pid;
}

static void take_identity(void) {
    process.pid = (uint32_t)getpid();
    const uint64_t start = rs_pid_start(process.pid);
    process.tag = (uint16_t)((process.pid * 0x9E37u) ^ start ^ (start >> 16)) | 1u;
}

/* In a child: what was its parent's is not ours, and a lock held at fork never comes free. */
static void forget_parent(void) {
    if (process.file) munmap(process.file, sizeof(rs_file));
    pthread_mutex_init(&process.lock, NULL);
    process.file = NULL;
    process.proc = NULL;
    process.live = 0;
    memset(process.contexts, 0, sizeof process.contexts);
    take_identity();
}

/* The guard is a page that the kernel empties in children, so that telling parent from child is a
 * load. Linux before 4.14 cannot do that; there the plugin stays in bypass. */
static uint32_t* new_guard(void) {
    void* page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, 4096, MADV_WIPEONFORK) != 0) {
        munmap(page, 4096);
        return NULL;
    }
    take_identity();
    rs_store_release((uint32_t*)page, GUARD_ALIVE);
    return page;
}

static void become_owner(void) {
    uint32_t* guard = rs_load_acquire(&process.guard);
    if (guard == NULL) {
        pthread_mutex_lock(&process.lock);
        if (process.guard == NULL) rs_store_release(&process.guard, new_guard());
        pthread_mutex_unlock(&process.lock);
        return;
    }
    for (;;) {
        uint32_t state = rs_load_acquire(guard);
        if (state == GUARD_ALIVE) return;
        if (state == 0 && __atomic_compare_exchange_n(guard, &state, GUARD_BUSY, false,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            forget_parent();
            rs_store_release(guard, GUARD_ALIVE);
            return;
        }
        sched_yield(); /* another thread of this child is at it */
    }
}

__attribute__((destructor)) static void unload(void) {
    if (!rs_process_owns_state()) return;
    if (process.proc) rs_store_release(&process.proc->state, RS_SLOT_LEFT);
    process.proc = NULL;
    if (process.file) munmap(process.file, sizeof(rs_file));
    process.file = NULL;
    munmap(process.guard, 4096);
    process.guard = NULL;
}

static uint64_t hex_setting(const char* name) {
    const char* text = getenv(name);
    return text ? strtoull(text, NULL, 16) : 0;
}

static bool switched_on(const char* name) {
    const char* text = getenv(name);
    return text && *text && strcmp(text, "0") != 0;
}

/* $RINGSTEP_SHM_DIR/$RINGSTEP_JOB.shm; false where the job's name is none. */
static bool file_path(char* path, size_t size) {
    const char* folder = getenv("RINGSTEP_SHM_DIR");
    const char* job = getenv("RINGSTEP_JOB");
    if (job == NULL || *job == 0) job = "default";
    if (*job == '.' || strlen(job) > 64) return false;
    for (const char* at = job; *at; ++at) {
        const char c = *at;
        const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
        if (!fits) return false;
    }
    const int length = folder && *folder ? snprintf(path, size, "%s/%s.shm", folder, job)
                                         : snprintf(path, size, "/dev/shm/ringstep-%u/%s.shm",
                                                    (unsigned)geteuid(), job);
    return length > 0 && (size_t)length < size;
}

/* With the process lock held. The mapping stays until the library is unloaded or, with no
 * communicator left, another file takes its place: a late event never meets a missing page. */
static bool map_file(rs_ctx* ctx, bool first_half) {
    if (process.file != NULL && (process.live > 1 || !first_half)) return true;
    if (!first_half) return false;
    uint32_t why = RS_WHY_NO_FILE;
    rs_file* file = NULL;
    char path[sizeof process.path];
    if (file_path(path, sizeof path)) {
        file = rs_shm_open(path, hex_setting("RINGSTEP_SHM_TOKEN"), &why);
    }
    if (file != NULL && process.file != NULL &&
        file->header.file_id == process.file->header.file_id) { /* the same one, mapped twice */
        munmap(file, sizeof(rs_file));
        return true;
    }
    if (process.file != NULL) {
        if (process.proc) rs_store_release(&process.proc->state, RS_SLOT_LEFT);
        rs_store_release(&process.proc, NULL);
        munmap(process.file, sizeof(rs_file));
    }
    process.file = file;
    if (file == NULL) {
        rs_why(ctx, why);
        return false;
    }
    memcpy(process.path, path, sizeof path);
    return true;
}

static void take_static_table(rs_ctx* ctx) {
    rs_bank* table = &ctx->tables[ctx->active];
    const uint64_t wanted = hex_setting("RINGSTEP_STATIC_DIGEST");
    const bool there = process.file != NULL && rs_load(&process.file->static_bank.digest) != 0;
    bool good = there && rs_bank_copy(table, &process.file->static_bank) && table->epoch == 0 &&
                rs_bank_digest(table) == table->digest;
    if (there && !good) rs_why(ctx, RS_WHY_BAD_DIGEST);
    if (wanted != 0 && (!good || table->digest != wanted)) {
        rs_why(ctx, RS_WHY_STATIC_DIFFERS);
        good = false;
    }
    if (!good) memset(table, 0, sizeof *table);
    ctx->has_static = good;
    ctx->trusted_static = good && wanted != 0;
}

static void attach(rs_ctx* ctx, bool first_half, bool tuner) {
    const bool mapped = map_file(ctx, first_half);
    if (tuner) take_static_table(ctx); /* on the launcher's word no place in the file is needed */
    int fd;
    if (!mapped) return;
    if (!rs_shm_lock(process.path, process.file, &fd)) {
        rs_why(ctx, RS_WHY_BUSY);
        return;
    }
    if (process.proc == NULL) {
        rs_store_release(&process.proc, rs_shm_claim_proc(process.file));
        if (process.proc == NULL) rs_why(ctx, RS_WHY_NO_ROOM);
    }
    uint32_t why;
    if (first_half && ctx->has_id && !rs_shm_attach(process.file, ctx, &why)) rs_why(ctx, why);
    if (tuner && ctx->comm && ctx->has_static) {
        const uint64_t digest = ctx->tables[ctx->active].digest;
        if (ctx->comm->tuners == 0) rs_store(&ctx->comm->static_digest, digest);
        if (ctx->comm->static_digest == digest) {
            rs_store_release(&ctx->comm->tuners, ctx->comm->tuners + 1);
        } else {
            rs_why(ctx, RS_WHY_STATIC_DIFFERS);
        }
    }
    rs_shm_unlock(fd);
}

static void* to_handle(const rs_ctx* ctx) {
    const uint64_t number = (uint64_t)(ctx - process.contexts) + 1;
    return (void*)(uintptr_t)((uint64_t)process.tag << 48 | 0xCull << 44 |
                              (ctx->generation & 0xFFFFFFF) << 16 | number);
}

rs_ctx* rs_ctx_get(void* handle) {
    const uint64_t value = (uint64_t)(uintptr_t)handle;
    const uint64_t number = value & 0xFFFF;
    if (number == 0 || number > RS_CONTEXTS || !rs_process_owns_state()) return NULL;
    if (value >> 48 != process.tag || (value >> 44 & 0xF) != 0xC) return NULL;
    rs_ctx* ctx = &process.contexts[number - 1];
    const uint64_t generation = rs_load_acquire(&ctx->generation);
    const bool same = (generation & 1) && (generation & 0xFFFFFFF) == (value >> 16 & 0xFFFFFFF);
    return same ? ctx : NULL;
}

static rs_ctx* new_context(rs_nccl_log log, uint32_t n_ranks, uint32_t n_nodes) {
    for (uint32_t i = 0; i < RS_CONTEXTS; ++i) {
        rs_ctx* ctx = &process.contexts[i];
        if (ctx->generation & 1) continue;
        const uint64_t generation = ctx->generation;
        memset(ctx, 0, sizeof *ctx);
        ctx->thread = pthread_self();
        ctx->n_ranks = n_ranks;
        ctx->n_nodes = n_nodes;
        ctx->rank = RS_RANK_UNKNOWN;
        ctx->log = log;
        ctx->max_channels = 64;
        const char* limit = getenv("RINGSTEP_MAX_CHANNELS");
        const long channels = limit ? strtol(limit, NULL, 10) : 0;
        if (channels >= 1 && channels <= 64) ctx->max_channels = (uint32_t)channels;
        ctx->born = ++process.births;
        process.live += 1;
        rs_store_release(&ctx->generation, generation + 1);
        return ctx;
    }
    return NULL;
}

/* The profiler's half of a communicator: NCCL initialises it before the tuner, on one thread. */
static rs_ctx* profilers_half(bool has_id, uint64_t comm_id, uint32_t n_ranks) {
    rs_ctx* newest = NULL; /* thread ids come again */
    for (uint32_t i = 0; i < RS_CONTEXTS; ++i) {
        rs_ctx* ctx = &process.contexts[i];
        if (!(ctx->generation & 1) || ctx->n_ranks != n_ranks) continue;
        if (ctx->has_tuner || !ctx->has_profiler) continue;
        if (has_id && ctx->comm_id != comm_id) continue;
        if (!pthread_equal(ctx->thread, pthread_self())) continue;
        if (newest == NULL || ctx->born > newest->born) newest = ctx;
    }
    return newest;
}

void* rs_ctx_open_tuner(bool has_id, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                        rs_nccl_log log) {
    become_owner();
    if (!rs_process_owns_state()) return NULL;
    pthread_mutex_lock(&process.lock);
    rs_ctx* ctx = profilers_half(has_id, comm_id, (uint32_t)n_ranks);
    const bool first_half = ctx == NULL;
    if (first_half) {
        ctx = new_context(log, (uint32_t)n_ranks, (uint32_t)n_nodes);
        if (ctx) {
            ctx->has_id = has_id;
            ctx->comm_id = comm_id;
        }
    }
    void* handle = NULL;
    if (ctx) {
        ctx->has_tuner = true;
        if (ctx->log == NULL) ctx->log = log;
        attach(ctx, first_half, true);
        if (ctx->rank == RS_RANK_UNKNOWN && !ctx->trusted_static) rs_why(ctx, RS_WHY_NO_RANK);
        handle = to_handle(ctx);
    }
    pthread_mutex_unlock(&process.lock);
    return handle;
}

void* rs_ctx_open_profiler(uint64_t comm_id, int n_nodes, int n_ranks, int rank, rs_nccl_log log,
                           uint32_t abi) {
    become_owner();
    if (!rs_process_owns_state() || n_ranks < 1 || rank < 0 || rank >= n_ranks) return NULL;
    pthread_mutex_lock(&process.lock);
    rs_ctx* ctx = new_context(log, (uint32_t)n_ranks, (uint32_t)n_nodes);
    void* handle = NULL;
    if (ctx) {
        ctx->has_profiler = true;
        ctx->has_id = true;
        ctx->comm_id = comm_id;
        ctx->rank = (uint32_t)rank;
        /* Only v5 tells which launches are replays of graphs; in v4 the user has to. */
        const bool replays_known = abi >= 5 || switched_on("RINGSTEP_NO_GRAPHS");
        ctx->clock = replays_known && !switched_on("CUDA_LAUNCH_BLOCKING") ? RS_CLOCK_TRUSTED
                                                                           : RS_CLOCK_NONE;
        attach(ctx, true, false);
        if (ctx->clock == RS_CLOCK_NONE) rs_why(ctx, RS_WHY_NO_CLOCK);
        handle = to_handle(ctx);
    }
    pthread_mutex_unlock(&process.lock);
    return handle;
}

void rs_ctx_close(void* handle, bool tuner) {
    if (rs_ctx_get(handle) == NULL) return;
    pthread_mutex_lock(&process.lock);
    rs_ctx* ctx = rs_ctx_get(handle);
    if (ctx != NULL) {
        *(tuner ? &ctx->has_tuner : &ctx->has_profiler) = false;
        if (!ctx->has_tuner && !ctx->has_profiler) {
            int fd = -1;
            if (ctx->comm && rs_shm_lock(process.path, process.file, &fd)) {
                rs_shm_detach(ctx);
                rs_shm_unlock(fd);
            } else if (ctx->comm) {
                /* The slot stays taken; the block is reclaimed once the process is gone. */
                rs_store_release(&ctx->comm->state, RS_COMM_CLOSING);
            }
            ctx->comm = NULL;
            ctx->slot = NULL;
            rs_store_release(&ctx->generation, ctx->generation + 1);
            process.live -= 1;
        }
    }
    pthread_mutex_unlock(&process.lock);
}

void rs_freeze(rs_ctx* ctx, uint32_t reason) {
    rs_comm* comm = ctx->comm;
    if (comm == NULL || rs_load(&ctx->clock) != RS_CLOCK_TRUSTED) return;
    __atomic_fetch_or(&comm->gate, RS_INDEX_MASK, __ATOMIC_ACQ_REL);
    rs_store(&ctx->clock, RS_CLOCK_FROZEN);
    rs_store(&ctx->slot->clock, RS_CLOCK_FROZEN);
    rs_why(ctx, reason);
}

void rs_freeze_all(uint32_t reason) {
    pthread_mutex_lock(&process.lock); /* none of them may go away meanwhile */
    for (uint32_t i = 0; i < RS_CONTEXTS; ++i) {
        if (process.contexts[i].generation & 1) rs_freeze(&process.contexts[i], reason);
    }
    pthread_mutex_unlock(&process.lock);
}

void rs_why(rs_ctx* ctx, uint32_t reason) {
    const uint64_t bit = 1ull << reason;
    if (rs_load(&ctx->reasons) & bit) return;
    if (__atomic_fetch_or(&ctx->reasons, bit, __ATOMIC_RELAXED) & bit) return;
    if (ctx->slot) __atomic_fetch_or(&ctx->slot->reasons, bit, __ATOMIC_RELAXED);
    if (ctx->log) {
        ctx->log(RS_LOG_INFO, RS_LOG_SUBSYS_TUNING, "ringstep", (int)reason,
                 "ringstep: communicator %016llx rank %d: %s", (unsigned long long)ctx->comm_id,
                 (int)ctx->rank, rs_reason_text(reason));
    }
}
