#define _GNU_SOURCE
#include "provider.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void* load(const char* name, char* error, size_t room) {
    /* Never unloaded: rdma-core's libraries keep state, and the application may hold objects. */
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char* why = dlerror();
        snprintf(error, room, "%s", why == NULL ? "it cannot be loaded" : why);
    }
    return library;
}

/* ISO C has no conversion from void* to a function pointer. */
static void find(void* library, const char* name, const char* version, void* function) {
    void* found = NULL;
    if (library != NULL) {
        /* libibverbs has some symbols twice, the older with other structures. */
        found = dlvsym(library, name, version);
        if (found == NULL) {
            found = dlsym(library, name);
        }
    }
    memcpy(function, &found, sizeof(found));
}

void rt_provider_load(rt_provider* provider) {
    memset(provider, 0, sizeof(*provider));
    const char* stand_in = secure_getenv("RINGSTEP_TAG_PROVIDER");
    if (stand_in != NULL && *stand_in == '\0') {
        stand_in = NULL;
    }
    provider->verbs_name = stand_in == NULL ? "libibverbs.so.1" : "RINGSTEP_TAG_PROVIDER";
    provider->mlx5_name = stand_in == NULL ? "libmlx5.so.1" : "RINGSTEP_TAG_PROVIDER";
    provider->verbs = load(stand_in == NULL ? "libibverbs.so.1" : stand_in, provider->verbs_error,
                           sizeof(provider->verbs_error));
    provider->mlx5 = load(stand_in == NULL ? "libmlx5.so.1" : stand_in, provider->mlx5_error,
                          sizeof(provider->mlx5_error));
    void* verbs = provider->verbs;
    void* mlx5 = provider->mlx5;
    find(verbs, "ibv_get_device_list", "IBVERBS_1.1", &provider->get_device_list);
    find(verbs, "ibv_free_device_list", "IBVERBS_1.1", &provider->free_device_list);
    find(verbs, "ibv_get_device_name", "IBVERBS_1.1", &provider->get_device_name);
    find(verbs, "ibv_open_device", "IBVERBS_1.1", &provider->open_device);
    find(verbs, "ibv_close_device", "IBVERBS_1.1", &provider->close_device);
    find(verbs, "ibv_query_port", "IBVERBS_1.1", &provider->query_port);
    find(verbs, "_ibv_query_gid_ex", "IBVERBS_1.11", &provider->query_gid_ex);
    find(verbs, "ibv_alloc_pd", "IBVERBS_1.1", &provider->alloc_pd);
    find(verbs, "ibv_dealloc_pd", "IBVERBS_1.1", &provider->dealloc_pd);
    find(verbs, "ibv_create_cq", "IBVERBS_1.1", &provider->create_cq);
    find(verbs, "ibv_destroy_cq", "IBVERBS_1.1", &provider->destroy_cq);
    find(verbs, "ibv_create_qp", "IBVERBS_1.1", &provider->create_qp);
    find(verbs, "ibv_modify_qp", "IBVERBS_1.1", &provider->modify_qp);
    find(verbs, "ibv_destroy_qp", "IBVERBS_1.1", &provider->destroy_qp);
    find(mlx5, "mlx5dv_is_supported", "MLX5_1.8", &provider->is_supported);
    find(mlx5, "mlx5dv_devx_general_cmd", "MLX5_1.7", &provider->general_cmd);
    find(mlx5, "mlx5dv_modify_qp_udp_sport", "MLX5_1.17", &provider->modify_sport);
}

void rt_provider_unload(rt_provider* provider) {
    if (provider->verbs != NULL) {
        dlclose(provider->verbs);
    }
    if (provider->mlx5 != NULL) {
        dlclose(provider->mlx5);
    }
    memset(provider, 0, sizeof(*provider));
}

int rt_provider_has_verbs(const rt_provider* provider) {
    return provider->get_device_list != NULL && provider->free_device_list != NULL &&
           provider->get_device_name != NULL && provider->open_device != NULL &&
           provider->close_device != NULL && provider->query_port != NULL &&
           provider->alloc_pd != NULL && provider->dealloc_pd != NULL &&
           provider->create_cq != NULL && provider->destroy_cq != NULL &&
           provider->create_qp != NULL && provider->modify_qp != NULL &&
           provider->destroy_qp != NULL;
}

int rt_provider_roce_v2(const rt_provider* provider, struct ibv_context* context, uint32_t port,
                        int count, struct rv_gid_entry* entry) {
    for (int index = 0; index < count; index++) {
        memset(entry, 0, sizeof(*entry));
        if (provider->query_gid_ex(context, port, (uint32_t)index, entry, 0, sizeof(*entry)) == 0 &&
            entry->gid_type == RV_GID_ROCE_V2) {
            return index;
        }
    }
    return -1;
}
