/* The one source of the shared-memory layout (docs/hostlib-shm.md).
 *
 * One file per job and node. The coordinator (or the launcher) creates it before the ranks start,
 * the plugin maps it, Python reads and writes the same bytes (hostlib/shm.py, whose constants a
 * test compares with this header). All integers are native-endian and naturally aligned; a reader
 * of the other byte order sees another magic and stays away. Words that two processes touch are
 * accessed with atomic loads and stores only. */
#ifndef RINGSTEP_SHM_H
#define RINGSTEP_SHM_H

#include "nccl_abi.h"

#define RS_SHM_MAGIC 0x4d48535453524e52ull /* "RNRSTSHM" on little-endian machines */
#define RS_SHM_LAYOUT 1u

#define RS_COLLECTIVES 5u     /* ncclFunc_t 0..4 */
#define RS_SIZE_CLASSES 64u   /* class of n bytes = floor(log2(n)); 0 and 1 byte are class 0 */
#define RS_MAX_COMMS 64u      /* communicators of a job on one node */
#define RS_MAX_RANKS 64u      /* ranks of one communicator on one node */
#define RS_MAX_PROCS 64u      /* processes of a job on one node, one telemetry ring each */
#define RS_RING_SLOTS 1024u   /* telemetry slots per process */
#define RS_STALL_CHANNELS 14u /* channels in one stall record */

#define RS_RANK_UNKNOWN 0xFFFFFFFFu
#define RS_INDEX_BITS 40u /* of the gate; the rest is the epoch */
#define RS_INDEX_MASK ((1ull << RS_INDEX_BITS) - 1)
#define RS_FENCE_HOLD (1ull << 63) /* a fence is being agreed: acknowledge nothing new */
#define RS_EPOCH_MAX ((1u << (64u - RS_INDEX_BITS)) - 1)

enum { RS_ENTRY_VALID = 1 }; /* rs_entry.flags; anything else must be 0 */

/* What to do for one (collective, size class). An entry that is not valid leaves NCCL alone. */
typedef struct {
    int8_t algo;          /* RS_ALGO_* */
    int8_t proto;         /* RS_PROTO_* */
    uint8_t n_channels;   /* 1..64; 0 keeps NCCL's choice */
    uint8_t flags;        /* RS_ENTRY_* */
    uint32_t chunk_bytes; /* 0 keeps NCCL's choice */
    uint16_t n_threads;   /* wanted threads per block, for the record: no tuner can set them */
    uint8_t state;        /* policy's state, for people: rs_entry_state */
    uint8_t reserved;
    uint32_t measured_us; /* what the policy expects, for people; 0 = unknown */
} rs_entry;

enum rs_entry_state {
    RS_STATE_NONE = 0,
    RS_STATE_WARMUP = 1,
    RS_STATE_EXPLORE = 2,
    RS_STATE_COOLDOWN = 3,
    RS_STATE_CONVERGED = 4,
    RS_STATE_FIXED = 5,
};

/* A table of decisions. `version` is a sequence lock: odd while the table is written. `digest`
 * covers epoch and entries (rs_bank_digest); a reader copies, then checks version and digest. */
typedef struct {
    uint64_t version;
    uint32_t epoch; /* 0 for the static table */
    uint32_t reserved0;
    uint64_t digest;
    uint64_t reserved1[5];
    rs_entry entries[RS_COLLECTIVES][RS_SIZE_CLASSES];
} rs_bank;

enum { RS_SLOT_FREE = 0, RS_SLOT_ATTACHED = 1, RS_SLOT_LEFT = 2 };
enum { RS_CLOCK_NONE = 0, RS_CLOCK_TRUSTED = 1, RS_CLOCK_FROZEN = 2 };

/* One rank of one communicator. The rank writes; others read. `fence` alone is written by the
 * rank's own application thread (its torch hook or engine), never by another process. */
