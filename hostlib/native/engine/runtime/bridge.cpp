#include "runtime/bridge.h"

#include <cstring>

namespace ringstep {
namespace {

const std::string whom = "the software RNIC";

void check(std::uint32_t magic, std::uint32_t status, const std::string& what) {
    if (magic != RB_MAGIC)
        throw Error(RE_SYSTEM,
                    "what answers on the bridge's socket is no software RNIC of this version");
    if (status != 0)
        throw Error(RE_SYSTEM, whom + " cannot " + what + ": " + std::strerror(int(status)));
}

}  // namespace

BridgeQueue open_queue(const std::string& path, const rb_open& open, std::uint64_t deadline_ns) {
    BridgeQueue queue{connect_unix(path), {}};
    write_all(queue.fd.get(), &open, sizeof open, deadline_ns, whom);
    rb_opened opened;
    read_all(queue.fd.get(), &opened, sizeof opened, deadline_ns, whom);
    check(opened.magic, opened.status, "open a queue pair to rank " + std::to_string(open.peer));
    std::memcpy(queue.endpoint, opened.endpoint, sizeof queue.endpoint);
    return queue;
}

void connect_queue(int fd, const std::uint8_t* peers_endpoint, std::uint64_t deadline_ns) {
    rb_connect connect{RB_MAGIC, 2, {}};
    std::memcpy(connect.endpoint, peers_endpoint, sizeof connect.endpoint);
    write_all(fd, &connect, sizeof connect, deadline_ns, whom);
    rb_connected connected;
    read_all(fd, &connected, sizeof connected, deadline_ns, whom);
    check(connected.magic, connected.status, "connect a queue pair");
}

}  // namespace ringstep
