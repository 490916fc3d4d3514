/* Sets ports, remembers which are set, and times the commands. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "provider.h"
#include "ringstep_tag.h"
#include "text.h"

enum { SAMPLES = 1024, FIRST_SLOTS = 64 };

/* A queue pair's memory may be used again for another: the number tells them apart. */
typedef struct {
    const struct ibv_qp* qp; /* NULL: free */
    uint32_t qp_num;
    uint16_t sport; /* 0: not known */
} entry;

struct rt_tagger {
    rt_layout layout;
    uint32_t job_tag;
    rt_provider provider;
    pthread_mutex_t lock; /* of all below; never held during a command */
    entry* slots;         /* open addressing, a power of two, at most half full */
    size_t n_slots;
    size_t n_used;
    rt_cost cost; /* without the median */
    uint64_t samples[SAMPLES];
    uint64_t n_samples;
};

int rt_tagger_create(rt_tagger** tagger, rt_layout layout, uint32_t job_tag) {
    if (tagger == NULL) {
        return rt_fail(EINVAL, "no place for the tagger was given");
    }
    *tagger = NULL;
    int status = rt_layout_check(layout);
    if (status) {
        return status;
    }
    if (job_tag >> layout.job_bits) {
        return rt_fail(EINVAL, "job tag %u does not fit in %u bits; use 0 to %u", job_tag,
                       layout.job_bits, (1u << layout.job_bits) - 1);
    }
    rt_tagger* made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return rt_fail(ENOMEM, "out of memory");
    }
    made->slots = calloc(FIRST_SLOTS, sizeof(*made->slots));
    if (made->slots == NULL) {
        free(made);
        return rt_fail(ENOMEM, "out of memory");
    }
    made->n_slots = FIRST_SLOTS;
    made->layout = layout;
    made->job_tag = job_tag;
    rt_provider_load(&made->provider);
    if (made->provider.modify_sport == NULL) {
        if (made->provider.mlx5 == NULL) {
            rt_fail(ENOENT, "%s: %s; apt-get install ibverbs-providers (rdma-core)",
                    made->provider.mlx5_name, made->provider.mlx5_error);
        } else {
            rt_fail(ENOENT,
                    "%s lacks mlx5dv_modify_qp_udp_sport (MLX5_1.17); install rdma-core 33 or "
                    "newer",
                    made->provider.mlx5_name);
        }
        rt_provider_unload(&made->provider);
        free(made->slots);
        free(made);
        return ENOENT;
    }
    pthread_mutex_init(&made->lock, NULL);
    *tagger = made;
    return 0;
}

void rt_tagger_destroy(rt_tagger* tagger) {
    if (tagger == NULL) {
        return;
    }
    pthread_mutex_destroy(&tagger->lock);
    rt_provider_unload(&tagger->provider);
    free(tagger->slots);
    free(tagger);
}

/* -- The table, under the lock -------------------------------------------------------------- */

static size_t home_of(const rt_tagger* tagger, const struct ibv_qp* qp) {
    uint64_t mixed = (uint64_t)(uintptr_t)qp * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(mixed >> 32) & (tagger->n_slots - 1);
}

/* The queue pair's slot, or the free one where it belongs. */
static entry* slot_of(const rt_tagger* tagger, const struct ibv_qp* qp) {
    size_t at = home_of(tagger, qp);
    while (tagger->slots[at].qp != NULL && tagger->slots[at].qp != qp) {
        at = (at + 1) & (tagger->n_slots - 1);
    }
    return &tagger->slots[at];
}

static void forget(rt_tagger* tagger, const struct ibv_qp* qp) {
    entry* gone = slot_of(tagger, qp);
    if (gone->qp == NULL) {
        return;
    }
    gone->qp = NULL;
    tagger->n_used--;
    /* What was pushed on by it moves back, so that no search ends too early. */
    size_t hole = (size_t)(gone - tagger->slots);
    size_t mask = tagger->n_slots - 1;
    for (size_t at = (hole + 1) & mask; tagger->slots[at].qp != NULL; at = (at + 1) & mask) {
        size_t home = home_of(tagger, tagger->slots[at].qp);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            tagger->slots[hole] = tagger->slots[at];
            tagger->slots[at].qp = NULL;
            hole = at;
        }
    }
}

