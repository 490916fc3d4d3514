/* What the coordinator does to the shared file and Python cannot do: compare-and-swap, fences.
 *
 * libringstep-host.so, called through ctypes (hostlib/shm.py). Every function takes the mapped
 * file and trusts only what it checks. */
#include <errno.h>
#include <string.h>

#include "core.h"
#include "export.h"

RS_EXPORT uint64_t rs_host_file_size(void);
RS_EXPORT uint64_t rs_host_digest(const rs_bank* bank);
RS_EXPORT int rs_host_announce(rs_file* file, uint32_t comm, uint32_t epoch,
                               const rs_entry* entries);
RS_EXPORT int rs_host_commit(rs_file* file, uint32_t comm, uint32_t epoch);
RS_EXPORT int rs_host_abandon(rs_file* file, uint32_t comm, uint32_t epoch);
RS_EXPORT int rs_host_freeze(rs_file* file, uint32_t comm);
RS_EXPORT void rs_host_ring_write(rs_proc* proc, const rs_record* record);
RS_EXPORT int rs_host_claim_proc(rs_file* file);
RS_EXPORT int rs_host_attach(rs_file* file, uint64_t comm_id, uint32_t n_ranks, uint32_t n_nodes,
                             uint32_t rank);
RS_EXPORT void rs_host_detach(rs_file* file, uint32_t comm, uint32_t slot);

uint64_t rs_host_file_size(void) {
    return sizeof(rs_file);
}

uint64_t rs_host_digest(const rs_bank* bank) {
    return rs_bank_digest(bank);
}

void rs_host_ring_write(rs_proc* proc, const rs_record* record) {
    rs_ring_write(proc, record);
}

/* Places for a process without a plugin that reports its collectives all the same. These three need
 * the file's lock. claim_proc returns the place, attach the block << 8 | slot; -1 for no room. The
 * slot's clock is none: such a rank acknowledges nothing. */
int rs_host_claim_proc(rs_file* file) {
    const rs_proc* proc = rs_shm_claim_proc(file);
    return proc ? (int)(proc - file->procs) : -1;
}

int rs_host_attach(rs_file* file, uint64_t comm_id, uint32_t n_ranks, uint32_t n_nodes,
                   uint32_t rank) {
    rs_ctx ctx = {.comm_id = comm_id, .n_ranks = n_ranks, .n_nodes = n_nodes, .rank = rank};
    uint32_t why;
    if (!rs_shm_attach(file, &ctx, &why)) return -1;
    return (int)(ctx.comm_index << 8 | (uint32_t)(ctx.slot - ctx.comm->ranks));
}

void rs_host_detach(rs_file* file, uint32_t comm, uint32_t slot) {
    if (comm >= RS_MAX_COMMS || slot >= RS_MAX_RANKS) return;
    rs_ctx ctx = {.comm = &file->comms[comm], .slot = &file->comms[comm].ranks[slot]};
    if (ctx.slot->state == RS_SLOT_ATTACHED) rs_shm_detach(&ctx);
}

static rs_comm* comm_at(rs_file* file, uint32_t comm) {
    if (file == NULL || comm >= RS_MAX_COMMS) return NULL;
    const uint32_t state = rs_load_acquire(&file->comms[comm].state);
    return state == RS_COMM_FILLING || state == RS_COMM_FULL ? &file->comms[comm] : NULL;
}

static uint32_t epoch_of(uint64_t gate) {
    return (uint32_t)(gate >> RS_INDEX_BITS);
}

/* Puts a table on offer; the one on offer before is abandoned. -ENOENT no such communicator,
 * -EINVAL an epoch that this file has seen. Ranks hold copies, so nothing in force is touched. */
int rs_host_announce(rs_file* file, uint32_t comm_index, uint32_t epoch, const rs_entry* entries) {
    rs_comm* comm = comm_at(file, comm_index);
    if (comm == NULL) return -ENOENT;
    if (epoch == 0 || epoch > RS_EPOCH_MAX || epoch <= rs_load(&file->header.epoch)) {
        return -EINVAL;
    }
    rs_store(&file->header.epoch, epoch);
    rs_store_release(&comm->announced, 0);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    rs_bank* bank = &comm->bank;
    const uint64_t version = rs_load(&bank->version) | 1;
    rs_store(&bank->version, version);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    rs_bank local = {.epoch = epoch};
    memcpy(local.entries, entries, sizeof local.entries);
    local.digest = rs_bank_digest(&local);
    const uint64_t* source = (const uint64_t*)(const void*)&local;
    uint64_t* target = (uint64_t*)(void*)bank;
    for (size_t i = 1; i < sizeof local / 8; ++i) rs_store(&target[i], source[i]);
    rs_store_release(&bank->version, version + 1);
    rs_store_release(&comm->announced, epoch);
    return 0;
}

/* 0 committed (also when it was before), -EAGAIN not every rank acknowledged it, -ENOENT it is
 * not on offer, -EBUSY the gate is frozen, -EPERM the communicator's switches are fenced. */
int rs_host_commit(rs_file* file, uint32_t comm_index, uint32_t epoch) {
    rs_comm* comm = comm_at(file, comm_index);
    if (comm == NULL) return -ENOENT;
    if (rs_load(&comm->scope) != RS_SCOPE_NODE) return -EPERM;
    uint64_t gate = rs_load_acquire(&comm->gate);
    if (epoch_of(gate) == epoch) return 0;
    if (epoch == 0 || rs_load_acquire(&comm->announced) != epoch) return -ENOENT;
    const uint64_t digest = rs_load(&comm->bank.digest);
    uint32_t acknowledged = 0;
    for (uint32_t i = 0; i < RS_MAX_RANKS; ++i) {
        const rs_rank_slot* slot = &comm->ranks[i];
        if (rs_load_acquire(&slot->state) != RS_SLOT_ATTACHED) continue;
        const bool held =
            rs_load_acquire(&slot->ack_epoch) == epoch && rs_load(&slot->ack_digest) == digest;
        acknowledged += held;
    }
    if (acknowledged != comm->n_ranks || rs_load(&comm->attached) != comm->n_ranks) return -EAGAIN;
    for (;;) {
        const uint64_t first = gate & RS_INDEX_MASK;
        if (first == RS_INDEX_MASK) return -EBUSY;
        /* Nobody reads it yet: it belongs to the gate's epoch, and everybody is past that one. */
        rs_store(&comm->first_index, first);
        const uint64_t next = (uint64_t)epoch << RS_INDEX_BITS | first;
        if (__atomic_compare_exchange_n(&comm->gate, &gate, next, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            return 0;
        }
        if (epoch_of(gate) == epoch) return 0;
    }
}

/* -EALREADY it is committed; from 0 on it never will be. */
int rs_host_abandon(rs_file* file, uint32_t comm_index, uint32_t epoch) {
    rs_comm* comm = comm_at(file, comm_index);
    if (comm == NULL) return -ENOENT;
    if (epoch_of(rs_load_acquire(&comm->gate)) == epoch) return -EALREADY;
    if (rs_load(&comm->announced) != epoch) return -ENOENT;
    rs_store_release(&comm->announced, 0);
    return 0;
}

int rs_host_freeze(rs_file* file, uint32_t comm_index) {
    rs_comm* comm = comm_at(file, comm_index);
    if (comm == NULL) return -ENOENT;
    __atomic_fetch_or(&comm->gate, RS_INDEX_MASK, __ATOMIC_ACQ_REL);
    return 0;
}
