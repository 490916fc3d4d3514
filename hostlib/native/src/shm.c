/* The shared-memory file: opening it safely, places in it. Only at init and finalize. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core.h"

enum { LOCK_TRIES = 500, LOCK_PAUSE_NS = 1000000 };

uint64_t rs_pid_start(uint32_t pid) {
    char path[64];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return 0;
    text[got] = 0;
    /* The command may hold anything, parentheses too: count fields after the last one. */
    const char* at = strrchr(text, ')');
    for (int field = 2; at && field < 22; ++field) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

bool rs_pid_gone(uint32_t pid, uint64_t start) {
    if (pid == 0) return true;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return true;
    const uint64_t now = rs_pid_start(pid);
    return start != 0 && now != 0 && now != start;
}

/* The file's own descriptor is locked, so a killed holder frees the lock. */
bool rs_shm_lock(const char* path, const rs_file* file, int* fd) {
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (*fd < 0) return false;
    uint64_t id = 0;
    const off_t at = offsetof(rs_file, header.file_id);
    const bool same = pread(*fd, &id, sizeof id, at) == sizeof id && id == file->header.file_id;
    for (int i = 0; same && i < LOCK_TRIES; ++i) {
        if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return true;
        const struct timespec pause = {0, LOCK_PAUSE_NS};
        nanosleep(&pause, NULL);
    }
    close(*fd);
    *fd = -1;
    return false;
}

void rs_shm_unlock(int fd) {
    if (fd >= 0) close(fd);
}

static bool header_fits(const rs_header* h) {
    return h->magic == RS_SHM_MAGIC && h->layout == RS_SHM_LAYOUT && h->ready == 1 &&
           h->header_size == sizeof(rs_header) && h->file_size == sizeof(rs_file) &&
           h->comm_size == sizeof(rs_comm) && h->rank_size == sizeof(rs_rank_slot) &&
           h->proc_size == sizeof(rs_proc) && h->record_size == sizeof(rs_record) &&
           h->max_comms == RS_MAX_COMMS && h->max_ranks == RS_MAX_RANKS &&
           h->max_procs == RS_MAX_PROCS && h->ring_slots == RS_RING_SLOTS &&
           h->collectives == RS_COLLECTIVES && h->size_classes == RS_SIZE_CLASSES &&
           h->entry_size == sizeof(rs_entry) && h->bank_size == sizeof(rs_bank);
}

rs_file* rs_shm_open(const char* path, uint64_t token, uint32_t* why) {
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        *why = errno == ENOENT || errno == ENOTDIR ? RS_WHY_NO_FILE : RS_WHY_BAD_FILE;
        return NULL;
    }
    *why = RS_WHY_BAD_FILE;
    struct stat info;
    rs_file* file = NULL;
    /* A file with holes may have no storage behind it: touching it would kill the process. */
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
        (info.st_uid == geteuid() || info.st_uid == 0) && (size_t)info.st_size == sizeof(rs_file) &&
        (size_t)info.st_blocks * 512 >= sizeof(rs_file)) {
        void* at = mmap(NULL, sizeof(rs_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) file = at;
    }
    close(fd);
    if (file == NULL) return NULL;
    const rs_header* header = &file->header;
    const bool fits = header_fits(header);
    /* A token names the run; without one the owner has to be alive. */
    const bool current =
        token != 0 ? header->job_token == token : !rs_pid_gone(header->pid, header->pid_start);
    if (fits && current) return file;
    if (fits) *why = RS_WHY_STALE_FILE;
    munmap(file, sizeof(rs_file));
    return NULL;
}

static bool same_communicator(const rs_comm* comm, const rs_ctx* ctx) {
    return comm->state == RS_COMM_FILLING && comm->comm_id == ctx->comm_id &&
           comm->n_ranks == ctx->n_ranks && comm->members < comm->n_ranks;
}

/* A slot for the rank; NULL where the rank is there already (another communicator that has the
 * same id) or all slots are taken. Members that do not know their rank never collide. */
static rs_rank_slot* free_slot(rs_comm* comm, uint32_t rank) {
    rs_rank_slot* found = NULL;
    for (uint32_t i = 0; i < RS_MAX_RANKS; ++i) {
        rs_rank_slot* slot = &comm->ranks[i];
        if (slot->state == RS_SLOT_FREE) {
            if (found == NULL) found = slot;
        } else if (rank != RS_RANK_UNKNOWN && slot->rank == rank) {
            return NULL;
        }
    }
    return found;
}

