/* What a NIC can do, each finding in words. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"
#include "ringstep_tag.h"
#include "text.h"

static void say(rt_capabilities* found, const char* mark, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(rt_capabilities* found, const char* mark, const char* format, ...) {
    size_t used = strlen(found->text);
    size_t room = sizeof(found->text) - used;
    int wrote = snprintf(found->text + used, room, "%s%-4s", used ? "\n" : "", mark);
    if (wrote < 0 || (size_t)wrote >= room) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(found->text + used + wrote, room - (size_t)wrote, format, arguments);
    va_end(arguments);
}

static void probe_libraries(const rt_provider* provider, rt_capabilities* found) {
    if (provider->verbs == NULL) {
        say(found, "no", "%s: %s; apt-get install libibverbs1 (rdma-core)", provider->verbs_name,
            provider->verbs_error);
    } else if (!rt_provider_has_verbs(provider)) {
        say(found, "no", "%s lacks symbols of libibverbs 1.1; is it libibverbs?",
            provider->verbs_name);
    } else {
        found->flags |= RT_CAP_VERBS;
        say(found, "ok", "%s", provider->verbs_name);
    }
    if (provider->mlx5 == NULL) {
        say(found, "no", "%s: %s; apt-get install ibverbs-providers", provider->mlx5_name,
            provider->mlx5_error);
        return;
    }
    found->flags |= RT_CAP_MLX5;
    if (provider->modify_sport == NULL || provider->is_supported == NULL) {
        say(found, "no",
            "%s lacks mlx5dv_modify_qp_udp_sport (MLX5_1.17); install rdma-core 33 or newer",
            provider->mlx5_name);
        return;
    }
    found->flags |= RT_CAP_SETTER;
    say(found, "ok", "%s with mlx5dv_modify_qp_udp_sport", provider->mlx5_name);
}

static void probe_port(const rt_provider* provider, struct ibv_context* context,
                       rt_capabilities* found) {
    /* A library older than this structure writes less of it, a newer one no more: the exported
     * symbol is bound to the members up to link_layer. */
    struct rv_port_attr attr;
    memset(&attr, 0, sizeof(attr));
    int status = provider->query_port(context, (uint8_t)found->port, &attr);
    if (status) {
        say(found, "no", "port %u of %s cannot be asked: %s; does it have that port?", found->port,
            found->device, strerror(status > 0 ? status : errno));
        return;
    }
    if (attr.link_layer != RV_LINK_ETHERNET) {
        say(found, "no",
            "port %u is InfiniBand: there are no UDP ports; set the link type to Ethernet "
            "(mlxconfig LINK_TYPE_P%u=2)",
            found->port, found->port);
    } else {
        found->flags |= RT_CAP_ETHERNET;
        say(found, "ok", "port %u is Ethernet", found->port);
    }
    if (attr.state == RV_PORT_ACTIVE || attr.state == RV_PORT_ACTIVE_DEFER) {
        found->flags |= RT_CAP_ACTIVE;
        say(found, "ok", "port %u is up", found->port);
    } else {
        say(found, "?", "port %u is down; it may be tagged once it is up", found->port);
    }
    if (provider->query_gid_ex == NULL) {
        say(found, "no", "%s cannot tell the types of GIDs; install rdma-core 33 or newer",
            provider->verbs_name);
        return;
    }
    struct rv_gid_entry entry;
    int index = rt_provider_roce_v2(provider, context, found->port, attr.gid_tbl_len, &entry);
    if (index >= 0) {
        found->flags |= RT_CAP_ROCE_V2;
        say(found, "ok", "GID %d of port %u is of RoCE v2", index, found->port);
        return;
    }
    say(found, "no",
        "port %u has no GID of RoCE v2: give its network interface an IP address, and see that "
        "RoCE v2 is allowed (/sys/class/infiniband/%s/ports/%u/gid_attrs/types)",
        found->port, found->device, found->port);
}

