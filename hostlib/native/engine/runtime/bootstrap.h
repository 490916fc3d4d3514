// How the ranks of a communicator find one another: all connect to rank 0, which gathers who is
// where and tells all. These connections stay, as the control connections.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core.h"
#include "runtime/socket.h"

namespace ringstep {

// Starts to listen on address ("10.0.0.1", "10.0.0.1:29500"; "": 127.0.0.1) in this process. There,
// or in a forked child, rank 0 then has to be created, once. There is no thread: who comes early
// waits in the backlog.
re_unique_id listen_root(const std::string& address);

// The id of a job whose rank 0 listens on host_port when it is created; the same in all processes.
re_unique_id root_of(const std::string& host_port);

struct Joined {
    std::uint64_t comm_id = 0;
    int n_nodes = 0;
    int max_channels = 0;
    bool bridged = false;
    std::vector<Fd> control;         // of rank 0: by rank, none at 0; else the one to rank 0
    std::vector<Address> addresses;  // where each rank accepts data connections
    Fd listener;                     // own one
};

// Throws Error. config: as the application gave it, 0s and NULLs replaced only where documented.
Joined join(const re_unique_id& id, int n_ranks, int rank, const re_config& config,
            std::uint64_t timeout_ns);

}  // namespace ringstep