/* A table that cannot grow forgets: commands are then repeated, never left out. */
static void grow(rt_tagger* tagger) {
    entry* old = tagger->slots;
    size_t n_old = tagger->n_slots;
    entry* larger = calloc(2 * n_old, sizeof(*larger));
    if (larger == NULL) {
        memset(old, 0, n_old * sizeof(*old));
        tagger->n_used = 0;
        return;
    }
    tagger->slots = larger;
    tagger->n_slots = 2 * n_old;
    for (size_t at = 0; at < n_old; at++) {
        if (old[at].qp != NULL) {
            *slot_of(tagger, old[at].qp) = old[at];
        }
    }
    free(old);
}

static void remember(rt_tagger* tagger, const struct ibv_qp* qp, uint16_t sport) {
    entry* slot = slot_of(tagger, qp);
    if (slot->qp == NULL) {
        if (2 * (tagger->n_used + 1) > tagger->n_slots) {
            grow(tagger);
            slot = slot_of(tagger, qp);
        }
        tagger->n_used++;
    }
    *slot = (entry){qp, qp->qp_num, sport};
}

static int is_set(rt_tagger* tagger, const struct ibv_qp* qp, uint16_t sport) {
    const entry* slot = slot_of(tagger, qp);
    return slot->qp == qp && slot->qp_num == qp->qp_num && slot->sport == sport;
}

