/* The profiler part: what NCCL really ran, how long it took, where its sends stalled.
 *
 * A handle is a number: process tag, type, flags, channel, and the collective's number in a fixed
 * pool. Only collectives have state; their parts (proxy operations and steps, kernel channels)
 * are the collective's number with another type. A handle that is late, foreign or made up does
 * not fit the pool and is counted, not followed. */
#include "events.h"

#include <stdlib.h>
#include <string.h>

enum { POOL = 2048, CHANNELS = 64, PLACES_TRIED = 8 };

enum { TYPE_COLL = 1, TYPE_OP = 2, TYPE_STEP = 3, TYPE_KERNEL = 4, TYPE_API = 5 };

enum { EV_CAPTURED = 1, EV_STOPPED = 2, EV_DECIDED = 4 };

/* Who may touch a place: whoever takes it from FREE or LIVE has it alone until FREE or LIVE. */
enum { PLACE_FREE = 0, PLACE_TAKEN = 1, PLACE_LIVE = 2 };

typedef struct {
    uint64_t number; /* of the collective in this place; 0 = none */
    uint32_t place;
    uint64_t start_ns;
    uint64_t last_ns;
    uint64_t gpu_first;
    uint64_t gpu_last;
    uint64_t kernel_started; /* bit per channel */
    uint64_t kernel_stopped;
    uint64_t bytes;
    uint64_t coll_seq;
    uint64_t index;
    uint32_t open_ops;
    uint32_t flags;
    uint32_t rank;
    uint32_t epoch;
    uint16_t comm;
    uint8_t func, algo, proto, n_channels;
    uint32_t attempts[CHANNELS];
    uint32_t sends[CHANNELS];
} event;

static event pool[POOL];
static bool light;           /* RINGSTEP_PROFILE=light: only that a collective was launched */
static uint64_t next_number; /* the last collective's; the first one gets 1 */

static void count(uint64_t* counter) {
    if (counter) rs_add(counter, 1);
}

static void odd(void) {
    rs_proc* ring = rs_process_ring();
    count(ring ? &ring->events_odd : NULL);
}

/* tag 16 | type 4 | captured 1 | send 1 | channel 6 | number 36 */
static void* to_handle(uint32_t type, bool captured, bool send, uint32_t channel, uint64_t number) {
    return (void*)(uintptr_t)((uint64_t)rs_process_tag() << 48 | (uint64_t)type << 44 |
                              (uint64_t)captured << 43 | (uint64_t)send << 42 |
                              (uint64_t)channel << 36 | (number & 0xFFFFFFFFFull));
}

typedef struct {
    uint32_t type;
    bool captured, send;
    uint32_t channel;
    uint64_t number;
    event* event; /* NULL: not one of ours, or gone */
} part;

static part from_handle(void* handle) {
    const uint64_t value = (uint64_t)(uintptr_t)handle;
    part out = {0};
    if (value == 0 || !rs_process_owns_state() || value >> 48 != rs_process_tag()) return out;
    out.type = (uint32_t)(value >> 44 & 0xF);
    out.captured = value >> 43 & 1;
    out.send = value >> 42 & 1;
    out.channel = (uint32_t)(value >> 36 & 0x3F);
    out.number = value & 0xFFFFFFFFFull;
    event* at = &pool[out.number % POOL];
    if (out.number != 0 && rs_load_acquire(&at->number) == out.number) out.event = at;
    return out;
}

