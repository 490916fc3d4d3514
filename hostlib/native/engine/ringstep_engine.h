/* The CPU collective engine's C interface: libringstep-engine.so.
 *
 * Shaped like NCCL's: communicators, collectives on them, groups. Collectives block: outside a
 * group until theirs is done, inside a group until re_group_end. One communicator is used by one
 * thread at a time; re_comm_abort may come from any. Every rank of a communicator makes the same
 * calls in the same order. Nothing here throws, exits, or writes to stdout.
 *
 * Buffers may be in place as in NCCL (all-gather: send == recv + rank * count; reduce-scatter:
 * recv == send + rank * count; else send == recv), and must not overlap otherwise. */
#ifndef RINGSTEP_ENGINE_H
#define RINGSTEP_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RE_API __attribute__((visibility("default")))

typedef enum {
    RE_OK = 0,
    RE_BAD_ARGUMENT = 1, /* nothing was sent; the communicator is as before */
    RE_PEER_LOST = 2,    /* a connection ended; the communicator is broken */
    RE_TIMEOUT = 3,      /* no progress for timeout_s; the communicator is broken */
    RE_ABORTED = 4,      /* by re_comm_abort */
    RE_SYSTEM = 5,       /* a system call or an allocation failed; the communicator is broken */
    RE_MISMATCH = 6,     /* ranks called, or chose, different things; the communicator is broken */
    RE_TUNER = 7         /* the tuner plugin failed; nothing was sent; the communicator is as before */
} re_result;

/* Numbers of NCCL's tuner interface. */
typedef enum { RE_BROADCAST = 0, RE_ALL_GATHER = 2, RE_REDUCE_SCATTER = 3, RE_ALL_REDUCE = 4 } re_coll;
typedef enum { RE_TREE = 0, RE_RING = 1 } re_algo;
typedef enum { RE_LL = 0, RE_SIMPLE = 2 } re_proto;

/* Numbers of ncclDataType_t and ncclRedOp_t. */
typedef enum {
    RE_INT8 = 0, RE_UINT8 = 1, RE_INT32 = 2, RE_UINT32 = 3, RE_INT64 = 4, RE_UINT64 = 5,
    RE_FLOAT16 = 6, RE_FLOAT32 = 7, RE_FLOAT64 = 8, RE_BFLOAT16 = 9
} re_type;
typedef enum { RE_SUM = 0, RE_PROD = 1, RE_MAX = 2, RE_MIN = 3, RE_AVG = 4 } re_op;

typedef struct re_comm re_comm;

/* Where rank 0 listens for the others; made by rank 0, handed to all ranks by the application. */
typedef struct {
    char bytes[128];
} re_unique_id;

typedef struct {
    size_t size;          /* sizeof(re_config): a longer one of a newer header is accepted */
    const char* address;  /* own address that peers connect to; NULL: that of the route to rank 0 */
    const char* bridge;   /* NULL: TCP. Else the path of the software RNIC's socket (rnic_bridge.h) */
    const char* node;     /* name of the node this rank is on; NULL: host name and network namespace */
    double timeout_s;     /* give up after this long without any progress; 0: 300 */
    int max_channels;     /* 1 to 8; 0: 8. NCCL_MAX_NCHANNELS may lower it */
    int no_plugins;       /* 1: load neither tuner nor profiler, whatever the environment says */
} re_config;

/* What the last collective of a communicator ran as. */
typedef struct {
    re_coll coll;
    re_algo algo;
    re_proto proto;
    int n_channels;
    size_t chunk_bytes;
    size_t bytes;     /* the larger side */
    uint64_t nanoseconds; /* from start of the first channel to the end of the last */
    int decided;      /* 1: as the tuner plugin said */
} re_run;

/* Text of the calling thread's last error: what, where, what would be right. Never NULL. */
RE_API const char* re_last_error(void);

/* Start listening for n_ranks ranks on address ("10.0.0.1" or "10.0.0.1:29500"; NULL: 127.0.0.1). Only rank 0 calls it. */
RE_API re_result re_get_unique_id(re_unique_id* id, const char* address);
/* The same without a message between the ranks: rank 0 listens on "host:port", all know it. */
RE_API re_result re_unique_id_of(re_unique_id* id, const char* host_port);

RE_API re_result re_comm_init(re_comm** comm, const re_unique_id* id, int n_ranks, int rank,
                              const re_config* config);
RE_API void re_comm_abort(re_comm* comm);
RE_API void re_comm_destroy(re_comm* comm);

RE_API int re_comm_rank(const re_comm* comm);
RE_API int re_comm_n_ranks(const re_comm* comm);
RE_API int re_comm_n_nodes(const re_comm* comm);
RE_API uint64_t re_comm_id(const re_comm* comm);
/* Plugins in use: "tuner ringstep v6, profiler ringstep v6", "no tuner, no profiler". */
RE_API const char* re_comm_plugins(const re_comm* comm);
RE_API re_result re_comm_last_run(const re_comm* comm, re_run* run);

/* count: elements of the smaller side, as in NCCL (all-gather: sent by each; reduce-scatter: received by each). */
RE_API re_result re_all_reduce(const void* send, void* recv, size_t count, re_type type, re_op op,
                               re_comm* comm);
RE_API re_result re_all_gather(const void* send, void* recv, size_t count, re_type type,
                               re_comm* comm);
RE_API re_result re_reduce_scatter(const void* send, void* recv, size_t count, re_type type,
                                   re_op op, re_comm* comm);
RE_API re_result re_broadcast(const void* send, void* recv, size_t count, re_type type, int root,
                              re_comm* comm);

/* Groups nest; the outermost end decides for bins of like calls as NCCL does, and runs them. */
RE_API re_result re_group_start(void);
RE_API re_result re_group_end(void);
/* Decide as re_group_end would, run nothing (ncclGroupSimulateEnd). */
RE_API re_result re_group_simulate_end(void);

/* A fence of the agreement (docs/agreement.md): every rank calls it between the same collectives.
 * Does nothing where there is no tuner plugin or its file. */
RE_API re_result re_comm_fence(re_comm* comm);

#ifdef __cplusplus
}
#endif
#endif
