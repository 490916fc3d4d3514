/* What every plugin ABI of NCCL shares: result codes, enumerations, the log function.
 *
 * Written from the published interface; numbers are the interface, names are ours. */
#ifndef RINGSTEP_NCCL_ABI_H
#define RINGSTEP_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define RS_STATIC_ASSERT static_assert
extern "C" {
#else
#define RS_STATIC_ASSERT _Static_assert
#endif

/* ncclResult_t. A tuner that answers anything else kills the communicator or the collective. */
enum { RS_NCCL_SUCCESS = 0 };

/* ncclFunc_t, as far as a tuner can decide about it; larger values exist. */
enum {
    RS_COLL_BROADCAST = 0,
    RS_COLL_REDUCE = 1,
    RS_COLL_ALL_GATHER = 2,
    RS_COLL_REDUCE_SCATTER = 3,
    RS_COLL_ALL_REDUCE = 4,
};

enum {
    RS_ALGO_TREE = 0,
    RS_ALGO_RING = 1,
    RS_ALGO_COLLNET_DIRECT = 2,
    RS_ALGO_COLLNET_CHAIN = 3,
    RS_ALGO_NVLS = 4,
    RS_ALGO_NVLS_TREE = 5,
    RS_ALGO_PAT = 6,
};

enum { RS_PROTO_LL = 0, RS_PROTO_LL128 = 1, RS_PROTO_SIMPLE = 2 };

/* An entry of the cost table that NCCL will not use. */
#define RS_COST_IGNORE (-1.0f)

enum {
    RS_LOG_NONE = 0,
    RS_LOG_VERSION = 1,
    RS_LOG_WARN = 2,
    RS_LOG_INFO = 3,
    RS_LOG_ABORT = 4,
    RS_LOG_TRACE = 5,
};
#define RS_LOG_SUBSYS_TUNING 0x40ul

/* ncclDebugLogger_t; the first argument is an enumeration of int's size. */
typedef void (*rs_nccl_log)(int level, unsigned long subsystems, const char* file, int line,
                            const char* format, ...);

#ifdef __cplusplus
}
#endif
#endif