/* Return 0 and the capabilities of one kind, or an errno. */
static int query_caps(const rt_provider* provider, struct ibv_context* context, int kind,
                      unsigned char* out) {
    unsigned char in[RV_CMD_IN_BYTES] = {RV_CMD_QUERY_HCA_CAP >> 8, RV_CMD_QUERY_HCA_CAP & 0xFF,
                                         0, 0, 0, 0, 0, (unsigned char)kind};
    memset(out, 0, RV_CMD_OUT_BYTES);
    int status = provider->general_cmd(context, in, sizeof(in), out, RV_CMD_OUT_BYTES);
    if (status) {
        return status > 0 ? status : errno;
    }
    return out[0] ? EREMOTEIO : 0;
}

static void probe_firmware(const rt_provider* provider, struct ibv_context* context,
                           rt_capabilities* found) {
    if (provider->general_cmd == NULL) {
        say(found, "?", "%s cannot ask the firmware; install rdma-core 33 or newer",
            provider->mlx5_name);
        return;
    }
    unsigned char* out = malloc(RV_CMD_OUT_BYTES);
    if (out == NULL) {
        say(found, "?", "out of memory");
        return;
    }
    const unsigned char* caps = out + RV_CMD_CAPS_AT;
    int status = query_caps(provider, context, RV_CAP_GENERAL, out);
    if (status) {
        say(found, "?",
            "the firmware does not say whether it can change ports: %s; user contexts need DEVX "
            "(mlx5_ib of Linux 5.1 or newer)",
            strerror(status));
    } else {
        found->flags |= RT_CAP_FIRMWARE_KNOWN;
        if (caps[RV_GENERAL_RTS2RTS_BYTE] & RV_GENERAL_RTS2RTS_BIT) {
            found->flags |= RT_CAP_FIRMWARE;
            say(found, "ok", "the firmware can change ports in RTS (rts2rts_qp_udp_sport)");
        } else {
            say(found, "no",
                "the firmware cannot change ports in RTS (rts2rts_qp_udp_sport); update it");
        }
    }
    status = query_caps(provider, context, RV_CAP_ROCE, out);
    uint16_t most = (uint16_t)(caps[RV_ROCE_MAX_SPORT_BYTE] << 8 | caps[RV_ROCE_MAX_SPORT_BYTE + 1]);
    uint16_t least =
        (uint16_t)(caps[RV_ROCE_MIN_SPORT_BYTE] << 8 | caps[RV_ROCE_MIN_SPORT_BYTE + 1]);
    if (status || most == 0) {
        say(found, "?", "the range of source ports is not known; 0xC000 to 0xFFFF is usual");
    } else {
        found->flags |= RT_CAP_RANGE_KNOWN;
        found->min_sport = least;
        found->max_sport = most;
        if (least <= RT_SPORT_BASE && most == 0xFFFF) {
            found->flags |= RT_CAP_RANGE;
            say(found, "ok", "source ports from %u to %u", least, most);
        } else {
            say(found, "no", "source ports from %u to %u: the tag needs all from 49152 to 65535",
                least, most);
        }
    }
    free(out);
}

static void probe_open(const rt_provider* provider, struct ibv_context* context,
                       rt_capabilities* found) {
    found->flags |= RT_CAP_DEVICE;
    if (provider->is_supported == NULL) {
        return;
    }
    if (!provider->is_supported(context->device)) {
        say(found, "no",
            "%s is not driven by mlx5: nothing sets its ports from software; see docs/tagging.md "
            "for other NICs",
            found->device);
        probe_port(provider, context, found);
        return;
    }
    found->flags |= RT_CAP_MLX5_DEVICE;
    say(found, "ok", "%s is driven by mlx5", found->device);
    probe_port(provider, context, found);
    probe_firmware(provider, context, found);
}

static void name_it(const rt_provider* provider, struct ibv_device* device,
                    rt_capabilities* found) {
    const char* name = provider->get_device_name(device);
    snprintf(found->device, sizeof(found->device), "%s", name == NULL ? "?" : name);
}

int rt_probe_context(struct ibv_context* context, uint32_t port, rt_capabilities* capabilities) {
    if (capabilities == NULL || context == NULL) {
        return rt_fail(EINVAL, "no %s was given",
                       context == NULL ? "device context" : "place for the findings");
    }
    memset(capabilities, 0, sizeof(*capabilities));
    if (port < 1 || port > 255) {
        return rt_fail(EINVAL, "port %u: ports count from 1 to 255", port);
    }
    capabilities->port = port;
    rt_provider provider;
    rt_provider_load(&provider);
    probe_libraries(&provider, capabilities);
    if (capabilities->flags & RT_CAP_VERBS) {
        name_it(&provider, context->device, capabilities);
        probe_open(&provider, context, capabilities);
    }
    rt_provider_unload(&provider);
    return 0;
}