/* -- Commands ------------------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

static const char* state_name(int state) {
    static const char* const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
    return state >= 0 && state < 7 ? names[state] : "an unknown state";
}

static int check_qp(const struct ibv_qp* qp) {
    if (qp == NULL) {
        return rt_fail(EINVAL, "no queue pair was given");
    }
    if (qp->qp_type != RV_QPT_RC && qp->qp_type != RV_QPT_UC) {
        return rt_fail(EOPNOTSUPP, "queue pair %#x is of type %d: only RC and UC have a port to set",
                       qp->qp_num, qp->qp_type);
    }
    if (qp->state != RV_QPS_RTS) {
        return rt_fail(EOPNOTSUPP, "queue pair %#x is in %s: its port can be set in RTS only",
                       qp->qp_num, state_name(qp->state));
    }
    return 0;
}

static int explain(int status, const struct ibv_qp* qp, uint16_t sport) {
    const char* why;
    switch (status) {
    case EOPNOTSUPP:
        why = "the NIC cannot: it is not mlx5, its port is not RoCE v2, or its firmware lacks "
              "rts2rts_qp_udp_sport (ringstep tuner probe-nic)";
        break;
    case EINVAL:
        why = "the firmware refused it: is the queue pair really in RTS, and the port in the "
              "device's range?";
        break;
    case EREMOTEIO:
    case EIO:
        why = "the firmware refused it: the queue pair may have gone to the error state";
        break;
    case EPERM:
    case EACCES:
        why = "this process may not send firmware commands (DEVX); containers need "
              "/dev/infiniband/uverbs* and user contexts with DEVX";
        break;
    case ENOMEM:
        why = "the kernel has no memory for the command";
        break;
    case EAGAIN:
    case EBUSY:
        why = "the firmware is busy; try again";
        break;
    case ETIMEDOUT:
        why = "the firmware did not answer; see the kernel's log";
        break;
    case ENODEV:
    case EBADF:
    case ENXIO:
        why = "the device is gone, or was reset: its queue pairs have to be made anew";
        break;
    default:
        why = strerror(status);
    }
    return rt_fail(status, "setting port %#x of queue pair %#x failed (errno %d): %s", sport,
                   qp->qp_num, status, why);
}

static int set_port(rt_tagger* tagger, struct ibv_qp* qp, uint16_t sport) {
    if (sport < RT_SPORT_BASE) {
        return rt_fail(ERANGE, "port %#x is outside 0xC000 to 0xFFFF", sport);
    }
    pthread_mutex_lock(&tagger->lock);
    int set = is_set(tagger, qp, sport);
    tagger->cost.skipped += (uint64_t)set;
    pthread_mutex_unlock(&tagger->lock);
    if (set) {
        return 0;
    }
    uint64_t start = now_ns();
    int status = tagger->provider.modify_sport(qp, sport);
    uint64_t took = now_ns() - start;
    pthread_mutex_lock(&tagger->lock);
    rt_cost* cost = &tagger->cost;
    cost->calls++;
    if (status) {
        cost->failed++;
        forget(tagger, qp);
    } else {
        remember(tagger, qp, sport);
        if (tagger->n_samples == 0 || took < cost->min_ns) {
            cost->min_ns = took;
        }
        if (took > cost->max_ns) {
            cost->max_ns = took;
        }
        tagger->samples[tagger->n_samples++ % SAMPLES] = took;
    }
    pthread_mutex_unlock(&tagger->lock);
    return status ? explain(status < 0 ? -status : status, qp, sport) : 0;
}

int rt_set_step(rt_tagger* tagger, struct ibv_qp* qp, uint64_t step) {
    if (tagger == NULL) {
        return rt_fail(EINVAL, "no tagger was given");
    }
    int status = check_qp(qp);
    if (status) {
        if (qp != NULL) {
            rt_forget(tagger, qp);
        }
        return status;
    }
    return set_port(tagger, qp, rt_sport(tagger->layout, tagger->job_tag, step));
}

static int by_address(const void* a, const void* b) {
    uintptr_t left = (uintptr_t) * (struct ibv_qp* const*)a;
    uintptr_t right = (uintptr_t) * (struct ibv_qp* const*)b;
    return (left > right) - (left < right);
}

static int check_pool(struct ibv_qp* const* qps, uint32_t k) {
    for (uint32_t index = 0; index < k; index++) {
        int status = check_qp(qps[index]);
        if (status) {
            char why[256];
            strncpy(why, rt_last_error(), sizeof(why) - 1);
            why[sizeof(why) - 1] = '\0';
            return rt_fail(status, "queue pair %u of the pool: %s", index, why);
        }
    }
    struct ibv_qp** sorted = malloc(k * sizeof(struct ibv_qp*));
    if (sorted == NULL) {
        return rt_fail(ENOMEM, "out of memory");
    }
    memcpy(sorted, qps, k * sizeof(struct ibv_qp*));
    qsort(sorted, k, sizeof(struct ibv_qp*), by_address);
    int status = 0;
    for (uint32_t index = 1; index < k && !status; index++) {
        if (sorted[index] == sorted[index - 1]) {
            status = rt_fail(EINVAL, "queue pair %#x is in the pool twice", sorted[index]->qp_num);
        }
    }
    free(sorted);
    return status;
}

int rt_pool_preset(rt_tagger* tagger, struct ibv_qp* const* qps, uint32_t k) {
    if (tagger == NULL || qps == NULL) {
        return rt_fail(EINVAL, "no %s given", tagger == NULL ? "tagger was" : "queue pairs were");
    }
    rt_layout needed;
    int status = rt_pool_layout(k, &needed);
    if (status) {
        return status;
    }
    if (needed.step_bits != tagger->layout.step_bits) {
        return rt_fail(EINVAL,
                       "a pool of k = %u queue pairs carries S = %u step bits, the layout has %u; "
                       "use J = %u, S = %u",
                       k, needed.step_bits, tagger->layout.step_bits, needed.job_bits,
                       needed.step_bits);
    }
    status = check_pool(qps, k);
    for (uint32_t index = 0; index < k && !status; index++) {
        status = set_port(tagger, qps[index], rt_sport(tagger->layout, tagger->job_tag, index));
    }
    return status;
}

void rt_forget(rt_tagger* tagger, struct ibv_qp* qp) {
    if (tagger == NULL || qp == NULL) {
        return;
    }
    pthread_mutex_lock(&tagger->lock);
    forget(tagger, qp);
    pthread_mutex_unlock(&tagger->lock);
}

static int by_size(const void* a, const void* b) {
    uint64_t left = *(const uint64_t*)a;
    uint64_t right = *(const uint64_t*)b;
    return (left > right) - (left < right);
}

void rt_get_cost(rt_tagger* tagger, rt_cost* cost) {
    if (cost == NULL) {
        return;
    }
    memset(cost, 0, sizeof(*cost));
    if (tagger == NULL) {
        return;
    }
    uint64_t samples[SAMPLES];
    pthread_mutex_lock(&tagger->lock);
    *cost = tagger->cost;
    size_t count = tagger->n_samples < SAMPLES ? (size_t)tagger->n_samples : SAMPLES;
    memcpy(samples, tagger->samples, count * sizeof(samples[0]));
    pthread_mutex_unlock(&tagger->lock);
    if (count) {
        qsort(samples, count, sizeof(samples[0]), by_size);
        cost->median_ns = samples[count / 2];
    }
}
