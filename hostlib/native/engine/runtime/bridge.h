// The engine's side of the software RNIC (rnic_bridge.h): one Unix socket per queue pair.
#pragma once

#include <cstdint>
#include <string>

#include "rnic_bridge.h"
#include "runtime/socket.h"

namespace ringstep {

// A queue pair that is not connected yet.
struct BridgeQueue {
    Fd fd;
    std::uint8_t endpoint[sizeof rb_opened::endpoint];
};

BridgeQueue open_queue(const std::string& path, const rb_open& open, std::uint64_t deadline_ns);
void connect_queue(int fd, const std::uint8_t* peers_endpoint, std::uint64_t deadline_ns);

}  // namespace ringstep
