// Descriptors, addresses and blocking helpers with a deadline.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core.h"

namespace ringstep {

std::uint64_t now_ns();

constexpr std::uint64_t never = ~std::uint64_t{0};

// Error of the system call that has just failed; `what` says of what.
[[noreturn]] void throw_errno(const std::string& what, re_result code = RE_SYSTEM);

// How many forks lie between the process that loaded the engine and this one.
std::uint32_t fork_generation();

// A descriptor. A forked child has it closed, so that a rank's death is seen by its peers even
// where it leaves children behind.
class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd);
    Fd(Fd&& other) noexcept { *this = std::move(other); }
    Fd& operator=(Fd&& other) noexcept {
        std::swap(fd_, other.fd_);
        std::swap(generation_, other.generation_);
        return *this;
    }
    ~Fd();
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    // For whom it may concern, children included; this object has none any more.
    int release();

  private:
    int fd_ = -1;
    std::uint32_t generation_ = 0;
};

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
    int port() const;
    void set_port(int port);
    std::string host() const;  // numeric
    std::string text() const;  // "10.0.0.1:29500", "[::1]:29500"
};

// "10.0.0.1", "node7:29500", "[::1]:29500"; default_port where none is named.
Address resolve(const std::string& host_port, int default_port);

// Port 0 becomes the one that the system chose. Non-blocking, close-on-exec.
Fd listen_on(Address& address);
Address local_address(int fd);

// Non-blocking socket; throws RE_PEER_LOST where refused, RE_TIMEOUT past the deadline.
Fd connect_to(const Address& address, std::uint64_t deadline_ns, const std::string& whom);
Fd connect_unix(const std::string& path);

// Waits for POLLIN or POLLOUT; false past the deadline.
bool wait_for(int fd, short events, std::uint64_t deadline_ns);
void read_all(int fd, void* data, std::size_t size, std::uint64_t deadline_ns,
              const std::string& whom);
void write_all(int fd, const void* data, std::size_t size, std::uint64_t deadline_ns,
               const std::string& whom);

}  // namespace ringstep
