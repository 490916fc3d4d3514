#include "runtime/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

namespace ringstep {

std::uint64_t now_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::uint64_t(now.tv_sec) * 1'000'000'000u + std::uint64_t(now.tv_nsec);
}

void throw_errno(const std::string& what, re_result code) {
    throw Error(code, what + ": " + std::strerror(errno));
}

namespace {

// One bit per descriptor that an Fd holds. Higher numbers are not closed in children.
constexpr std::size_t max_tracked = 1 << 16;
std::atomic<std::uint64_t> tracked[max_tracked / 64];
std::atomic<std::uint32_t> generation{0};

void in_child() {
    for (std::size_t i = 0; i < max_tracked / 64; i++) {
        std::uint64_t bits = tracked[i].exchange(0);
        for (; bits != 0; bits &= bits - 1)
            close(int(i * 64 + std::size_t(std::countr_zero(bits))));
    }
    generation++;
}

void track(int fd, bool held) {
    if (fd < 0 || std::size_t(fd) >= max_tracked) return;
    const std::uint64_t bit = std::uint64_t{1} << (fd % 64);
    if (held)
        tracked[fd / 64] |= bit;
    else
        tracked[fd / 64] &= ~bit;
}

}  // namespace

std::uint32_t fork_generation() {
    return generation;
}

Fd::Fd(int fd) : fd_(fd), generation_(generation) {
    static const int registered = pthread_atfork(nullptr, nullptr, in_child);
    (void)registered;
    track(fd, true);
}

Fd::~Fd() {
    const int fd = release();
    if (fd >= 0) close(fd);
}

int Fd::release() {
    const int fd = std::exchange(fd_, -1);
    if (fd < 0 || generation_ != generation) return -1;
    track(fd, false);
    return fd;
}

int Address::port() const {
    if (storage.ss_family == AF_INET6)
        return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void Address::set_port(int port) {
    if (storage.ss_family == AF_INET6)
        reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(std::uint16_t(port));
    else
        reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(std::uint16_t(port));
}

std::string Address::host() const {
    char name[INET6_ADDRSTRLEN + 20] = "?";
    getnameinfo(raw(), length, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
    return name;
}

std::string Address::text() const {
    std::string name = host();
    if (storage.ss_family == AF_INET6) name = "[" + name + "]";
    return name + ":" + std::to_string(port());
}

Address resolve(const std::string& host_port, int default_port) {
    std::string host = host_port;
    std::string port = std::to_string(default_port);
    const auto colon = host.rfind(':');
    const bool bracketed = !host.empty() && host.front() == '[';
    if (bracketed) {
        const auto end = host.find(']');
        if (end == std::string::npos)
            throw Error(RE_BAD_ARGUMENT, "address \"" + host_port + "\" lacks its ]");
        if (end + 1 < host.size()) {
            if (host[end + 1] != ':')
                throw Error(RE_BAD_ARGUMENT, "address \"" + host_port + "\" is not [host]:port");
            port = host.substr(end + 2);
        }
        host = host.substr(1, end - 1);
    } else if (colon != std::string::npos && host.find(':') == colon) {
        port = host.substr(colon + 1);
        host = host.substr(0, colon);
    }
    const bool digits =
        !port.empty() && port.size() <= 5 &&
        std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (host.empty() || !digits || std::stoi(port) > 65535)
        throw Error(RE_BAD_ARGUMENT, "\"" + host_port + "\" is not an address like 10.0.0.1:29500");
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (failed != 0 || found == nullptr)
        throw Error(RE_BAD_ARGUMENT,
                    "no address for host \"" + host + "\": " + gai_strerror(failed));
    Address address;
    std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
    address.length = found->ai_addrlen;
    freeaddrinfo(found);
    return address;
}

Fd listen_on(Address& address) {
    Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) throw_errno("cannot make a socket");
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), address.raw(), address.length) != 0 || listen(fd.get(), 4096) != 0)
        throw_errno("cannot listen on " + address.text());
    address = local_address(fd.get());
    return fd;
}

Address local_address(int fd) {
    Address address;
    address.length = sizeof address.storage;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
        throw_errno("getsockname");
    return address;
}

Fd connect_to(const Address& address, std::uint64_t deadline_ns, const std::string& whom) {
    Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) throw_errno("cannot make a socket");
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::string what = "cannot connect to " + whom + " at " + address.text();
    if (connect(fd.get(), address.raw(), address.length) != 0) {
        if (errno != EINPROGRESS) throw_errno(what, RE_PEER_LOST);
        if (!wait_for(fd.get(), POLLOUT, deadline_ns))
            throw Error(RE_TIMEOUT, what + ": no answer in time");
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        errno = error;
        if (error != 0) throw_errno(what, RE_PEER_LOST);
    }
    // A port that nobody listens on and the system hands out can be this socket's own: TCP then
    // connects it to itself, and keeps the port from the one who is to listen there.
    if (local_address(fd.get()).text() == address.text())
        throw Error(RE_PEER_LOST, what + ": nobody listens there");
    return fd;
}

Fd connect_unix(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path)
        throw Error(RE_BAD_ARGUMENT, "the bridge's path is longer than " +
                                         std::to_string(sizeof address.sun_path - 1) +
                                         " bytes: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) throw_errno("cannot make a socket");
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
        throw_errno("cannot reach the software RNIC at " + path +
                    " (does python -m ringstep.hostlib.bridge run?)");
    fcntl(fd.get(), F_SETFL, O_NONBLOCK);
    return fd;
}

bool wait_for(int fd, short events, std::uint64_t deadline_ns) {
    for (;;) {
        const std::uint64_t now = now_ns();
        const std::uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        pollfd waiting{fd, events, 0};
        const int ready =
            poll(&waiting, 1, int(std::min<std::uint64_t>(left / 1'000'000 + 1, 1'000'000)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) throw_errno("poll");
        if (ready == 0 && left == 0) return false;
        if (now_ns() >= deadline_ns) return false;
    }
}

void read_all(int fd, void* data, std::size_t size, std::uint64_t deadline_ns,
              const std::string& whom) {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t got = recv(fd, at, size, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            size -= std::size_t(got);
        } else if (got == 0) {
            throw Error(RE_PEER_LOST, whom + " closed the connection");
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLIN, deadline_ns))
                throw Error(RE_TIMEOUT, "no answer from " + whom + " in time");
        } else if (errno != EINTR) {
            throw_errno("the connection to " + whom + " failed", RE_PEER_LOST);
        }
    }
}

void write_all(int fd, const void* data, std::size_t size, std::uint64_t deadline_ns,
               const std::string& whom) {
    const auto* at = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t sent = send(fd, at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) {
            at += sent;
            size -= std::size_t(sent);
        } else if (errno == EAGAIN) {
            if (!wait_for(fd, POLLOUT, deadline_ns))
                throw Error(RE_TIMEOUT, whom + " takes no data");
        } else if (errno != EINTR) {
            throw_errno("the connection to " + whom + " failed", RE_PEER_LOST);
        }
    }
}

}  // namespace ringstep