static bool take(event* e, uint32_t from) {
    return __atomic_compare_exchange_n(&e->place, &from, PLACE_TAKEN, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static void write_stalls(rs_proc* ring, event* e, const uint32_t* stalls, uint32_t channels) {
    for (uint32_t first = 0; first < channels; first += RS_STALL_CHANNELS) {
        rs_record record = {.kind = RS_RECORD_STALLS,
                            .func = e->func,
                            .algo = e->algo,
                            .proto = e->proto,
                            .n_channels = e->n_channels,
                            .comm = e->comm,
                            .rank = e->rank,
                            .epoch = e->epoch,
                            .coll_seq = e->coll_seq};
        record.stall.first_channel = (uint8_t)first;
        bool any = false;
        for (uint32_t i = 0; i < RS_STALL_CHANNELS && first + i < channels; ++i) {
            const uint32_t n = stalls[first + i];
            record.stall.stalls[i] = n > 0xFFFF ? 0xFFFF : (uint16_t)n;
            any |= n != 0;
        }
        if (any) rs_ring_write(ring, &record);
    }
}

/* Writes the record of a taken place. */
static void write_record(event* e, bool partial) {
    rs_proc* ring = rs_process_ring();
    if (ring == NULL) return;
    const uint32_t flags = rs_load(&e->flags);
    const uint64_t gpu_first = rs_load(&e->gpu_first), gpu_last = rs_load(&e->gpu_last);
    const bool by_gpu = gpu_last > gpu_first && gpu_first != 0;
    const uint64_t last_ns = rs_load(&e->last_ns);
    uint32_t stalls[CHANNELS];
    uint32_t total = 0;
    for (uint32_t c = 0; c < CHANNELS; ++c) {
        const uint32_t attempts = rs_load(&e->attempts[c]), sends = rs_load(&e->sends[c]);
        stalls[c] = attempts > sends ? attempts - sends : 0;
        total += stalls[c];
    }
    rs_record record = {
        .kind = RS_RECORD_COLLECTIVE,
        .func = e->func,
        .algo = e->algo,
        .proto = e->proto,
        .n_channels = e->n_channels,
        .flags =
            (uint8_t)((by_gpu ? RS_REC_GPU_TIMER : RS_REC_HOST_TIMER) |
                      (partial ? RS_REC_PARTIAL : 0) | (flags & EV_CAPTURED ? RS_REC_CAPTURED : 0) |
                      (flags & EV_DECIDED ? RS_REC_DECIDED : 0)),
        .comm = e->comm,
        .rank = e->rank,
        .epoch = e->epoch,
        .coll_seq = e->coll_seq,
        .coll = {.bytes = e->bytes,
                 .start_ns = e->start_ns,
                 .duration_ns = by_gpu                  ? gpu_last - gpu_first
                                : last_ns > e->start_ns ? last_ns - e->start_ns
                                                        : 0,
                 .stalls = total,
                 .index = (uint32_t)e->index},
    };
    rs_ring_write(ring, &record);
    if (total != 0) write_stalls(ring, e, stalls, CHANNELS);
}

static void close_event(event* e, bool partial) {
    if (!take(e, PLACE_LIVE)) return;
    rs_store_release(&e->number, 0); /* whatever comes now is late */
    write_record(e, partial);
    rs_store_release(&e->place, PLACE_FREE);
}

/* A place for a new collective, taken. NULL where the ones next in turn are all being closed. */
static event* take_place(uint64_t* number) {
    for (int i = 0; i < PLACES_TRIED; ++i) {
        *number = (rs_add(&next_number, 1) + 1) & 0xFFFFFFFFFull;
        event* e = &pool[*number % POOL];
        if (*number == 0) continue;
        if (take(e, PLACE_FREE)) return e;
        if (!take(e, PLACE_LIVE)) continue;
        rs_store_release(&e->number, 0);
        write_record(e, true);
        rs_proc* ring = rs_process_ring();
        count(ring ? &ring->events_lost : NULL);
        return e;
    }
    return NULL;
}

/* A collective is over when NCCL stopped it, every channel's kernel ended, and no proxy
 * operation is under way. What never gets there is closed when its place is needed. */
static void close_if_over(event* e) {
    if (!(rs_load_acquire(&e->flags) & EV_STOPPED) || rs_load(&e->open_ops) != 0) return;
    const uint64_t stopped = rs_load(&e->kernel_stopped), started = rs_load(&e->kernel_started);
    if (stopped != started) return;
    const int channels = __builtin_popcountll(stopped);
    if (rs_load(&light) || (channels >= rs_load(&e->n_channels) && channels > 0))
        close_event(e, false);
}

int rs_events_mask(void) {
    const int clock = RS_EV_COLL | RS_EV_COLL_API | RS_EV_P2P_API;
    const char* wanted = getenv("RINGSTEP_PROFILE");
    const bool less = wanted != NULL && strcmp(wanted, "light") == 0;
    rs_store(&light, less);
    return less ? clock : clock | RS_EV_PROXY_OP | RS_EV_PROXY_STEP | RS_EV_KERNEL_CH;
}

static uint8_t word_index(const char* word, const char* const* words, uint8_t n) {
    for (uint8_t i = 0; word != NULL && i < n; ++i) {
        if (strcmp(word, words[i]) == 0) return i;
    }
    return 255;
}

static uint64_t type_size(const char* type) {
    if (type == NULL) return 1;
    if (strstr(type, "64")) return 8;
    if (strstr(type, "32")) return 4;
    if (strstr(type, "16")) return 2;
    return 1; /* int8, uint8, the 8-bit floats */
}

static void start_coll(rs_ctx* ctx, void** handle, const rs_start* start) {
    static const char* const FUNCS[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                        "AllReduce"};
    static const char* const ALGOS[] = {
        "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
    static const char* const PROTOS[] = {"LL", "LL128", "SIMPLE"};
    const rs_prof_coll_v4* coll = start->coll;
    const part api = from_handle(start->parent);
    const bool captured = api.type == TYPE_API && api.captured;
    /* Replays are launched by CUDA's own thread at its own time: no clock for anybody. */
    const uint64_t index = captured ? rs_load(&ctx->launched) : rs_add(&ctx->launched, 1);
    if (ctx->slot && !captured) rs_store(&ctx->slot->index, index + 1);

    const uint8_t func = word_index(coll->func, FUNCS, 5);
    if (!captured && func < RS_COLLECTIVES) { /* a gap: an event never came, our count is short */
        const uint64_t expected = ctx->next_seq[func];
        if (expected != 0 && coll->seq_number != expected) rs_freeze(ctx, RS_WHY_NO_CLOCK);
        ctx->next_seq[func] = coll->seq_number + 1;
    }

    uint64_t number;
    event* e = take_place(&number);
    if (e == NULL) {
        rs_proc* ring = rs_process_ring();
        count(ring ? &ring->events_lost : NULL);
        return;
    }
    const uint64_t ranks =
        func == RS_COLL_ALL_GATHER || func == RS_COLL_REDUCE_SCATTER ? ctx->n_ranks : 1;
    e->start_ns = rs_now_ns();
    rs_store(&e->last_ns, e->start_ns);
    rs_store(&e->gpu_first, 0);
    rs_store(&e->gpu_last, 0);
    rs_store(&e->kernel_started, 0);
    rs_store(&e->kernel_stopped, 0);
    rs_store(&e->open_ops, 0);
    for (uint32_t c = 0; c < CHANNELS; ++c) {
        rs_store(&e->attempts[c], 0);
        rs_store(&e->sends[c], 0);
    }
    e->bytes = coll->count * type_size(coll->datatype) * ranks;
    e->coll_seq = coll->seq_number;
    e->index = index;
    e->rank = ctx->rank;
    e->epoch = ctx->tables[ctx->active].epoch;
    e->comm = ctx->comm ? (uint16_t)ctx->comm_index : RS_NO_COMM;
    e->func = func;
    e->algo = word_index(coll->algo, ALGOS, 7);
    e->proto = word_index(coll->proto, PROTOS, 3);
    rs_store(&e->n_channels, coll->n_channels);
    const bool decided = func < RS_COLLECTIVES && (ctx->decided >> func & 1);
    rs_store_release(&e->flags, (captured ? EV_CAPTURED : 0u) | (decided ? EV_DECIDED : 0u));
    rs_store_release(&e->number, number);
    rs_store_release(&e->place, PLACE_LIVE);
    *handle = to_handle(TYPE_COLL, captured, false, 0, number);
}

static void start_part(void** handle, const rs_start* start) {
    const part parent = from_handle(start->parent);
    event* e = parent.event;
    if (start->type == RS_EV_PROXY_STEP) {
        if (parent.type != TYPE_OP || e == NULL) return;
        *handle = to_handle(TYPE_STEP, false, parent.send, parent.channel, parent.number);
        return;
    }
    if (parent.type != TYPE_COLL) return; /* point-to-point and foreign work are not followed */
    if (e == NULL || start->channel >= CHANNELS) {
        odd();
        return;
    }
    const bool kernel = start->type == RS_EV_KERNEL_CH;
    if (kernel) {
        const uint64_t bit = 1ull << start->channel;
        if (__atomic_fetch_or(&e->kernel_started, bit, __ATOMIC_ACQ_REL) & bit) odd();
        const uint64_t at = start->p_timer;
        uint64_t first = rs_load(&e->gpu_first);
        while (at != 0 && (first == 0 || at < first) &&
               !__atomic_compare_exchange_n(&e->gpu_first, &first, at, true, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED)) {
        }
    } else {
        __atomic_fetch_add(&e->open_ops, 1, __ATOMIC_ACQ_REL);
    }
    *handle = to_handle(kernel ? TYPE_KERNEL : TYPE_OP, false, start->send, start->channel,
                        parent.number);
}

void rs_event_start(void* context, void** handle, const rs_start* start) {
    *handle = NULL;
    if (start->type == RS_EV_PROXY_OP && start->foreign) return; /* PXN: another process's work */
    switch (start->type) {
        case RS_EV_COLL_API:
        case RS_EV_P2P_API:
            if (!rs_process_owns_state()) return;
            if (start->captured) rs_freeze_all(RS_WHY_CAPTURED);
            *handle = to_handle(TYPE_API, start->captured, false, 0, 1);
            return;
        case RS_EV_COLL: {
            rs_ctx* ctx = rs_ctx_get(context);
            if (ctx != NULL && ctx->has_profiler) start_coll(ctx, handle, start);
            return;
        }
        case RS_EV_PROXY_OP:
        case RS_EV_PROXY_STEP:
        case RS_EV_KERNEL_CH:
            start_part(handle, start);
            return;
        default:
            return;
    }
}

void rs_event_stop(void* handle) {
    const part p = from_handle(handle);
    if (p.type == 0 || p.type == TYPE_API || p.type == TYPE_STEP) return;
    event* e = p.event;
    if (e == NULL) {
        if (p.type != TYPE_KERNEL) odd(); /* a kernel's state is recorded, then it is stopped */
        return;
    }
    if (p.type == TYPE_COLL) {
        if (__atomic_fetch_or(&e->flags, EV_STOPPED, __ATOMIC_ACQ_REL) & EV_STOPPED) odd();
        close_if_over(e);
        return;
    }
    if (p.type == TYPE_OP) {
        uint32_t open = rs_load(&e->open_ops);
        do {
            if (open == 0) {
                odd();
                return;
            }
        } while (!__atomic_compare_exchange_n(&e->open_ops, &open, open - 1, true, __ATOMIC_ACQ_REL,
                                              __ATOMIC_RELAXED));
        rs_store(&e->last_ns, rs_now_ns());
        close_if_over(e);
    }
}

void rs_event_record(void* handle, int state, const rs_prof_state_args* args) {
    const part p = from_handle(handle);
    event* e = p.event;
    if (p.type == 0) return;
    if (p.type == TYPE_STEP) {
        if (e == NULL) {
            odd();
        } else if (p.send && state == RS_STATE_SEND_PEER_WAIT) {
            rs_add(&e->attempts[p.channel], 1);
        } else if (p.send && state == RS_STATE_SEND_WAIT) {
            rs_add(&e->sends[p.channel], 1);
        }
        return;
    }
    if (p.type != TYPE_KERNEL || state != RS_STATE_KERNEL_CH_STOP) return;
    if (e == NULL) {
        odd();
        return;
    }
    const uint64_t bit = 1ull << p.channel;
    if (__atomic_fetch_or(&e->kernel_stopped, bit, __ATOMIC_ACQ_REL) & bit) {
        odd();
        return;
    }
    const uint64_t at = args ? args->kernel_ch_p_timer : 0;
    uint64_t last = rs_load(&e->gpu_last);
    while (at > last && !__atomic_compare_exchange_n(&e->gpu_last, &last, at, true,
                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    rs_store(&e->last_ns, rs_now_ns());
    close_if_over(e);
}

void rs_events_flush(uint32_t comm_index, uint32_t rank) {
    for (uint32_t i = 0; i < POOL; ++i) {
        event* e = &pool[i];
        if (!take(e, PLACE_LIVE)) continue;
        const bool mine = e->comm == comm_index && e->rank == rank;
        if (mine) {
            rs_store_release(&e->number, 0);
            write_record(e, true);
        }
        rs_store_release(&e->place, mine ? PLACE_FREE : PLACE_LIVE);
    }
}
