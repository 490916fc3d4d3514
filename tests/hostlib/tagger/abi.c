/* Compiled, never run: what src/verbs_abi.h says of rdma-core, against rdma-core's headers. */
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

typedef struct ibv_qp their_qp;
typedef struct ibv_context their_context;

/* Its own structures under other names. */
#define ibv_qp our_qp
#define ibv_context our_context
#include "verbs_abi.h"
#undef ibv_qp
#undef ibv_context

#define SAME(theirs, ours, member)                                                    \
    _Static_assert(offsetof(theirs, member) == offsetof(ours, member), #member " lies"); \
    _Static_assert(sizeof(((theirs*)0)->member) == sizeof(((ours*)0)->member), #member " size")

SAME(their_context, struct our_context, device);
SAME(their_qp, struct our_qp, context);
SAME(their_qp, struct our_qp, handle);
SAME(their_qp, struct our_qp, qp_num);
SAME(their_qp, struct our_qp, state);
SAME(their_qp, struct our_qp, qp_type);
SAME(struct ibv_port_attr, struct rv_port_attr, state);
SAME(struct ibv_port_attr, struct rv_port_attr, gid_tbl_len);
SAME(struct ibv_port_attr, struct rv_port_attr, link_layer);
SAME(struct ibv_port_attr, struct rv_port_attr, port_cap_flags2);
_Static_assert(sizeof(struct ibv_port_attr) == sizeof(struct rv_port_attr), "port attributes");
SAME(struct ibv_gid_entry, struct rv_gid_entry, gid_index);
SAME(struct ibv_gid_entry, struct rv_gid_entry, gid_type);
SAME(struct ibv_gid_entry, struct rv_gid_entry, ndev_ifindex);
_Static_assert(sizeof(struct ibv_gid_entry) == sizeof(struct rv_gid_entry), "GID entry");
SAME(struct ibv_qp_init_attr, struct rv_qp_init_attr, recv_cq);
SAME(struct ibv_qp_init_attr, struct rv_qp_init_attr, cap);
SAME(struct ibv_qp_init_attr, struct rv_qp_init_attr, qp_type);
_Static_assert(sizeof(struct ibv_qp_init_attr) == sizeof(struct rv_qp_init_attr), "init attr");
SAME(struct ibv_ah_attr, struct rv_ah_attr, grh.flow_label);
SAME(struct ibv_ah_attr, struct rv_ah_attr, grh.sgid_index);
SAME(struct ibv_ah_attr, struct rv_ah_attr, grh.hop_limit);
SAME(struct ibv_ah_attr, struct rv_ah_attr, is_global);
SAME(struct ibv_ah_attr, struct rv_ah_attr, port_num);
_Static_assert(sizeof(struct ibv_ah_attr) == sizeof(struct rv_ah_attr), "address");
SAME(struct ibv_qp_attr, struct rv_qp_attr, path_mtu);
SAME(struct ibv_qp_attr, struct rv_qp_attr, rq_psn);
SAME(struct ibv_qp_attr, struct rv_qp_attr, dest_qp_num);
SAME(struct ibv_qp_attr, struct rv_qp_attr, qp_access_flags);
SAME(struct ibv_qp_attr, struct rv_qp_attr, ah_attr);
SAME(struct ibv_qp_attr, struct rv_qp_attr, pkey_index);
SAME(struct ibv_qp_attr, struct rv_qp_attr, max_rd_atomic);
SAME(struct ibv_qp_attr, struct rv_qp_attr, min_rnr_timer);
SAME(struct ibv_qp_attr, struct rv_qp_attr, port_num);
SAME(struct ibv_qp_attr, struct rv_qp_attr, timeout);
SAME(struct ibv_qp_attr, struct rv_qp_attr, rnr_retry);
SAME(struct ibv_qp_attr, struct rv_qp_attr, rate_limit);
_Static_assert(sizeof(struct ibv_qp_attr) == sizeof(struct rv_qp_attr), "queue pair attributes");
_Static_assert((int)IBV_QP_STATE == RV_QP_STATE && (int)IBV_QP_PORT == RV_QP_PORT, "mask");
_Static_assert((int)(IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == RV_TO_INIT, "INIT");
_Static_assert((int)(IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == RV_TO_RTR_RC, "RTR");
_Static_assert((int)(IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_MAX_QP_RD_ATOMIC) == RV_TO_RTS_RC, "RTS");
_Static_assert((int)IBV_QPS_RTS == RV_QPS_RTS && (int)IBV_QPS_ERR == RV_QPS_ERR, "states");
_Static_assert((int)IBV_QPT_RC == RV_QPT_RC && (int)IBV_QPT_UC == RV_QPT_UC, "types");
_Static_assert((int)IBV_LINK_LAYER_ETHERNET == RV_LINK_ETHERNET, "link layer");
_Static_assert((int)IBV_PORT_ACTIVE == RV_PORT_ACTIVE, "port state");
_Static_assert((int)IBV_GID_TYPE_ROCE_V2 == RV_GID_ROCE_V2, "GID type");

/* Prototypes, with the renamed and the untyped arguments theirs. */
int (*const set_sport)(their_qp*, uint16_t) = mlx5dv_modify_qp_udp_sport;
int (*const general)(their_context*, const void*, size_t, void*, size_t) = mlx5dv_devx_general_cmd;
_Bool (*const supported)(struct ibv_device*) = mlx5dv_is_supported;
int (*const query_gid)(their_context*, uint32_t, uint32_t, struct ibv_gid_entry*, uint32_t,
                       size_t) = _ibv_query_gid_ex;
struct ibv_pd* (*const alloc)(their_context*) = ibv_alloc_pd;
struct ibv_cq* (*const cq)(their_context*, int, void*, struct ibv_comp_channel*, int) =
    ibv_create_cq;
their_qp* (*const create)(struct ibv_pd*, struct ibv_qp_init_attr*) = ibv_create_qp;
int (*const modify)(their_qp*, struct ibv_qp_attr*, int) = ibv_modify_qp;
/* ibv_get_device_list and ibv_query_port are macros too: in brackets they are the functions. */
struct ibv_device** (*const list)(int*) = (ibv_get_device_list);
int (*const query_port)(their_context*, uint8_t, struct _compat_ibv_port_attr*) = (ibv_query_port);
