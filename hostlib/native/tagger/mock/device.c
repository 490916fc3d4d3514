/* Devices, ports, GIDs and the firmware's capabilities. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mock.h"

enum { GIDS = 4 };

MOCK_API struct ibv_device** ibv_get_device_list(int* count);
MOCK_API void ibv_free_device_list(struct ibv_device** list);
MOCK_API const char* ibv_get_device_name(struct ibv_device* device);
MOCK_API struct ibv_context* ibv_open_device(struct ibv_device* device);
MOCK_API int ibv_close_device(struct ibv_context* context);
MOCK_API int ibv_query_port(struct ibv_context* context, uint8_t port, struct rv_port_attr* attr);
MOCK_API int _ibv_query_gid_ex(struct ibv_context* context, uint32_t port, uint32_t index,
                               struct rv_gid_entry* entry, uint32_t flags, size_t entry_size);
MOCK_API _Bool mlx5dv_is_supported(struct ibv_device* device);
MOCK_API int mlx5dv_devx_general_cmd(struct ibv_context* context, const void* in, size_t in_bytes,
                                     void* out, size_t out_bytes);

static device_kind kind_of(const char* text) {
    static const char* const names[] = {"mlx5",      "mlx5-ib",     "mlx5-roce1",
                                        "mlx5-down", "mlx5-closed", "rxe"};
    for (int kind = KIND_MLX5; kind <= KIND_RXE; kind++) {
        if (strcmp(text, names[kind]) == 0) {
            return (device_kind)kind;
        }
    }
    return KIND_RXE;
}

struct ibv_device** ibv_get_device_list(int* count) {
    const char* set = getenv("RINGSTEP_MOCK_DEVICES");
    char text[1024];
    snprintf(text, sizeof(text), "%s", set == NULL ? "mlx5_0=mlx5" : set);
    struct ibv_device** list = calloc(65, sizeof(struct ibv_device*));
    if (list == NULL) {
        return NULL;
    }
    int found = 0;
    char* rest = NULL;
    for (char* one = strtok_r(text, ",", &rest); one != NULL && found < 64;
         one = strtok_r(NULL, ",", &rest)) {
        struct ibv_device* device = calloc(1, sizeof(*device));
        if (device == NULL) {
            break;
        }
        char* equals = strchr(one, '=');
        if (equals != NULL) {
            *equals = '\0';
        }
        device->kind = kind_of(equals == NULL ? "mlx5" : equals + 1);
        snprintf(device->name, sizeof(device->name), "%s", one);
        list[found++] = device;
    }
    if (count != NULL) {
        *count = found;
    }
    return list;
}

void ibv_free_device_list(struct ibv_device** list) {
    for (int index = 0; list[index] != NULL; index++) {
        free(list[index]);
    }
    free(list);
}

const char* ibv_get_device_name(struct ibv_device* device) { return device->name; }

struct ibv_context* ibv_open_device(struct ibv_device* device) {
    if (device->kind == KIND_CLOSED) {
        mock_record(MOCK_OPEN, 0, 0, EACCES);
        errno = EACCES;
        return NULL;
    }
    mock_context* context = calloc(1, sizeof(*context));
    if (context == NULL) {
        return NULL;
    }
    /* An open device outlives the list that it came from. */
    context->device = *device;
    context->base.device = &context->device;
    mock_record(MOCK_OPEN, 0, 0, 0);
    return &context->base;
}

int ibv_close_device(struct ibv_context* context) {
    mock_record(MOCK_CLOSE, 0, 0, 0);
    free(context);
    return 0;
}

int ibv_query_port(struct ibv_context* context, uint8_t port, struct rv_port_attr* attr) {
    if (port != 1) {
        return EINVAL;
    }
    device_kind kind = context->device->kind;
    memset(attr, 0, offsetof(struct rv_port_attr, flags));
    attr->state = kind == KIND_DOWN ? 1 : RV_PORT_ACTIVE;
    attr->max_mtu = attr->active_mtu = 5;
    attr->gid_tbl_len = GIDS;
    attr->link_layer = kind == KIND_IB ? RV_LINK_INFINIBAND : RV_LINK_ETHERNET;
    return 0;
}

int _ibv_query_gid_ex(struct ibv_context* context, uint32_t port, uint32_t index,
                      struct rv_gid_entry* entry, uint32_t flags, size_t entry_size) {
    if (port != 1 || index >= GIDS || flags || entry_size < sizeof(*entry)) {
        return EINVAL;
    }
    device_kind kind = context->device->kind;
    if (index >= 2) {
        return ENODATA;
    }
    memset(entry, 0, sizeof(*entry));
    entry->gid_index = index;
    entry->port_num = port;
    if (kind == KIND_IB) {
        entry->gid_type = RV_GID_IB;
    } else if (index == 0 || kind == KIND_ROCE1) {
        entry->gid_type = RV_GID_ROCE_V1;
    } else {
        entry->gid_type = RV_GID_ROCE_V2;
    }
    return 0;
}

_Bool mlx5dv_is_supported(struct ibv_device* device) { return device->kind != KIND_RXE; }

static void put16(unsigned char* at, unsigned value) {
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

static int general(const char* firmware, const unsigned char* in, size_t in_bytes,
                   unsigned char* out, size_t out_bytes) {
    if (in_bytes < RV_CMD_IN_BYTES || out_bytes < RV_CMD_OUT_BYTES ||
        (in[0] << 8 | in[1]) != RV_CMD_QUERY_HCA_CAP) {
        return EINVAL;
    }
    if (firmware != NULL && strncmp(firmware, "errno:", 6) == 0) {
        return atoi(firmware + 6);
    }
    memset(out, 0, out_bytes);
    unsigned char* caps = out + RV_CMD_CAPS_AT;
    int kind = in[6] << 8 | in[7];
    if (kind == RV_CAP_GENERAL) {
        if (firmware == NULL || strcmp(firmware, "0") != 0) {
            caps[RV_GENERAL_RTS2RTS_BYTE] = RV_GENERAL_RTS2RTS_BIT;
        }
    } else if (kind == RV_CAP_ROCE) {
        unsigned least = 49152;
        unsigned most = 65535;
        const char* range = getenv("RINGSTEP_MOCK_RANGE");
        if (range != NULL) {
            (void)sscanf(range, "%u-%u", &least, &most);
        }
        put16(caps + RV_ROCE_MIN_SPORT_BYTE, least);
        put16(caps + RV_ROCE_MAX_SPORT_BYTE, most);
    } else {
        out[0] = 3; /* BAD_PARAM */
    }
    return 0;
}

int mlx5dv_devx_general_cmd(struct ibv_context* context, const void* in, size_t in_bytes, void* out,
                            size_t out_bytes) {
    const unsigned char* command = in;
    int status = context->device->kind == KIND_RXE
                     ? EOPNOTSUPP
                     : general(getenv("RINGSTEP_MOCK_FIRMWARE"), command, in_bytes, out, out_bytes);
    mock_record(MOCK_FIRMWARE, 0, in_bytes >= 8 ? (uint32_t)(command[6] << 8 | command[7]) : 0,
                status);
    return status;
}
