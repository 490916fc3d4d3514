/* Step tags on real NICs: sets the UDP source ports of RoCE v2 queue pairs through rdma-core's
 * libmlx5, which is loaded at run time: nothing of rdma-core is needed to build or link.
 *
 * The source port is 0xC000 | job_tag << S | step mod 2^S, with J + S = 14 (docs/tagging.md).
 * Functions that return int return 0 or an errno; rt_last_error() then says in words what was
 * wrong and what would be right. A tagger may be used by several threads, each queue pair by one
 * at a time. Nothing here prints, exits or throws.
 *
 * RINGSTEP_TAG_PROVIDER=PATH takes one library in place of libibverbs.so.1 and libmlx5.so.1, for
 * tests without a NIC (libringstep-mock-mlx5.so). */
#ifndef RINGSTEP_TAG_H
#define RINGSTEP_TAG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RT_API __attribute__((visibility("default")))

struct ibv_context; /* of infiniband/verbs.h */
struct ibv_qp;

/* Text of the calling thread's last error. Never NULL. */
RT_API const char* rt_last_error(void);

/* -- Layout of the tag ---------------------------------------------------------------------- */

#define RT_SPORT_BASE 0xC000
#define RT_TAG_BITS 14

typedef struct {
    uint32_t job_bits;  /* J, from 0 */
    uint32_t step_bits; /* S, 2 to 14; J + S = 14 */
} rt_layout;

/* EINVAL: the two are no layout. */
RT_API int rt_layout_check(rt_layout layout);
/* Port of a step, which wraps. 0, which is no tagged port: no layout, or the job tag does not fit. */
RT_API uint16_t rt_sport(rt_layout layout, uint32_t job_tag, uint64_t step);
/* Flow label that makes the kernel give a queue pair the port of a step at RTR, on NICs that take
 * the port from it (ah_attr.grh.flow_label): a pool then needs no command at all. Never 0, which
 * would mean any port; 0 as from rt_sport. */
RT_API uint32_t rt_flow_label(rt_layout layout, uint32_t job_tag, uint64_t step);
/* What a tagged port carries; meaningless for ports below RT_SPORT_BASE. */
RT_API uint32_t rt_step_of(rt_layout layout, uint16_t sport);
RT_API uint32_t rt_job_tag_of(rt_layout layout, uint16_t sport);
/* Whether step a is ahead of step b in serial arithmetic on S bits. */
RT_API int rt_ahead(rt_layout layout, uint64_t a, uint64_t b);
/* Largest difference of two senders' steps that the tag still orders rightly: 2^(S-1) - 1. */
RT_API uint32_t rt_max_skew(rt_layout layout);
/* Steps after which the tag comes again: 2^S. */
RT_API uint32_t rt_wraps_after(rt_layout layout);
/* The layout that a pool of k queue pairs needs (S = log2 k).
 * EINVAL: k is no power of two from 4 to 16384. */
RT_API int rt_pool_layout(uint32_t k, rt_layout* layout);
/* Which of a pool's queue pairs carries a step: step mod k. */
RT_API uint32_t rt_pool_index(uint32_t k, uint64_t step);

/* -- What a NIC can do ---------------------------------------------------------------------- */

enum {
    RT_CAP_VERBS = 1 << 0,          /* libibverbs.so.1 is there, with what is needed of it */
    RT_CAP_MLX5 = 1 << 1,           /* libmlx5.so.1 is there */
    RT_CAP_SETTER = 1 << 2,         /* ... with mlx5dv_modify_qp_udp_sport (rdma-core 33) */
    RT_CAP_DEVICE = 1 << 3,         /* the device is there and could be opened */
    RT_CAP_MLX5_DEVICE = 1 << 4,    /* it is driven by mlx5 */
    RT_CAP_ETHERNET = 1 << 5,       /* its port's link layer is Ethernet */
    RT_CAP_ROCE_V2 = 1 << 6,        /* the port has a GID of RoCE v2 */
    RT_CAP_ACTIVE = 1 << 7,         /* the port is up (not needed to tag) */
    RT_CAP_FIRMWARE_KNOWN = 1 << 8, /* the firmware said whether it can change ports in RTS */
    RT_CAP_FIRMWARE = 1 << 9,       /* ... and it can (rts2rts_qp_udp_sport) */
    RT_CAP_RANGE_KNOWN = 1 << 10,   /* min_sport and max_sport are the device's */
    RT_CAP_RANGE = 1 << 11          /* ... and hold all of 0xC000 to 0xFFFF */
};

