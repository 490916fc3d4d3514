/* What the profiler ABIs v4, v5 and v6 share: event types, states, parts of descriptors. */
#ifndef RINGSTEP_NCCL_PROFILER_ABI_H
#define RINGSTEP_NCCL_PROFILER_ABI_H

#include <stdbool.h>

#include "nccl_abi.h"

/* Event types, also the bits of the activation mask. NCCL starts events of parents that
 * nobody asked for; a plugin must let them pass. */
enum {
    RS_EV_GROUP = 1 << 0,
    RS_EV_COLL = 1 << 1,
    RS_EV_P2P = 1 << 2,
    RS_EV_PROXY_OP = 1 << 3,
    RS_EV_PROXY_STEP = 1 << 4,
    RS_EV_PROXY_CTRL = 1 << 5,
    RS_EV_KERNEL_CH = 1 << 6,
    RS_EV_NET_PLUGIN = 1 << 7,
    RS_EV_GROUP_API = 1 << 8,
    RS_EV_COLL_API = 1 << 9,
    RS_EV_P2P_API = 1 << 10,
    RS_EV_KERNEL_LAUNCH = 1 << 11,
    RS_EV_CE_COLL = 1 << 12,
    RS_EV_CE_SYNC = 1 << 13,
    RS_EV_CE_BATCH = 1 << 14,
};

enum {
    RS_STATE_SEND_GPU_WAIT = 8,
    RS_STATE_SEND_WAIT = 9,
    RS_STATE_RECV_WAIT = 10,
    RS_STATE_RECV_FLUSH_WAIT = 11,
    RS_STATE_RECV_GPU_WAIT = 12,
    RS_STATE_PROXY_OP_IN_PROGRESS = 19,
    /* Recorded at every attempt to send that finds the data ready: an attempt without a
     * SEND_WAIT after it got no request, that is a stall. */
    RS_STATE_SEND_PEER_WAIT = 20,
    RS_STATE_NET_PLUGIN_UPDATE = 21,
    RS_STATE_KERNEL_CH_STOP = 22,
};

typedef struct {
    uint64_t seq_number; /* counted per function, not per communicator */
    const char* func;
    const void* send_buff;
    void* recv_buff;
    size_t count;
    int root;
    const char* datatype;
    uint8_t n_channels;
    uint8_t n_warps;
    const char* algo;
    const char* proto;
} rs_prof_coll_v4;

typedef struct {
    const char* func;
    void* buff;
    const char* datatype;
    size_t count;
    int peer;
    uint8_t n_channels;
} rs_prof_p2p_v4;

typedef struct {
    int32_t pid; /* of the process that issued the operation: another one's with PXN */
    uint8_t channel_id;
    int peer;
    int n_steps;
    int chunk_size;
    int is_send;
} rs_prof_proxy_op;

typedef struct {
    uint8_t channel_id;
    uint64_t p_timer; /* GPU globaltimer, ns */
} rs_prof_kernel_ch;

typedef struct {
    int64_t id;
    void* data;
} rs_prof_net_plugin;

typedef union {
    size_t trans_size;
    int appended_proxy_ops;
    void* net_plugin_data;
    uint64_t kernel_ch_p_timer;
} rs_prof_state_args;

RS_STATIC_ASSERT(sizeof(rs_prof_coll_v4) == 80, "coll v4");
RS_STATIC_ASSERT(offsetof(rs_prof_coll_v4, datatype) == 48, "coll v4 datatype");
RS_STATIC_ASSERT(offsetof(rs_prof_coll_v4, n_channels) == 56, "coll v4 nChannels");
RS_STATIC_ASSERT(offsetof(rs_prof_coll_v4, proto) == 72, "coll v4 proto");
RS_STATIC_ASSERT(sizeof(rs_prof_p2p_v4) == 40, "p2p v4");
RS_STATIC_ASSERT(sizeof(rs_prof_proxy_op) == 24, "proxyOp");
RS_STATIC_ASSERT(offsetof(rs_prof_proxy_op, is_send) == 20, "proxyOp isSend");
RS_STATIC_ASSERT(sizeof(rs_prof_kernel_ch) == 16, "kernelCh");
RS_STATIC_ASSERT(sizeof(rs_prof_state_args) == 8, "state arguments");

#endif