typedef struct {
    uint32_t pid;
    uint32_t state;     /* RS_SLOT_* */
    uint64_t pid_start; /* start time of the process in clock ticks after boot */
    uint64_t ack_epoch; /* the newest epoch of which the rank holds a checked copy */
    uint64_t ack_digest;
    uint64_t index;    /* collectives of the communicator launched so far */
    uint64_t fence;    /* epoch in force from the next collective on (fenced scope), or a hold */
    uint32_t in_force; /* epoch that the rank applies */
    uint32_t clock;    /* RS_CLOCK_* */
    uint64_t reasons;  /* bit set of rs_reason: why something was not applied, ever */
    uint64_t applied;  /* calls in which a decision was applied */
    uint64_t bypassed; /* calls in which NCCL was left alone */
    uint32_t usable[RS_COLLECTIVES]; /* bit algo*4+proto: usable in every call so far */
    uint32_t seen;                   /* bit set of collectives asked for so far */
    uint64_t refused_epoch;          /* the last epoch that the rank could not acknowledge */
    uint32_t rank;                   /* in the communicator, or RS_RANK_UNKNOWN */
    uint32_t reserved0;
    uint64_t reserved1;
} rs_rank_slot;

enum { RS_COMM_FREE = 0, RS_COMM_FILLING = 1, RS_COMM_FULL = 2, RS_COMM_CLOSING = 3 };
enum { RS_SCOPE_NODE = 0, RS_SCOPE_FENCED = 1 };
enum { RS_ONCE_OPEN = 0, RS_ONCE_ON = 1, RS_ONCE_OFF = 2 };

/* One communicator (docs/agreement.md). */
typedef struct {
    uint64_t comm_id;
    uint32_t n_ranks;
    uint32_t state;      /* RS_COMM_* */
    uint32_t generation; /* counts communicators that used this block */
    uint32_t scope;      /* RS_SCOPE_* */
    uint32_t attached;   /* rank slots in use (with a profiler, which alone knows the rank) */
    uint32_t tuners;     /* contexts whose copy of the static table has `static_digest` */
    uint64_t static_digest;
    uint32_t once; /* RS_ONCE_*: is the static table in force; decided once, for all */
    uint32_t n_nodes;
    uint32_t members; /* contexts of the plugin that refer to this block */
    uint32_t reserved0[3];
    /* --- offset 64: written at collectives --- */
    uint64_t gate;        /* epoch << 40 | lowest index that no rank has decided yet; an index of
                             RS_INDEX_MASK freezes the gate: no further epoch can be committed */
    uint64_t first_index; /* from which the gate's epoch holds */
    uint64_t reserved1[6];
    /* --- offset 128: written by the coordinator --- */
    uint64_t announced; /* epoch on offer in `bank`; 0 = none */
    uint64_t reserved2[15];
    /* --- offset 256 --- */
    rs_bank bank;
    rs_rank_slot ranks[RS_MAX_RANKS];
    uint8_t reserved3[2752];
} rs_comm;

enum { RS_RECORD_COLLECTIVE = 1, RS_RECORD_STALLS = 2 };

/* Flags of a collective's record. */
enum {
    RS_REC_GPU_TIMER = 1,  /* duration from the GPU's timer, first start to last stop */
    RS_REC_HOST_TIMER = 2, /* duration from the host's clock, start to the last part's end */
    RS_REC_PARTIAL = 4,    /* parts never ended before the record was closed */
    RS_REC_CAPTURED = 8,   /* replay of a captured graph */
    RS_REC_DECIDED = 16,   /* a decision was applied to the last call for this function */
};

/* One telemetry slot. `seq` = 2n+1 while record n is written, 2n+2 when it stands. */
typedef struct {
    uint64_t seq;
    uint8_t kind; /* RS_RECORD_* */
    uint8_t func; /* ncclFunc_t; 255 = another function */
    uint8_t algo; /* what really ran; 255 = unknown */
    uint8_t proto;
    uint8_t n_channels;
    uint8_t flags;
    uint16_t comm;     /* block in this file; 65535 = none */
    uint32_t rank;     /* in the communicator */
    uint32_t epoch;    /* in force at launch */
    uint64_t coll_seq; /* NCCL's count, per communicator and function */
    union {
        struct {
            uint64_t bytes;    /* larger side, as getCollInfo sees it */
            uint64_t start_ns; /* CLOCK_MONOTONIC at launch */
            uint64_t duration_ns;
            uint32_t stalls; /* all channels */
            uint32_t index;  /* agreed index at launch, low 32 bits */
        } coll;
        struct {
            uint8_t first_channel; /* of the counts below */
            uint8_t reserved[3];
            uint16_t stalls[RS_STALL_CHANNELS]; /* saturating; channels first_channel.. */
        } stall;
    };
} rs_record;

