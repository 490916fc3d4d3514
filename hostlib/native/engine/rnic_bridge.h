/* Between the engine and the software RNIC of ringstep.hostlib, on one SOCK_STREAM Unix socket per
 * connection of a pair of ranks. The RNIC's process (python -m ringstep.hostlib.bridge) listens.
 *
 * 1. The engine sends rb_open; the bridge creates a queue pair and answers rb_opened with its
 *    endpoint (opaque: address, queue pair number, PSN).
 * 2. The ranks exchange endpoints over the engine's control connections.
 * 3. The engine sends rb_connect with the peer's endpoint; the bridge answers rb_connected.
 * 4. Both directions now carry messages: rb_message, then `length` bytes. The bridge sends each as
 *    one RC WRITE (its last packet ends the step), tagged with the step unless it is
 *    RB_UNTAGGED, and the other bridge hands the same message to its engine. A bridge that
 *    cannot go on closes the socket; so does an engine that is done. */
#ifndef RINGSTEP_RNIC_BRIDGE_H
#define RINGSTEP_RNIC_BRIDGE_H

#include <stdint.h>

#define RB_MAGIC UINT32_C(0x31425352) /* "RSB1" */
#define RB_UNTAGGED UINT32_C(0xFFFFFFFF)
#define RB_MAX_MESSAGE UINT32_C(0x4000000) /* 64 MiB */

typedef struct {
    uint32_t magic;
    uint32_t kind; /* 1 */
    uint64_t comm_id;
    uint32_t rank;
    uint32_t peer;
    uint32_t channel;
    uint32_t reserved;
} rb_open;

typedef struct {
    uint32_t magic;
    uint32_t status; /* 0, else errno */
    uint8_t endpoint[64];
} rb_opened;

typedef struct {
    uint32_t magic;
    uint32_t kind; /* 2 */
    uint8_t endpoint[64];
} rb_connect;

typedef struct {
    uint32_t magic;
    uint32_t status; /* 0, else errno */
} rb_connected;

typedef struct {
    uint32_t length; /* of what follows; 1 to RB_MAX_MESSAGE */
    uint32_t step;   /* of the job's life (mod 2^32 - 1), or RB_UNTAGGED: credits, trees, control */
} rb_message;

#endif
