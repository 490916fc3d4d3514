/* A stand-in for libibverbs and libmlx5 that records every call. It has the same symbols, keeps
 * the rules of the queue pairs' states, and fails where the environment says so:
 *
 * RINGSTEP_MOCK_DEVICES   NAME=KIND, separated by commas; KIND is mlx5, mlx5-ib (InfiniBand),
 *                         mlx5-roce1 (no GID of RoCE v2), mlx5-down, mlx5-closed (cannot be opened)
 *                         or rxe [mlx5_0=mlx5]; "" for none
 * RINGSTEP_MOCK_FIRMWARE  0: without rts2rts_qp_udp_sport; errno:N: every firmware command ends so
 *                         [1: all there]
 * RINGSTEP_MOCK_RANGE     LEAST-MOST source port [49152-65535]
 * RINGSTEP_MOCK_FAIL      N:ERRNO, separated by commas: the N-th call of
 *                         mlx5dv_modify_qp_udp_sport since the last reset ends so
 * RINGSTEP_MOCK_DELAY_US  how long such a call takes
 * RINGSTEP_MOCK_LOG       file to which a line per call is appended */
#ifndef RINGSTEP_MOCK_H
#define RINGSTEP_MOCK_H

#include <pthread.h>
#include <stdint.h>

#include "verbs_abi.h"

#define MOCK_API __attribute__((visibility("default")))

typedef enum {
    MOCK_OPEN = 1,
    MOCK_CREATE_QP = 2,
    MOCK_MODIFY_QP = 3,  /* argument: the state wanted */
    MOCK_DESTROY_QP = 4,
    MOCK_SET_SPORT = 5,  /* argument: the port */
    MOCK_FIRMWARE = 6,   /* argument: kind of capabilities */
    MOCK_CLOSE = 7
} mock_kind;

typedef struct {
    uint32_t kind;
    uint32_t qp_num; /* 0: of no queue pair */
    uint32_t argument;
    int32_t result; /* 0 or an errno */
} mock_call;

/* Calls since the last reset, oldest first: writes at most `room`, returns how many there were. */
MOCK_API uint64_t rt_mock_calls(mock_call* calls, uint64_t room);
/* Forget the calls. */
MOCK_API void rt_mock_reset(void);
/* The port that a queue pair sends from; 0: none was set. */
MOCK_API uint32_t rt_mock_sport(const struct ibv_qp* qp);
/* Bring a fresh queue pair to RTS, with the least that ibv_modify_qp asks for; 0 or an errno. */
MOCK_API int rt_mock_to_rts(struct ibv_qp* qp);

typedef enum { KIND_MLX5, KIND_IB, KIND_ROCE1, KIND_DOWN, KIND_CLOSED, KIND_RXE } device_kind;

struct ibv_device {
    char name[64];
    device_kind kind;
};

typedef struct {
    struct ibv_context base;
    char rest[512]; /* of the real structure, which an application may look into */
    struct ibv_device device;
} mock_context;

typedef struct {
    struct ibv_qp base;
    char rest[128]; /* mutex, condition and counter of the real structure */
    uint32_t sport;
} mock_qp;

void mock_record(mock_kind kind, uint32_t qp_num, uint32_t argument, int result);
/* The result that the environment has for the next call that sets a port. */
int mock_next_fault(void);

#endif