/* One process. The ring has one producing process; its threads claim slots by an atomic add. */
typedef struct {
    uint32_t pid;
    uint32_t state; /* RS_SLOT_* */
    uint64_t pid_start;
    uint64_t head;        /* slots claimed ever; the newest record is head - 1 */
    uint64_t events_lost; /* collectives closed early because their place was needed */
    uint64_t events_odd;  /* late, duplicate or foreign handles, channels out of range */
    uint32_t generation;
    uint32_t reserved0;
    uint64_t reserved1[2];
    rs_record slots[RS_RING_SLOTS];
} rs_proc;

typedef struct {
    uint64_t magic;
    uint32_t layout;      /* RS_SHM_LAYOUT */
    uint32_t header_size; /* sizeof(rs_header) */
    uint64_t file_size;   /* sizeof(rs_file) */
    uint32_t pid;         /* of the coordinator or launcher that owns the file */
    uint32_t ready;       /* 1 once everything above and below is written */
    uint64_t pid_start;
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t job_token;  /* as RINGSTEP_SHM_TOKEN; 0 = none */
    uint64_t epoch;      /* highest epoch ever announced in this file; restarts count on */
    uint32_t comm_size, rank_size, proc_size, record_size;
    uint32_t max_comms, max_ranks, max_procs, ring_slots;
    uint32_t collectives, size_classes, entry_size, bank_size;
    uint64_t file_id; /* random, names this very file */
    uint64_t reserved[497];
} rs_header;

typedef struct {
    rs_header header;
    rs_bank static_bank;
    uint8_t reserved[8192 - sizeof(rs_bank)];
    rs_comm comms[RS_MAX_COMMS];
    rs_proc procs[RS_MAX_PROCS];
} rs_file;

/* Why a decision was not applied, or not as written. Bit numbers; order is part of the layout. */
enum rs_reason {
    RS_WHY_NO_FILE = 0,
    RS_WHY_BAD_FILE,
    RS_WHY_STALE_FILE,
    RS_WHY_NO_ROOM,
    RS_WHY_NO_RANK,
    RS_WHY_NO_CLOCK,
    RS_WHY_CAPTURED,
    RS_WHY_NULL_ARGUMENT,
    RS_WHY_UNKNOWN_COLLECTIVE,
    RS_WHY_BAD_ENTRY,
    RS_WHY_NOT_FOR_COLLECTIVE,
    RS_WHY_OUT_OF_TABLE,
    RS_WHY_ENTRY_IGNORED,
    RS_WHY_NOT_USABLE_EVERYWHERE,
    RS_WHY_BAD_DIGEST,
    RS_WHY_UNKNOWN_EPOCH,
    RS_WHY_STATIC_DIFFERS,
    RS_WHY_CHANNELS_CLAMPED,
    RS_WHY_CHUNK_CLAMPED,
    RS_WHY_THREADS_NOT_SET,
    RS_WHY_BUSY,
    RS_WHY_COUNT,
};

RS_STATIC_ASSERT(sizeof(rs_entry) == 16, "entry");
RS_STATIC_ASSERT(sizeof(rs_bank) == 5184, "bank");
RS_STATIC_ASSERT(offsetof(rs_bank, entries) == 64, "bank entries");
RS_STATIC_ASSERT(sizeof(rs_rank_slot) == 128, "rank slot");
RS_STATIC_ASSERT(offsetof(rs_comm, gate) == 64, "gate on its own line");
RS_STATIC_ASSERT(offsetof(rs_comm, announced) == 128, "coordinator's line");
RS_STATIC_ASSERT(offsetof(rs_comm, bank) == 256, "bank of a communicator");
RS_STATIC_ASSERT(offsetof(rs_comm, ranks) == 5440, "rank slots");
RS_STATIC_ASSERT(sizeof(rs_comm) == 16384, "communicator block");
RS_STATIC_ASSERT(sizeof(rs_record) == 64, "telemetry slot");
RS_STATIC_ASSERT(offsetof(rs_record, coll.bytes) == 32, "telemetry bytes");
RS_STATIC_ASSERT(offsetof(rs_proc, slots) == 64, "telemetry ring");
RS_STATIC_ASSERT(sizeof(rs_proc) == 64 + 64 * RS_RING_SLOTS, "process block");
RS_STATIC_ASSERT(sizeof(rs_header) == 4096, "header");
RS_STATIC_ASSERT(offsetof(rs_file, comms) == 4096 + 8192, "communicators");

#endif
