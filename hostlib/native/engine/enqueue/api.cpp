// The C interface: arguments checked, exceptions turned into codes and a text.
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "enqueue/communicator.h"
#include "enqueue/group.h"
#include "runtime/bootstrap.h"

using namespace ringstep;

namespace {

thread_local std::string last_error;

template <class F>
re_result guarded(const char* function, F&& body) noexcept {
    re_result code = RE_SYSTEM;
    const char* what = "unknown error";
    try {
        try {
            body();
            return RE_OK;
        } catch (const Error& error) {
            last_error = std::string(function) + ": " + error.what();
            return error.code;
        } catch (const std::bad_alloc&) {
            what = "out of memory";
            last_error = std::string(function) + ": " + what;
        } catch (const std::exception& error) {
            last_error = std::string(function) + ": " + error.what();
        }
    } catch (...) {
    }
    return code;
}

[[noreturn]] void refuse(const std::string& what) {
    throw Error(RE_BAD_ARGUMENT, what);
}

void check_given(const void* pointer, const char* name) {
    if (pointer == nullptr) refuse(std::string(name) + " is NULL");
}

void check_config(const re_config& config) {
    if (config.size < sizeof(re_config)) {
        refuse("config.size is " + std::to_string(config.size) + ": sizeof(re_config), " +
               std::to_string(sizeof(re_config)));
    }
    if (!std::isfinite(config.timeout_s) || config.timeout_s < 0) {
        refuse("config.timeout_s: seconds above zero, or 0 for 300");
    }
    if (config.max_channels < 0 || config.max_channels > 8) {
        refuse("config.max_channels is " + std::to_string(config.max_channels) +
               ": 1 to 8, or 0 for 8");
    }
}

// Bytes of `count` elements on each of `ranks` ranks.
std::size_t bytes_of(std::size_t count, re_type type, std::size_t ranks) {
    const std::size_t one = size_of(type) * ranks;
    if (count > std::numeric_limits<std::ptrdiff_t>::max() / one) {
        refuse("count is " + std::to_string(count) + ": more than memory can hold");
    }
    return count * one;
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto from = reinterpret_cast<std::uintptr_t>(a), to = reinterpret_cast<std::uintptr_t>(b);
    return from < to + b_bytes && to < from + a_bytes;
}

struct Sides {
    std::size_t send;
    std::size_t recv;
    const char* in_place;  // what would be right where they overlap
    bool is_in_place;
};

Sides sides_of(const Task& task) {
    const auto n = static_cast<std::size_t>(re_comm_n_ranks(task.comm));
    const auto rank = static_cast<std::size_t>(re_comm_rank(task.comm));
    const std::size_t part = bytes_of(task.count, task.type, 1);
    const std::size_t whole = bytes_of(task.count, task.type, n);
    const auto* send = static_cast<const char*>(task.send);
    const auto* recv = static_cast<const char*>(task.recv);
    switch (task.coll) {
        case RE_ALL_GATHER:
            return {part, whole, "send == recv + rank * count elements",
                    send == recv + rank * part};
        case RE_REDUCE_SCATTER:
            return {whole, part, "recv == send + rank * count elements",
                    recv == send + rank * part};
        default: return {part, part, "send == recv", send == recv};
    }
}

void check(Task& task) {
    check_given(task.comm, "comm");
    if (task.type < RE_INT8 || task.type > RE_BFLOAT16) {
        refuse("type is " + std::to_string(task.type) + ": 0 (RE_INT8) to 9 (RE_BFLOAT16)");
    }
    if (task.op < RE_SUM || task.op > RE_AVG) {
        refuse("op is " + std::to_string(task.op) + ": 0 (RE_SUM) to 4 (RE_AVG)");
    }
    const int n = re_comm_n_ranks(task.comm);
    if (task.root < 0 || task.root >= n) {
        refuse("root is " + std::to_string(task.root) + ": 0 to " + std::to_string(n - 1));
    }
    const Sides sides = sides_of(task);
    task.bytes = std::max(sides.send, sides.recv);
    if (task.count == 0) return;
    // Only the root's send buffer matters in a broadcast.
    const bool sends = task.coll != RE_BROADCAST || task.root == re_comm_rank(task.comm);
    if (sends) check_given(task.send, "send");
    check_given(task.recv, "recv");
    if (sends && !sides.is_in_place && overlap(task.send, sides.send, task.recv, sides.recv)) {
        refuse(std::string("send and recv overlap: in place is ") + sides.in_place);
    }
}

re_result call(const char* function, Task task) noexcept {
    return guarded(function, [&] {
        try {
            check(task);
        } catch (const Error& error) {
            spoil_group(Error(error.code, std::string(function) + ": " + error.what()));
            throw;
        }
        if (task.count == 0) return;
        if (re_comm_n_ranks(task.comm) == 1) {  // nothing to decide, nobody to talk to
            if (task.send != task.recv) std::memcpy(task.recv, task.send, task.bytes);
            return;
        }
        enqueue(task);
    });
}

}  // namespace

