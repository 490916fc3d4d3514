/* The profiler part, without any ABI in it. */
#ifndef RINGSTEP_EVENTS_H
#define RINGSTEP_EVENTS_H

#include "core.h"
#include "nccl_profiler_abi.h"

/* What the start of an event says, whichever ABI said it. */
typedef struct {
    uint64_t type; /* RS_EV_* */
    void* parent;  /* of a collective: its API call, where the ABI has those */
    const rs_prof_coll_v4* coll;
    uint32_t channel;
    uint64_t p_timer;
    bool captured;
    bool send;
    bool foreign; /* the operation of another process */
} rs_start;

/* Bits that NCCL should report, as RINGSTEP_PROFILE says now: `light` leaves out what happens
 * inside of collectives. */
int rs_events_mask(void);
/* *handle becomes NULL where the event is not followed. */
void rs_event_start(void* context, void** handle, const rs_start* start);
void rs_event_stop(void* handle);
void rs_event_record(void* handle, int state, const rs_prof_state_args* args);
/* Closes what a communicator that goes away left open. */
void rs_events_flush(uint32_t comm_index, uint32_t rank);

#endif
