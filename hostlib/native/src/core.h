/* What the parts of the plugin share. Nothing here is exported.
 *
 * Layers: export_*.c (one struct per ABI) -> decision.c, events.c (what NCCL asked or reported)
 * -> agreement.c (which table is in force) -> context.c, shm.c, telemetry.c (state) -> bank.c. */
#ifndef RINGSTEP_CORE_H
#define RINGSTEP_CORE_H

#include <pthread.h>
#include <stdbool.h>

#include "nccl_abi.h"
#include "ringstep_shm.h"

#define RS_CONTEXTS 128u
#define RS_NO_COMM 0xFFFFu

#define rs_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define rs_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define rs_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define rs_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define rs_add(p, v) __atomic_fetch_add((p), (v), __ATOMIC_RELAXED)

/* One communicator of this process: the tuner's and the profiler's half of it. */
typedef struct {
    uint64_t generation; /* odd while in use; part of the handle */
    bool has_tuner;
    bool has_profiler;
    bool has_id;
    bool trusted_static; /* the launcher vouches for the static table (RINGSTEP_STATIC_DIGEST) */
    bool has_static;     /* tables[] began with a checked static table */
    uint64_t born;       /* order of contexts in this process */
    pthread_t thread;    /* that initialised the first half */
    uint64_t comm_id;
    uint32_t n_ranks;
    uint32_t n_nodes;
    uint32_t rank; /* RS_RANK_UNKNOWN without a profiler */
    uint32_t max_channels;
    rs_nccl_log log;

    rs_comm* comm;      /* NULL: not attached, bypass */
    rs_rank_slot* slot; /* with comm */
    uint32_t comm_index;

    uint64_t launched; /* the clock: collectives launched, replays of graphs left out */
    uint32_t clock;
    uint64_t next_seq[RS_COLLECTIVES]; /* NCCL's own count per function + 1, to check ours */
    uint64_t reasons;

    uint32_t active;        /* tables[active] is in force */
    uint32_t acked_epoch;   /* tables[1 - active] holds it, checked; 0 = nothing there */
    uint64_t tried_version; /* of the offer that was refused, and what was known then */
    uint64_t tried_known;
    uint32_t usable[RS_COLLECTIVES];
    uint32_t seen;
    uint64_t applied;
    uint64_t bypassed;
    uint32_t decided; /* bit per collective: the last call applied a decision */
    rs_bank tables[2];
} rs_ctx;

/* --- bank.c --- */
uint64_t rs_bank_digest(const rs_bank* bank);
/* Copies a table that others may be writing; false where no stable copy was seen. */
bool rs_bank_copy(rs_bank* to, const rs_bank* from);
uint32_t rs_size_class(size_t n_bytes);
/* 0 where the entry may be applied to the collective, else 1 + the reason. */
uint32_t rs_entry_problem(const rs_entry* entry, uint32_t coll);

/* --- shm.c --- */
/* Maps the job's file. NULL with *why set where there is none that can be used. */
rs_file* rs_shm_open(const char* path, uint64_t token, uint32_t* why);
/* False where others held it too long, or where the path has another file by now. */
bool rs_shm_lock(const char* path, const rs_file* file, int* fd);
void rs_shm_unlock(int fd);
uint64_t rs_pid_start(uint32_t pid);
bool rs_pid_gone(uint32_t pid, uint64_t start);
/* Both need the file's lock. attach returns false with *why set. */
bool rs_shm_attach(rs_file* file, rs_ctx* ctx, uint32_t* why);
void rs_shm_detach(rs_ctx* ctx);
rs_proc* rs_shm_claim_proc(rs_file* file);

/* --- context.c --- */
void* rs_ctx_open_tuner(bool has_id, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                        rs_nccl_log log);
void* rs_ctx_open_profiler(uint64_t comm_id, int n_nodes, int n_ranks, int rank, rs_nccl_log log,
                           uint32_t abi);
void rs_ctx_close(void* handle, bool tuner);
/* NULL for NULL, foreign, closed handles, and in a process that was forked off. */
rs_ctx* rs_ctx_get(void* handle);
/* False in a child of fork, which must not write its parent's slots. No system call. */
bool rs_process_owns_state(void);
rs_proc* rs_process_ring(void);
uint32_t rs_process_pid(void);
/* A number that differs between processes, so that handles of another one are recognised. */
uint16_t rs_process_tag(void);
/* Freezes the gate of a communicator whose clock is no longer exact; of all of the process. */
void rs_freeze(rs_ctx* ctx, uint32_t reason);
void rs_freeze_all(uint32_t reason);
void rs_why(rs_ctx* ctx, uint32_t reason);

/* --- reasons.c --- */
const char* rs_reason_text(uint32_t reason);

/* --- agreement.c --- */
/* The table in force for the collective about to be decided; NULL leaves NCCL alone. */
const rs_bank* rs_agree(rs_ctx* ctx);

/* --- decision.c --- */
int rs_decide(void* handle, int coll, size_t n_bytes, float* costs, int num_algo, int num_proto,
              int* n_channels);
int rs_decide_chunk(void* handle, int coll, size_t n_bytes, int algo, int proto,
                    size_t* chunk_size);

/* --- telemetry.c --- */
void rs_ring_write(rs_proc* proc, const rs_record* record);
uint64_t rs_now_ns(void);

#endif
