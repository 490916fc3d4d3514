/* getCollInfo and getChunkSize for every ABI: one table lookup, one small cost. */
#include <math.h>

#include "core.h"

/* Below any real time in microseconds, above zero: older and newer selection code take the
 * smallest positive cost, some of it takes 0 and negative numbers for something else. */
static const float CHOSEN_COST = 1e-6f;

enum { TABLE_MAX = 64 };

/* Chunks outside of this make no sense for any buffer; NCCL clamps to its buffers once more. */
enum { CHUNK_MIN = 16 << 10, CHUNK_MAX = 64 << 20, CHUNK_GRAIN = 4 << 10 };

static bool usable(float cost) {
    return cost >= 0.0f && cost < INFINITY;
}

static void bypass(rs_ctx* ctx) {
    const uint64_t count = rs_add(&ctx->bypassed, 1) + 1;
    if (ctx->slot) rs_store(&ctx->slot->bypassed, count);
}

/* What NCCL offered in every call so far, for the intersection over ranks. */
static void note_usable(rs_ctx* ctx, uint32_t coll, const float* costs, int num_algo,
                        int num_proto) {
    uint32_t bits = 0;
    for (int a = 0; a < num_algo && a < 8; ++a) {
        for (int p = 0; p < num_proto && p < 4; ++p) {
            bits |= (uint32_t)usable(costs[a * num_proto + p]) << (a * 4 + p);
        }
    }
    const uint32_t seen = ctx->seen;
    const uint32_t before = ctx->usable[coll];
    const uint32_t now = (seen >> coll & 1) ? before & bits : bits;
    if (now == before && (seen >> coll & 1)) return;
    ctx->usable[coll] = now;
    ctx->seen = seen | 1u << coll;
    if (ctx->slot) {
        rs_store(&ctx->slot->usable[coll], now);
        rs_store_release(&ctx->slot->seen, ctx->seen);
    }
}

static bool apply(rs_ctx* ctx, uint32_t coll, const rs_entry* entry, float* costs, int num_algo,
                  int num_proto, int* n_channels) {
    const uint32_t problem = rs_entry_problem(entry, coll);
    if (problem != 0) {
        rs_why(ctx, problem - 1);
        return false;
    }
    if (entry->algo >= num_algo || entry->proto >= num_proto) {
        rs_why(ctx, RS_WHY_OUT_OF_TABLE);
        return false;
    }
    float* cost = &costs[entry->algo * num_proto + entry->proto];
    if (!usable(*cost)) {
        rs_why(ctx, RS_WHY_ENTRY_IGNORED);
        return false;
    }
    *cost = CHOSEN_COST;
    if (entry->n_channels != 0 && n_channels != NULL) {
        uint32_t channels = entry->n_channels;
        if (channels > ctx->max_channels) {
            channels = ctx->max_channels;
            rs_why(ctx, RS_WHY_CHANNELS_CLAMPED);
        }
        *n_channels = (int)channels;
    }
    if (entry->n_threads != 0) rs_why(ctx, RS_WHY_THREADS_NOT_SET);
    return true;
}

int rs_decide(void* handle, int coll, size_t n_bytes, float* costs, int num_algo, int num_proto,
              int* n_channels) {
    rs_ctx* ctx = rs_ctx_get(handle);
    if (ctx == NULL || !ctx->has_tuner) return RS_NCCL_SUCCESS;
    if (coll < 0 || coll >= (int)RS_COLLECTIVES) {
        rs_why(ctx, RS_WHY_UNKNOWN_COLLECTIVE);
        bypass(ctx);
        return RS_NCCL_SUCCESS;
    }
    const bool table_given = costs != NULL && num_algo > 0 && num_proto > 0 &&
                             num_algo <= TABLE_MAX && num_proto <= TABLE_MAX;
    if (table_given) note_usable(ctx, (uint32_t)coll, costs, num_algo, num_proto);
    const rs_bank* table = rs_agree(ctx);
    bool applied = false;
    if (!table_given) {
        rs_why(ctx, RS_WHY_NULL_ARGUMENT);
    } else if (table != NULL) {
        const rs_entry* entry = &table->entries[coll][rs_size_class(n_bytes)];
        if (entry->flags != 0) {
            applied = apply(ctx, (uint32_t)coll, entry, costs, num_algo, num_proto, n_channels);
        }
    }
    const uint32_t bit = 1u << coll;
    ctx->decided = applied ? ctx->decided | bit : ctx->decided & ~bit;
    if (!applied) {
        bypass(ctx);
    } else {
        const uint64_t count = rs_add(&ctx->applied, 1) + 1;
        if (ctx->slot) rs_store(&ctx->slot->applied, count);
    }
    return RS_NCCL_SUCCESS;
}

int rs_decide_chunk(void* handle, int coll, size_t n_bytes, int algo, int proto,
                    size_t* chunk_size) {
    rs_ctx* ctx = rs_ctx_get(handle);
    if (ctx == NULL || !ctx->has_tuner || chunk_size == NULL || coll < 0 ||
        coll >= (int)RS_COLLECTIVES) {
        return RS_NCCL_SUCCESS;
    }
    const rs_bank* table = rs_agree(ctx);
    if (table == NULL) return RS_NCCL_SUCCESS;
    const rs_entry* entry = &table->entries[coll][rs_size_class(n_bytes)];
    if (entry->flags == 0 || entry->chunk_bytes == 0) return RS_NCCL_SUCCESS;
    if (entry->algo != algo || entry->proto != proto) return RS_NCCL_SUCCESS;
    const uint32_t problem = rs_entry_problem(entry, (uint32_t)coll);
    if (problem != 0) {
        rs_why(ctx, problem - 1);
        return RS_NCCL_SUCCESS;
    }
    uint32_t chunk = entry->chunk_bytes;
    chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk > CHUNK_MAX ? CHUNK_MAX : chunk;
    chunk -= chunk % CHUNK_GRAIN;
    if (chunk != entry->chunk_bytes) rs_why(ctx, RS_WHY_CHUNK_CLAMPED);
    *chunk_size = chunk;
    return RS_NCCL_SUCCESS;
}