const char* re_last_error(void) {
    return last_error.c_str();
}

re_result re_get_unique_id(re_unique_id* id, const char* address) {
    return guarded("re_get_unique_id", [&] {
        check_given(id, "id");
        *id = listen_root(address != nullptr ? address : "");
    });
}

re_result re_unique_id_of(re_unique_id* id, const char* host_port) {
    return guarded("re_unique_id_of", [&] {
        check_given(id, "id");
        check_given(host_port, "host_port");
        *id = root_of(host_port);
    });
}

re_result re_comm_init(re_comm** comm, const re_unique_id* id, int n_ranks, int rank,
                       const re_config* config) {
    return guarded("re_comm_init", [&] {
        check_given(comm, "comm");
        *comm = nullptr;
        check_given(id, "id");
        if (n_ranks < 1) refuse("n_ranks is " + std::to_string(n_ranks) + ": at least 1");
        if (rank < 0 || rank >= n_ranks) {
            refuse("rank is " + std::to_string(rank) + ": 0 to " + std::to_string(n_ranks - 1));
        }
        re_config used = {};
        used.size = sizeof used;
        if (config != nullptr) {
            check_config(*config);
            used = *config;
        }
        *comm = make_communicator(*id, n_ranks, rank, used).release();
    });
}

void re_comm_abort(re_comm* comm) {
    if (comm != nullptr) comm->connections->abort();
}

void re_comm_destroy(re_comm* comm) {
    guarded("re_comm_destroy", [&] {
        forget(comm);
        delete comm;
    });
}

int re_comm_rank(const re_comm* comm) {
    return comm != nullptr ? comm->connections->rank() : -1;
}

int re_comm_n_ranks(const re_comm* comm) {
    return comm != nullptr ? comm->connections->n_ranks() : -1;
}

int re_comm_n_nodes(const re_comm* comm) {
    return comm != nullptr ? comm->connections->n_nodes() : -1;
}

uint64_t re_comm_id(const re_comm* comm) {
    return comm != nullptr ? comm->connections->id() : 0;
}

const char* re_comm_plugins(const re_comm* comm) {
    return comm != nullptr ? comm->description.c_str() : "";
}

re_result re_comm_last_run(const re_comm* comm, re_run* run) {
    return guarded("re_comm_last_run", [&] {
        check_given(comm, "comm");
        check_given(run, "run");
        if (!comm->has_run) refuse("nothing was run on this communicator yet");
        *run = comm->last;
    });
}

re_result re_all_reduce(const void* send, void* recv, size_t count, re_type type, re_op op,
                        re_comm* comm) {
    return call("re_all_reduce", {comm, RE_ALL_REDUCE, type, op, send, recv, count, 0, 0, nullptr});
}

re_result re_all_gather(const void* send, void* recv, size_t count, re_type type, re_comm* comm) {
    return call("re_all_gather",
                {comm, RE_ALL_GATHER, type, RE_SUM, send, recv, count, 0, 0, nullptr});
}

re_result re_reduce_scatter(const void* send, void* recv, size_t count, re_type type, re_op op,
                            re_comm* comm) {
    return call("re_reduce_scatter",
                {comm, RE_REDUCE_SCATTER, type, op, send, recv, count, 0, 0, nullptr});
}

re_result re_broadcast(const void* send, void* recv, size_t count, re_type type, int root,
                       re_comm* comm) {
    return call("re_broadcast",
                {comm, RE_BROADCAST, type, RE_SUM, send, recv, count, root, 0, nullptr});
}

re_result re_group_start(void) {
    return guarded("re_group_start", [] { group_start(); });
}

re_result re_group_end(void) {
    return guarded("re_group_end", [] { group_end(false); });
}

re_result re_group_simulate_end(void) {
    return guarded("re_group_simulate_end", [] { group_end(true); });
}

re_result re_comm_fence(re_comm* comm) {
    return guarded("re_comm_fence", [&] {
        check_given(comm, "comm");
        if (comm->fences) comm->fence.pass(*comm->connections);
    });
}
