/* The record of calls, and faults by number. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"

enum { MOST = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mock_call* record;
static uint64_t n_recorded;
static uint64_t n_set;

static const char* kind_name(mock_kind kind) {
    static const char* const names[] = {"?",
                                        "ibv_open_device",
                                        "ibv_create_qp",
                                        "ibv_modify_qp",
                                        "ibv_destroy_qp",
                                        "mlx5dv_modify_qp_udp_sport",
                                        "mlx5dv_devx_general_cmd",
                                        "ibv_close_device"};
    return names[kind];
}

void mock_record(mock_kind kind, uint32_t qp_num, uint32_t argument, int result) {
    pthread_mutex_lock(&lock);
    if (record == NULL) {
        record = calloc(MOST, sizeof(*record));
    }
    if (record != NULL) {
        /* The last place is used again: the count still tells. */
        uint64_t at = n_recorded < MOST ? n_recorded : MOST - 1;
        record[at] = (mock_call){kind, qp_num, argument, result};
    }
    n_recorded++;
    const char* path = getenv("RINGSTEP_MOCK_LOG");
    if (path != NULL && *path) {
        FILE* file = fopen(path, "a");
        if (file != NULL) {
            fprintf(file, "%s qp=%#x argument=%#x result=%d\n", kind_name(kind), qp_num, argument,
                    result);
            fclose(file);
        }
    }
    pthread_mutex_unlock(&lock);
}

int mock_next_fault(void) {
    pthread_mutex_lock(&lock);
    unsigned long number = ++n_set;
    pthread_mutex_unlock(&lock);
    const char* at = getenv("RINGSTEP_MOCK_FAIL");
    while (at != NULL && *at) {
        char* end = NULL;
        unsigned long which = strtoul(at, &end, 10);
        if (*end != ':') {
            break;
        }
        int result = (int)strtol(end + 1, &end, 10);
        if (which == number) {
            return result;
        }
        at = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

uint64_t rt_mock_calls(mock_call* calls, uint64_t room) {
    pthread_mutex_lock(&lock);
    uint64_t count = n_recorded;
    uint64_t copied = count < MOST ? count : MOST;
    copied = copied < room ? copied : room;
    if (copied && calls != NULL && record != NULL) {
        memcpy(calls, record, copied * sizeof(*calls));
    }
    pthread_mutex_unlock(&lock);
    return count;
}

void rt_mock_reset(void) {
    pthread_mutex_lock(&lock);
    free(record);
    record = NULL;
    n_recorded = 0;
    n_set = 0;
    pthread_mutex_unlock(&lock);
}
