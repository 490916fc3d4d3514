/* Queue pairs: their states, and their ports. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mock.h"

struct ibv_pd {
    struct ibv_context* context;
    uint32_t handle;
};

struct ibv_cq {
    struct ibv_context* context;
};

MOCK_API struct ibv_pd* ibv_alloc_pd(struct ibv_context* context);
MOCK_API int ibv_dealloc_pd(struct ibv_pd* pd);
MOCK_API struct ibv_cq* ibv_create_cq(struct ibv_context* context, int entries, void* cq_context,
                                      void* channel, int vector);
MOCK_API int ibv_destroy_cq(struct ibv_cq* cq);
MOCK_API struct ibv_qp* ibv_create_qp(struct ibv_pd* pd, struct rv_qp_init_attr* attr);
MOCK_API int ibv_modify_qp(struct ibv_qp* qp, struct rv_qp_attr* attr, int mask);
MOCK_API int ibv_query_qp(struct ibv_qp* qp, struct rv_qp_attr* attr, int mask,
                          struct rv_qp_init_attr* init);
MOCK_API int ibv_destroy_qp(struct ibv_qp* qp);
MOCK_API int mlx5dv_modify_qp_udp_sport(struct ibv_qp* qp, uint16_t sport);

static uint32_t next_qp_num = 0x100;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct ibv_pd* ibv_alloc_pd(struct ibv_context* context) {
    struct ibv_pd* pd = calloc(1, sizeof(*pd));
    if (pd != NULL) {
        pd->context = context;
    }
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd* pd) {
    free(pd);
    return 0;
}

struct ibv_cq* ibv_create_cq(struct ibv_context* context, int entries, void* cq_context,
                             void* channel, int vector) {
    (void)cq_context;
    if (entries < 1 || channel != NULL || vector != 0) {
        errno = EINVAL;
        return NULL;
    }
    struct ibv_cq* cq = calloc(1, sizeof(*cq));
    if (cq != NULL) {
        cq->context = context;
    }
    return cq;
}

int ibv_destroy_cq(struct ibv_cq* cq) {
    free(cq);
    return 0;
}

struct ibv_qp* ibv_create_qp(struct ibv_pd* pd, struct rv_qp_init_attr* attr) {
    mock_qp* qp = calloc(1, sizeof(*qp));
    if (qp == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    qp->base.qp_num = next_qp_num++ & 0xFFFFFF;
    pthread_mutex_unlock(&lock);
    qp->base.context = pd->context;
    qp->base.pd = pd;
    qp->base.qp_context = attr->qp_context;
    qp->base.send_cq = attr->send_cq;
    qp->base.recv_cq = attr->recv_cq;
    qp->base.srq = attr->srq;
    qp->base.qp_type = attr->qp_type;
    qp->base.state = RV_QPS_RESET;
    mock_record(MOCK_CREATE_QP, qp->base.qp_num, (uint32_t)attr->qp_type, 0);
    return &qp->base;
}

/* Return 0 where the queue pair may go from one state to another with these attributes. */
static int transition(const struct ibv_qp* qp, int to, int mask) {
    int needed;
    if (to == RV_QPS_RESET || to == RV_QPS_ERR) {
        return 0;
    }
    if (qp->state == RV_QPS_RESET && to == RV_QPS_INIT) {
        needed = RV_TO_INIT;
    } else if (qp->state == RV_QPS_INIT && to == RV_QPS_INIT) {
        needed = 0;
    } else if (qp->state == RV_QPS_INIT && to == RV_QPS_RTR) {
        needed = qp->qp_type == RV_QPT_RC ? RV_TO_RTR_RC : RV_TO_RTR;
    } else if (qp->state == RV_QPS_RTR && to == RV_QPS_RTS) {
        needed = qp->qp_type == RV_QPT_RC ? RV_TO_RTS_RC : RV_TO_RTS;
    } else if ((qp->state == RV_QPS_RTS || qp->state == RV_QPS_SQD) &&
               (to == RV_QPS_RTS || to == RV_QPS_SQD)) {
        needed = 0;
    } else {
        return EINVAL;
    }
    return (mask & needed) == needed ? 0 : EINVAL;
}

int ibv_modify_qp(struct ibv_qp* qp, struct rv_qp_attr* attr, int mask) {
    int status = 0;
    int to = mask & RV_QP_STATE ? attr->qp_state : qp->state;
    if (mask & RV_QP_STATE) {
        status = transition(qp, to, mask);
    }
    if (status == 0) {
        if (to == RV_QPS_RESET || (to == RV_QPS_RTR && qp->state == RV_QPS_INIT)) {
            /* The port then comes from the flow label, or the queue pair's number. */
            ((mock_qp*)qp)->sport = 0;
        }
        qp->state = to;
    }
    mock_record(MOCK_MODIFY_QP, qp->qp_num, (uint32_t)to, status);
    return status;
}

int ibv_query_qp(struct ibv_qp* qp, struct rv_qp_attr* attr, int mask, struct rv_qp_init_attr* init) {
    (void)mask;
    attr->qp_state = qp->state;
    init->qp_type = qp->qp_type;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp* qp) {
    mock_record(MOCK_DESTROY_QP, qp->qp_num, 0, 0);
    free(qp);
    return 0;
}

static int set_sport(struct ibv_qp* qp) {
    device_kind kind = qp->context->device->kind;
    const char* firmware = getenv("RINGSTEP_MOCK_FIRMWARE");
    if (kind == KIND_RXE || kind == KIND_IB || kind == KIND_ROCE1 ||
        (qp->qp_type != RV_QPT_RC && qp->qp_type != RV_QPT_UC) || qp->state != RV_QPS_RTS ||
        (firmware != NULL && strcmp(firmware, "0") == 0)) {
        return EOPNOTSUPP;
    }
    if (firmware != NULL && strncmp(firmware, "errno:", 6) == 0) {
        return atoi(firmware + 6);
    }
    return mock_next_fault();
}

int mlx5dv_modify_qp_udp_sport(struct ibv_qp* qp, uint16_t sport) {
    const char* delay = getenv("RINGSTEP_MOCK_DELAY_US");
    if (delay != NULL && *delay) {
        long us = strtol(delay, NULL, 10);
        struct timespec wait = {us / 1000000, us % 1000000 * 1000};
        nanosleep(&wait, NULL);
    }
    int status = set_sport(qp);
    if (status == 0) {
        ((mock_qp*)qp)->sport = sport;
    }
    mock_record(MOCK_SET_SPORT, qp->qp_num, sport, status);
    return status;
}

uint32_t rt_mock_sport(const struct ibv_qp* qp) { return ((const mock_qp*)qp)->sport; }

int rt_mock_to_rts(struct ibv_qp* qp) {
    static const struct {
        int state;
        int mask;
    } steps[] = {{RV_QPS_INIT, RV_TO_INIT}, {RV_QPS_RTR, RV_TO_RTR_RC}, {RV_QPS_RTS, RV_TO_RTS_RC}};
    for (int index = 0; index < 3; index++) {
        struct rv_qp_attr attr = {.qp_state = steps[index].state};
        int status = ibv_modify_qp(qp, &attr, steps[index].mask | RV_QP_STATE);
        if (status) {
            return status;
        }
    }
    return 0;
}
