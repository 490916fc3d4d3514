/* Which table is in force for the next collective: the plugin's half of docs/agreement.md. */
#include <string.h>

#include "core.h"

enum { GATE_TRIES = 10000 };

/* Announces that this rank decides `index`, and returns the epoch that the communicator had
 * when the first rank did. From then on no commit can touch the index. */
static bool enter_gate(rs_comm* comm, uint64_t index, uint32_t* epoch) {
    uint64_t gate = rs_load_acquire(&comm->gate);
    for (int i = 0; i < GATE_TRIES; ++i) {
        *epoch = (uint32_t)(gate >> RS_INDEX_BITS);
        if ((gate & RS_INDEX_MASK) > index) return true;
        const uint64_t next = (gate & ~RS_INDEX_MASK) | (index + 1);
        if (__atomic_compare_exchange_n(&comm->gate, &gate, next, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            return true;
        }
    }
    return false;
}

static void promote(rs_ctx* ctx) {
    ctx->active = 1 - ctx->active;
    ctx->acked_epoch = 0;
    rs_store(&ctx->slot->in_force, ctx->tables[ctx->active].epoch);
}

/* What a refused offer depended on: try again only when that changed. */
static uint64_t what_is_known(const rs_ctx* ctx) {
    uint64_t known = ctx->seen;
    for (uint32_t c = 0; c < RS_COLLECTIVES; ++c) known = known * 0x100000001B3ull ^ ctx->usable[c];
    return known;
}

static uint32_t problem_of(const rs_ctx* ctx, const rs_bank* table) {
    for (uint32_t c = 0; c < RS_COLLECTIVES; ++c) {
        for (uint32_t k = 0; k < RS_SIZE_CLASSES; ++k) {
            const rs_entry* entry = &table->entries[c][k];
            if (entry->flags == 0) continue;
            const uint32_t problem = rs_entry_problem(entry, c);
            if (problem != 0) return problem;
            const bool usable =
                (ctx->seen >> c & 1) && (ctx->usable[c] >> (entry->algo * 4 + entry->proto) & 1);
            if (!usable) return 1 + RS_WHY_NOT_USABLE_EVERYWHERE;
        }
    }
    return 0;
}

/* The spare copy is about to be overwritten: what was said of it is taken back first, so that no
 * fence counts on it. (A commit cannot: its epoch is no longer the one on offer.) */
static void let_go(rs_ctx* ctx) {
    if (ctx->acked_epoch == 0) return;
    const rs_bank* in_force = &ctx->tables[ctx->active];
    ctx->acked_epoch = 0;
    rs_store(&ctx->slot->ack_digest, in_force->digest);
    rs_store_release(&ctx->slot->ack_epoch, in_force->epoch);
}

/* Takes over an announced table into this rank's own memory, checks it, and says so. */
static void acknowledge(rs_ctx* ctx, bool fenced) {
    rs_comm* comm = ctx->comm;
    const uint64_t offer = rs_load_acquire(&comm->announced);
    if (offer == 0 || offer > RS_EPOCH_MAX || offer == ctx->acked_epoch) return;
    if (offer <= ctx->tables[ctx->active].epoch) return;
    if (fenced) {
        if (rs_load(&ctx->slot->fence) & RS_FENCE_HOLD) return;
    } else {
        if (ctx->clock != RS_CLOCK_TRUSTED) return;
        /* The copy that would be overwritten may have been committed, and wait for its index. */
        const uint32_t committed = (uint32_t)(rs_load_acquire(&comm->gate) >> RS_INDEX_BITS);
        if (committed != ctx->tables[ctx->active].epoch) return;
    }
    const uint64_t version = rs_load_acquire(&comm->bank.version);
    const uint64_t known = what_is_known(ctx);
    if (rs_load(&ctx->slot->refused_epoch) == offer && version == ctx->tried_version &&
        known == ctx->tried_known) {
        return;
    }
    rs_bank* copy = &ctx->tables[1 - ctx->active];
    let_go(ctx);
    if (!rs_bank_copy(copy, &comm->bank) || copy->epoch != offer) return; /* being written */
    uint32_t problem = rs_bank_digest(copy) == copy->digest ? 0 : 1 + (uint32_t)RS_WHY_BAD_DIGEST;
    if (problem == 0) problem = problem_of(ctx, copy);
    if (problem != 0) {
        rs_why(ctx, problem - 1);
        ctx->tried_version = copy->version;
        ctx->tried_known = known;
        rs_store_release(&ctx->slot->refused_epoch, offer);
        return;
    }
    ctx->acked_epoch = (uint32_t)offer;
    rs_store(&ctx->slot->ack_digest, copy->digest);
    rs_store_release(&ctx->slot->ack_epoch, offer);
}

/* The static table holds for all ranks or for none; the first rank to ask settles it. */
static bool static_in_force(rs_ctx* ctx) {
    if (ctx->trusted_static) return true;
    if (ctx->comm == NULL) return false;
    uint32_t once = rs_load_acquire(&ctx->comm->once);
    if (once == RS_ONCE_OPEN) {
        const bool all = rs_load_acquire(&ctx->comm->tuners) == ctx->n_ranks;
        const uint32_t wanted = all ? RS_ONCE_ON : RS_ONCE_OFF;
        if (__atomic_compare_exchange_n(&ctx->comm->once, &once, wanted, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            once = wanted;
        }
    }
    return once == RS_ONCE_ON && ctx->has_static;
}

static void follow_gate(rs_ctx* ctx, uint64_t index) {
    rs_comm* comm = ctx->comm;
    uint32_t epoch;
    if (!enter_gate(comm, index, &epoch)) {
        rs_why(ctx, RS_WHY_BUSY);
        return;
    }
    if (epoch == ctx->tables[ctx->active].epoch) return;
    if (epoch != ctx->acked_epoch) {
        rs_why(ctx, RS_WHY_UNKNOWN_EPOCH);
    } else if (index >= rs_load(&comm->first_index)) {
        promote(ctx);
    }
}

const rs_bank* rs_agree(rs_ctx* ctx) {
    if (ctx->slot != NULL && ctx->rank != RS_RANK_UNKNOWN) {
        const bool fenced = rs_load(&ctx->comm->scope) == RS_SCOPE_FENCED;
        if (fenced) {
            const uint64_t fence = rs_load(&ctx->slot->fence) & ~RS_FENCE_HOLD;
            if (ctx->acked_epoch != 0 && fence == ctx->acked_epoch) promote(ctx);
        } else if (ctx->clock != RS_CLOCK_NONE) {
            const uint64_t index = rs_load(&ctx->launched);
            if (index < RS_INDEX_MASK - 1) follow_gate(ctx, index);
        }
        acknowledge(ctx, fenced);
    }
    const rs_bank* table = &ctx->tables[ctx->active];
    if (table->epoch == 0 && !(ctx->has_static && static_in_force(ctx))) return NULL;
    return table;
}