typedef struct {
    uint32_t flags;
    uint16_t min_sport; /* 0: not known */
    uint16_t max_sport;
    uint32_t port;
    char device[64];
    char text[2048]; /* a line per finding: "ok  ...", "no  ..." or "?   ...", with what to do */
} rt_capabilities;

/* Probe "mlx5_0" or "mlx5_0:1" (port 1 if none is named); NULL or "": the first device that can
 * tag, else the first of all. What is missing is a finding, not an error.
 * EINVAL: no room for the answer, or the port is no number from 1 to 255. */
RT_API int rt_probe(const char* device, rt_capabilities* capabilities);
/* The same of a device that is open, and of one of its ports. */
RT_API int rt_probe_context(struct ibv_context* context, uint32_t port,
                            rt_capabilities* capabilities);
/* Whether queue pairs there can be tagged: nothing needed is missing, nothing known is against. */
RT_API int rt_can_tag(uint32_t flags);

/* -- Tagging -------------------------------------------------------------------------------- */

typedef struct rt_tagger rt_tagger;

/* EINVAL: layout or job tag. ENOENT: rdma-core is missing or too old. ENOMEM. */
RT_API int rt_tagger_create(rt_tagger** tagger, rt_layout layout, uint32_t job_tag);
RT_API void rt_tagger_destroy(rt_tagger* tagger);

/* port_per_step: have what is sent on qp from now on carry the port of step. One firmware command,
 * unless the port is that already. Post the messages of the step after this returns, and have those
 * of the step before complete first: what is in the send queue may leave with the new port.
 * EOPNOTSUPP: the queue pair is not RC or UC in RTS, or the NIC cannot. Else what the command
 * ended with. After an error the port is taken to be unknown. */
RT_API int rt_set_step(rt_tagger* tagger, struct ibv_qp* qp, uint64_t step);

/* qp_pool: give each of k queue pairs, all of them in RTS, its port, once; step s is then sent on
 * qps[rt_pool_index(k, s)]. All are checked before the first is touched; after an error that came
 * later, calling again goes on where it ended.
 * EINVAL: k is not 2^S of the layout, or a queue pair is missing or named twice. Else as above. */
RT_API int rt_pool_preset(rt_tagger* tagger, struct ibv_qp* const* qps, uint32_t k);

/* Forget what port qp has: call it when a queue pair is destroyed, or leaves RTS. */
RT_API void rt_forget(rt_tagger* tagger, struct ibv_qp* qp);

typedef struct {
    uint64_t calls;   /* firmware commands, failed ones included */
    uint64_t skipped; /* steps whose port was set already */
    uint64_t failed;
    uint64_t min_ns; /* time of a command that succeeded; 0 where there was none */
    uint64_t median_ns; /* of the last 1,024 */
    uint64_t max_ns;
} rt_cost;

RT_API void rt_get_cost(rt_tagger* tagger, rt_cost* cost);

/* What a command costs on this machine: sets `count` ports, 1 to 16384, of a queue pair that is
 * made for it, connected to itself and never sent on. The device as for rt_probe, but it has to be
 * named. EOPNOTSUPP: it cannot tag (rt_probe says why). Else what failed. */
RT_API int rt_measure(const char* device, uint32_t count, rt_cost* cost);

#ifdef __cplusplus
}
#endif
#endif
