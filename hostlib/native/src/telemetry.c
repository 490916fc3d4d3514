/* The telemetry ring: one producing process, any number of its threads, any number of readers. */
#define _GNU_SOURCE
#include <time.h>

#include "core.h"

void rs_ring_write(rs_proc* proc, const rs_record* record) {
    const uint64_t number = rs_add(&proc->head, 1);
    rs_record* slot = &proc->slots[number % RS_RING_SLOTS];
    uint64_t words[8];
    __builtin_memcpy(words, record, sizeof words);
    uint64_t* target = (uint64_t*)(void*)slot;
    rs_store(&slot->seq, 2 * number + 1);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (int i = 1; i < 8; ++i) rs_store(&target[i], words[i]);
    rs_store_release(&slot->seq, 2 * number + 2);
}

uint64_t rs_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
