/* What it costs to set a port, on a queue pair of its own. */
#include <errno.h>
#include <string.h>

#include "provider.h"
#include "ringstep_tag.h"
#include "text.h"

typedef struct {
    const rt_provider* provider;
    struct ibv_context* context;
    struct ibv_pd* pd;
    struct ibv_cq* cq;
    struct ibv_qp* qp;
} bench;

static int failed(const char* what) {
    return rt_fail(errno ? errno : EIO, "%s failed: %s", what, strerror(errno ? errno : EIO));
}

static int make(bench* at, struct ibv_device* device) {
    const rt_provider* provider = at->provider;
    errno = 0;
    at->context = provider->open_device(device);
    if (at->context == NULL) {
        return failed("opening the device");
    }
    at->pd = provider->alloc_pd(at->context);
    if (at->pd == NULL) {
        return failed("making a protection domain");
    }
    at->cq = provider->create_cq(at->context, 1, NULL, NULL, 0);
    if (at->cq == NULL) {
        return failed("making a completion queue");
    }
    struct rv_qp_init_attr attr = {
        .send_cq = at->cq,
        .recv_cq = at->cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = RV_QPT_RC};
    at->qp = provider->create_qp(at->pd, &attr);
    return at->qp == NULL ? failed("making a queue pair") : 0;
}

static int step_to(bench* at, struct rv_qp_attr* attr, int state, int mask) {
    attr->qp_state = state;
    int status = at->provider->modify_qp(at->qp, attr, mask | RV_QP_STATE);
    if (status) {
        status = status < 0 ? errno : status;
        return rt_fail(status, "bringing a queue pair to state %d failed: %s", state,
                       strerror(status));
    }
    return 0;
}

/* Connect the queue pair to itself, by the port's own GID. */
static int connect_to_itself(bench* at, uint32_t port) {
    struct rv_port_attr port_attr;
    memset(&port_attr, 0, sizeof(port_attr));
    struct rv_gid_entry gid;
    int index = -1;
    if (at->provider->query_port(at->context, (uint8_t)port, &port_attr) == 0) {
        index = rt_provider_roce_v2(at->provider, at->context, port, port_attr.gid_tbl_len, &gid);
    }
    if (index < 0) {
        return rt_fail(EOPNOTSUPP, "port %u has no GID of RoCE v2", port);
    }
    struct rv_qp_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.port_num = (uint8_t)port;
    attr.path_mtu = port_attr.active_mtu;
    attr.dest_qp_num = at->qp->qp_num;
    attr.min_rnr_timer = 12;
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    memcpy(attr.ah_attr.grh.dgid, gid.gid, sizeof(gid.gid));
    attr.ah_attr.grh.sgid_index = (uint8_t)index;
    attr.ah_attr.grh.hop_limit = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = (uint8_t)port;
    int status = step_to(at, &attr, RV_QPS_INIT, RV_TO_INIT);
    if (status == 0) {
        status = step_to(at, &attr, RV_QPS_RTR, RV_TO_RTR_RC);
    }
    if (status == 0) {
        status = step_to(at, &attr, RV_QPS_RTS, RV_TO_RTS_RC);
    }
    return status;
}

static void unmake(bench* at) {
    const rt_provider* provider = at->provider;
    if (at->qp != NULL) {
        provider->destroy_qp(at->qp);
    }
    if (at->cq != NULL) {
        provider->destroy_cq(at->cq);
    }
    if (at->pd != NULL) {
        provider->dealloc_pd(at->pd);
    }
    if (at->context != NULL) {
        provider->close_device(at->context);
    }
}

static int measure(bench* at, struct ibv_device* device, uint32_t port, uint32_t count,
                   rt_cost* cost) {
    int status = make(at, device);
    if (status == 0) {
        status = connect_to_itself(at, port);
    }
    if (status) {
        return status;
    }
    rt_tagger* tagger;
    status = rt_tagger_create(&tagger, (rt_layout){0, RT_TAG_BITS}, 0);
    if (status) {
        return status;
    }
    for (uint32_t step = 0; step < count && status == 0; step++) {
        status = rt_set_step(tagger, at->qp, step);
    }
    rt_get_cost(tagger, cost);
    rt_tagger_destroy(tagger);
    return status;
}

int rt_measure(const char* device, uint32_t count, rt_cost* cost) {
    if (device == NULL || *device == '\0' || cost == NULL) {
        return rt_fail(EINVAL, "no %s was given", cost == NULL ? "place for the cost" : "device");
    }
    memset(cost, 0, sizeof(*cost));
    if (count < 1 || count > 1u << RT_TAG_BITS) {
        return rt_fail(EINVAL, "%u ports: 1 to %u can be set", count, 1u << RT_TAG_BITS);
    }
    rt_capabilities can;
    int status = rt_probe(device, &can);
    if (status) {
        return status;
    }
    if (!rt_can_tag(can.flags)) {
        return rt_fail(EOPNOTSUPP, "%s cannot carry step tags; probe it to see why", device);
    }
    rt_provider provider;
    rt_provider_load(&provider);
    int n_devices = 0;
    struct ibv_device** list = provider.get_device_list(&n_devices);
    status = rt_fail(ENODEV, "%s is gone", device);
    for (int index = 0; list != NULL && index < n_devices; index++) {
        const char* name = provider.get_device_name(list[index]);
        if (name != NULL && strcmp(name, can.device) == 0) {
            bench at = {.provider = &provider};
            status = measure(&at, list[index], can.port, count, cost);
            unmake(&at);
            break;
        }
    }
    if (list != NULL) {
        provider.free_device_list(list);
    }
    rt_provider_unload(&provider);
    return status;
}