/* Probe one device beyond the libraries, which are in `found` already. */
static void probe_device(const rt_provider* provider, struct ibv_device* device,
                         rt_capabilities* found) {
    name_it(provider, device, found);
    struct ibv_context* context = provider->open_device(device);
    if (context == NULL) {
        say(found, "no", "%s cannot be opened: %s; may this user open /dev/infiniband/uverbs*?",
            found->device, strerror(errno));
        return;
    }
    probe_open(provider, context, found);
    provider->close_device(context);
}

static void probe_list(const rt_provider* provider, const char* wanted, rt_capabilities* found) {
    int count = 0;
    struct ibv_device** list = provider->get_device_list(&count);
    if (list == NULL || count <= 0) {
        say(found, "no",
            "no RDMA device here (%s); is the NIC's driver loaded (modprobe mlx5_ib), and "
            "/dev/infiniband visible in this container?",
            list == NULL ? strerror(errno) : "the list is empty");
        if (list != NULL) {
            provider->free_device_list(list);
        }
        return;
    }
    rt_capabilities first;
    int have_first = 0;
    int done = 0;
    for (int index = 0; index < count && !done; index++) {
        const char* name = provider->get_device_name(list[index]);
        if (*wanted && (name == NULL || strcmp(name, wanted) != 0)) {
            continue;
        }
        rt_capabilities one = *found;
        probe_device(provider, list[index], &one);
        done = *wanted || rt_can_tag(one.flags);
        if (done || !have_first) {
            first = one;
            have_first = 1;
        }
    }
    if (have_first) {
        *found = first;
    } else {
        char names[512] = "";
        for (int index = 0; index < count; index++) {
            const char* name = provider->get_device_name(list[index]);
            size_t used = strlen(names);
            snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "",
                     name == NULL ? "?" : name);
        }
        snprintf(found->device, sizeof(found->device), "%s", wanted);
        say(found, "no", "no device %s here; there are: %s", wanted, names);
    }
    provider->free_device_list(list);
}

int rt_probe(const char* device, rt_capabilities* capabilities) {
    if (capabilities == NULL) {
        return rt_fail(EINVAL, "no place for the findings was given");
    }
    memset(capabilities, 0, sizeof(*capabilities));
    char wanted[sizeof(capabilities->device)] = "";
    unsigned long port = 1;
    if (device != NULL) {
        const char* colon = strchr(device, ':');
        size_t length = colon == NULL ? strlen(device) : (size_t)(colon - device);
        if (length >= sizeof(wanted)) {
            return rt_fail(EINVAL, "a device's name has at most %zu letters", sizeof(wanted) - 1);
        }
        memcpy(wanted, device, length);
        if (colon != NULL) {
            char* end = NULL;
            port = strtoul(colon + 1, &end, 10);
            if (colon[1] < '0' || colon[1] > '9' || *end || port < 1 || port > 255) {
                return rt_fail(EINVAL, "device %s: the port after the colon must be 1 to 255",
                               device);
            }
        }
    }
    capabilities->port = (uint32_t)port;
    rt_provider provider;
    rt_provider_load(&provider);
    probe_libraries(&provider, capabilities);
    if (capabilities->flags & RT_CAP_VERBS) {
        probe_list(&provider, wanted, capabilities);
    }
    rt_provider_unload(&provider);
    return 0;
}

int rt_can_tag(uint32_t flags) {
    const uint32_t needed = RT_CAP_VERBS | RT_CAP_MLX5 | RT_CAP_SETTER | RT_CAP_DEVICE |
                            RT_CAP_MLX5_DEVICE | RT_CAP_ETHERNET | RT_CAP_ROCE_V2;
    if ((flags & needed) != needed) {
        return 0;
    }
    if (flags & RT_CAP_FIRMWARE_KNOWN && !(flags & RT_CAP_FIRMWARE)) {
        return 0;
    }
    return !(flags & RT_CAP_RANGE_KNOWN) || flags & RT_CAP_RANGE;
}
