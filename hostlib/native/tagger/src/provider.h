/* rdma-core, or what stands in for it. */
#ifndef RINGSTEP_TAG_PROVIDER_H
#define RINGSTEP_TAG_PROVIDER_H

#include "verbs_abi.h"

typedef struct {
    void* verbs; /* handles of dlopen; NULL: not there, and why in the texts */
    void* mlx5;
    const char* verbs_name;
    const char* mlx5_name;
    char verbs_error[256];
    char mlx5_error[256];

    rv_get_device_list* get_device_list;
    rv_free_device_list* free_device_list;
    rv_get_device_name* get_device_name;
    rv_open_device* open_device;
    rv_close_device* close_device;
    rv_query_port* query_port;
    rv_query_gid_ex* query_gid_ex; /* NULL before rdma-core 33 */
    rv_alloc_pd* alloc_pd;
    rv_dealloc_pd* dealloc_pd;
    rv_create_cq* create_cq;
    rv_destroy_cq* destroy_cq;
    rv_create_qp* create_qp;
    rv_modify_qp* modify_qp;
    rv_destroy_qp* destroy_qp;
    rv_is_supported* is_supported;
    rv_general_cmd* general_cmd;       /* NULL: too old */
    rv_modify_udp_sport* modify_sport; /* NULL: too old */
} rt_provider;

/* Load what is there; never fails as a whole. */
void rt_provider_load(rt_provider* provider);
void rt_provider_unload(rt_provider* provider);
/* Whether what a probe needs of libibverbs is there. */
int rt_provider_has_verbs(const rt_provider* provider);
/* Find the first GID of RoCE v2 of a port with so many; returns its index, or -1. */
int rt_provider_roce_v2(const rt_provider* provider, struct ibv_context* context, uint32_t port,
                        int count, struct rv_gid_entry* entry);

#endif
