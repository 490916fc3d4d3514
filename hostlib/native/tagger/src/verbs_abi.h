/* What is used of rdma-core's ABI, by layout: its headers are not needed to build. Only leading
 * members that have stayed in place since libibverbs 1.0 are named; objects of these types are made
 * by rdma-core and never here, except where said. tests/hostlib/tagger checks all of it against
 * infiniband/verbs.h and mlx5dv.h where they are installed. */
#ifndef RINGSTEP_TAG_VERBS_ABI_H
#define RINGSTEP_TAG_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

struct ibv_device;
struct ibv_pd;
struct ibv_cq;

struct ibv_context {
    struct ibv_device* device;
    /* more follows */
};

enum { RV_QPS_RESET, RV_QPS_INIT, RV_QPS_RTR, RV_QPS_RTS, RV_QPS_SQD, RV_QPS_SQE, RV_QPS_ERR };
enum { RV_QPT_RC = 2, RV_QPT_UC = 3, RV_QPT_UD = 4 };

struct ibv_qp {
    struct ibv_context* context;
    void* qp_context;
    struct ibv_pd* pd;
    void* send_cq;
    void* recv_cq;
    void* srq;
    uint32_t handle;
    uint32_t qp_num;
    int state; /* kept by libibverbs; libmlx5 looks here too */
    int qp_type;
    /* more follows */
};

enum { RV_PORT_ACTIVE = 4, RV_PORT_ACTIVE_DEFER = 5 };
enum { RV_LINK_UNSPECIFIED, RV_LINK_INFINIBAND, RV_LINK_ETHERNET };

/* Made here; ibv_query_port writes it up to and with link_layer and its padding. */
struct rv_port_attr {
    int state;
    int max_mtu;
    int active_mtu;
    int gid_tbl_len;
    uint32_t port_cap_flags;
    uint32_t max_msg_sz;
    uint32_t bad_pkey_cntr;
    uint32_t qkey_viol_cntr;
    uint16_t pkey_tbl_len;
    uint16_t lid;
    uint16_t sm_lid;
    uint8_t lmc;
    uint8_t max_vl_num;
    uint8_t sm_sl;
    uint8_t subnet_timeout;
    uint8_t init_type_reply;
    uint8_t active_width;
    uint8_t active_speed;
    uint8_t phys_state;
    uint8_t link_layer;
    uint8_t flags;
    uint16_t port_cap_flags2;
};

enum { RV_GID_IB, RV_GID_ROCE_V1, RV_GID_ROCE_V2 };

/* Made here; its size is passed along. */
struct rv_gid_entry {
    uint64_t gid[2];
    uint32_t gid_index;
    uint32_t port_num;
    uint32_t gid_type;
    uint32_t ndev_ifindex;
};

/* ibv_qp_init_attr, ibv_qp_attr and what they hold: made here, read by rdma-core. */
struct rv_qp_cap {
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data;
};

struct rv_qp_init_attr {
    void* qp_context;
    void* send_cq;
    void* recv_cq;
    void* srq;
    struct rv_qp_cap cap;
    int qp_type;
    int sq_sig_all;
};

struct rv_ah_attr {
    struct {
        uint64_t dgid[2];
        uint32_t flow_label;
        uint8_t sgid_index;
        uint8_t hop_limit;
        uint8_t traffic_class;
    } grh;
    uint16_t dlid;
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t is_global;
    uint8_t port_num;
};

struct rv_qp_attr {
    int qp_state;
    int cur_qp_state;
    int path_mtu;
    int path_mig_state;
    uint32_t qkey;
    uint32_t rq_psn;
    uint32_t sq_psn;
    uint32_t dest_qp_num;
    unsigned int qp_access_flags;
    struct rv_qp_cap cap;
    struct rv_ah_attr ah_attr;
    struct rv_ah_attr alt_ah_attr;
    uint16_t pkey_index;
    uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify;
    uint8_t sq_draining;
    uint8_t max_rd_atomic;
    uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer;
    uint8_t port_num;
    uint8_t timeout;
    uint8_t retry_cnt;
    uint8_t rnr_retry;
    uint8_t alt_port_num;
    uint8_t alt_timeout;
    uint32_t rate_limit;
};