static bool abandoned(const rs_comm* comm) {
    for (uint32_t i = 0; i < RS_MAX_RANKS; ++i) {
        const rs_rank_slot* slot = &comm->ranks[i];
        if (slot->state == RS_SLOT_ATTACHED && !rs_pid_gone(slot->pid, slot->pid_start)) {
            return false;
        }
    }
    return true;
}

static void clear_comm(rs_comm* comm) {
    const uint32_t generation = comm->generation;
    const uint64_t version = comm->bank.version;
    rs_store_release(&comm->state, RS_COMM_FREE);
    memset(comm, 0, sizeof *comm);
    comm->generation = generation + 1;
    comm->bank.version = (version | 1) + 1; /* readers of the old table must notice */
}

static rs_comm* place(rs_file* file, const rs_ctx* ctx, rs_rank_slot** slot) {
    *slot = NULL;
    for (uint32_t i = 0; i < RS_MAX_COMMS; ++i) {
        rs_comm* comm = &file->comms[i];
        if (!same_communicator(comm, ctx)) continue;
        if ((*slot = free_slot(comm, ctx->rank)) == NULL) continue;
        return comm;
    }
    for (int reclaim = 0; reclaim < 2; ++reclaim) {
        for (uint32_t i = 0; i < RS_MAX_COMMS; ++i) {
            rs_comm* comm = &file->comms[i];
            if (comm->state != RS_COMM_FREE) {
                if (!reclaim || !abandoned(comm)) continue;
            }
            clear_comm(comm);
            comm->comm_id = ctx->comm_id;
            comm->n_ranks = ctx->n_ranks;
            comm->n_nodes = ctx->n_nodes;
            rs_store_release(&comm->state, RS_COMM_FILLING);
            *slot = free_slot(comm, ctx->rank);
            return comm;
        }
    }
    return NULL;
}

bool rs_shm_attach(rs_file* file, rs_ctx* ctx, uint32_t* why) {
    rs_rank_slot* slot;
    rs_comm* comm = place(file, ctx, &slot);
    if (comm == NULL) {
        *why = RS_WHY_NO_ROOM;
        return false;
    }
    memset(slot, 0, sizeof *slot);
    slot->pid = (uint32_t)getpid();
    slot->pid_start = rs_pid_start(slot->pid);
    slot->rank = ctx->rank;
    slot->clock = ctx->clock;
    rs_store_release(&slot->state, RS_SLOT_ATTACHED);
    if (ctx->rank != RS_RANK_UNKNOWN) rs_store_release(&comm->attached, comm->attached + 1);
    comm->members += 1;
    if (comm->members == comm->n_ranks) rs_store_release(&comm->state, RS_COMM_FULL);
    ctx->comm = comm;
    ctx->slot = slot;
    ctx->comm_index = (uint32_t)(comm - file->comms);
    return true;
}

void rs_shm_detach(rs_ctx* ctx) {
    rs_comm* comm = ctx->comm;
    rs_store_release(&comm->state, RS_COMM_CLOSING); /* nothing is committed any more */
    rs_store_release(&ctx->slot->state, RS_SLOT_LEFT);
    if (comm->members > 0) comm->members -= 1;
    if (comm->members == 0) clear_comm(comm);
}

rs_proc* rs_shm_claim_proc(rs_file* file) {
    const uint32_t pid = (uint32_t)getpid();
    const uint64_t start = rs_pid_start(pid);
    rs_proc* found = NULL;
    for (int pass = 0; pass < 3 && found == NULL; ++pass) {
        for (uint32_t i = 0; i < RS_MAX_PROCS && found == NULL; ++i) {
            rs_proc* proc = &file->procs[i];
            const bool mine = proc->pid == pid && proc->pid_start == start;
            const bool unused = proc->state != RS_SLOT_ATTACHED;
            const bool fits = pass == 0   ? mine
                              : pass == 1 ? unused
                                          : rs_pid_gone(proc->pid, proc->pid_start);
            if (fits) found = proc;
        }
    }
    if (found == NULL) return NULL;
    if (found->pid != pid || found->pid_start != start) {
        found->generation += 1; /* readers start anew: other process, other record numbers */
        found->events_lost = 0;
        found->events_odd = 0;
        found->pid = pid;
        found->pid_start = start;
    }
    rs_store_release(&found->state, RS_SLOT_ATTACHED);
    return found;
}