/* Bits of ibv_modify_qp's mask, and what RC needs on its way to RTS. */
enum {
    RV_QP_STATE = 1 << 0,
    RV_QP_ACCESS_FLAGS = 1 << 3,
    RV_QP_PKEY_INDEX = 1 << 4,
    RV_QP_PORT = 1 << 5,
    RV_QP_AV = 1 << 7,
    RV_QP_PATH_MTU = 1 << 8,
    RV_QP_TIMEOUT = 1 << 9,
    RV_QP_RETRY_CNT = 1 << 10,
    RV_QP_RNR_RETRY = 1 << 11,
    RV_QP_RQ_PSN = 1 << 12,
    RV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    RV_QP_MIN_RNR_TIMER = 1 << 15,
    RV_QP_SQ_PSN = 1 << 16,
    RV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    RV_QP_DEST_QPN = 1 << 20,
    RV_TO_INIT = RV_QP_PKEY_INDEX | RV_QP_PORT | RV_QP_ACCESS_FLAGS,
    RV_TO_RTR = RV_QP_AV | RV_QP_PATH_MTU | RV_QP_DEST_QPN | RV_QP_RQ_PSN,
    RV_TO_RTR_RC = RV_TO_RTR | RV_QP_MAX_DEST_RD_ATOMIC | RV_QP_MIN_RNR_TIMER,
    RV_TO_RTS = RV_QP_SQ_PSN,
    RV_TO_RTS_RC = RV_TO_RTS | RV_QP_TIMEOUT | RV_QP_RETRY_CNT | RV_QP_RNR_RETRY |
                   RV_QP_MAX_QP_RD_ATOMIC
};

/* Firmware commands, big-endian (mlx5's programmer's reference): opcode at byte 0, op_mod at 6; the
 * answer's status at 0, the capabilities from byte 16 on. */
enum {
    RV_CMD_QUERY_HCA_CAP = 0x100,
    RV_CAP_GENERAL = 0x0 << 1 | 1, /* the present values */
    RV_CAP_ROCE = 0x4 << 1 | 1,
    RV_CMD_IN_BYTES = 16,
    RV_CMD_OUT_BYTES = 16 + 4096,
    RV_CMD_CAPS_AT = 16,
    RV_GENERAL_RTS2RTS_BYTE = 0x150 / 8, /* rts2rts_qp_udp_sport is bit 0x151 */
    RV_GENERAL_RTS2RTS_BIT = 0x40,
    RV_ROCE_MAX_SPORT_BYTE = 0xC0 / 8, /* r_roce_max_src_udp_port, then the least */
    RV_ROCE_MIN_SPORT_BYTE = 0xD0 / 8
};

typedef struct ibv_device** rv_get_device_list(int* count);
typedef void rv_free_device_list(struct ibv_device** list);
typedef const char* rv_get_device_name(struct ibv_device* device);
typedef struct ibv_context* rv_open_device(struct ibv_device* device);
typedef int rv_close_device(struct ibv_context* context);
typedef int rv_query_port(struct ibv_context* context, uint8_t port, struct rv_port_attr* attr);
typedef int rv_query_gid_ex(struct ibv_context* context, uint32_t port, uint32_t index,
                            struct rv_gid_entry* entry, uint32_t flags, size_t entry_size);
typedef struct ibv_pd* rv_alloc_pd(struct ibv_context* context);
typedef int rv_dealloc_pd(struct ibv_pd* pd);
typedef struct ibv_cq* rv_create_cq(struct ibv_context* context, int entries, void* cq_context,
                                    void* channel, int vector);
typedef int rv_destroy_cq(struct ibv_cq* cq);
typedef struct ibv_qp* rv_create_qp(struct ibv_pd* pd, struct rv_qp_init_attr* attr);
typedef int rv_modify_qp(struct ibv_qp* qp, struct rv_qp_attr* attr, int mask);
typedef int rv_destroy_qp(struct ibv_qp* qp);
/* bool in C++ and C alike: a byte. */
typedef _Bool rv_is_supported(struct ibv_device* device);
typedef int rv_general_cmd(struct ibv_context* context, const void* in, size_t in_bytes, void* out,
                           size_t out_bytes);
typedef int rv_modify_udp_sport(struct ibv_qp* qp, uint16_t sport);

#endif
