// How a communicator's links are made: over TCP by connecting to the receiver's listener, over the
// software RNIC by opening queue pairs on both sides and exchanging their endpoints.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/bridge.h"
#include "runtime/communicator.h"

namespace ringstep {
namespace {

constexpr std::uint32_t hello_magic = 0x31445352;  // "RSD1"
constexpr std::uint64_t stranger_ns = 10'000'000'000;
constexpr std::size_t max_strangers = 256;

struct LinkHello {
    std::uint32_t magic;
    std::uint32_t rank;
    std::uint64_t comm_id;
    std::uint32_t kind;
    std::uint32_t channel;
    WorkHeader work;
};

// A queue pair that waits for its peer's endpoint.
struct Offer {
    std::uint8_t used;
    std::uint8_t sends;
    std::uint8_t kind;
    std::uint8_t channel;
    std::uint32_t peer;
    std::uint8_t endpoint[sizeof rb_opened::endpoint];
};

std::string rank_text(int rank) {
    return "rank " + std::to_string(rank);
}

[[noreturn]] void throw_mismatch(int rank, const WorkHeader& theirs, const WorkHeader& ours) {
    throw Error(RE_MISMATCH, rank_text(rank) + " runs another collective: there " +
                                 described(theirs) + "; here " + described(ours) +
                                 ". All ranks have to make the same calls in the same order");
}

}  // namespace

void Communicator::accept_links() {
    while (listener_.readable) {
        Fd fd(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
                throw_errno("cannot accept a connection");
            if (errno == EAGAIN) listener_.readable = false;
            continue;
        }
        if (strangers_.size() >= max_strangers) continue;
        const int on = 1;
        setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        strangers_.push_back({std::move(fd), now_ns() + stranger_ns, {}});
        // Its first bytes wake the epoll; read them as soon as they are there.
        epoll_event event{};
        event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
        event.data.ptr = &nobody_;
        epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, strangers_.back().fd.get(), &event);
    }
    for (Stranger& stranger : strangers_) welcome(stranger);
    std::erase_if(strangers_, [](const Stranger& stranger) { return !stranger.fd; });
}

void Communicator::welcome(Stranger& stranger) {
    std::uint8_t bytes[sizeof(LinkHello)];
    const std::size_t have = stranger.hello.size();
    const ssize_t got = recv(stranger.fd.get(), bytes, sizeof bytes - have, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR) && now_ns() < stranger.deadline) return;
    if (got <= 0) {
        stranger.fd = Fd();
        return;
    }
    stranger.hello.insert(stranger.hello.end(), bytes, bytes + got);
    if (stranger.hello.size() < sizeof(LinkHello)) return;
    LinkHello hello;
    std::memcpy(&hello, stranger.hello.data(), sizeof hello);
    Fd fd = std::move(stranger.fd);
    stranger.fd = Fd();
    if (hello.magic != hello_magic || hello.comm_id != id_ ||
        hello.rank >= std::uint32_t(n_ranks_) || hello.kind > std::uint32_t(LinkKind::tree1_down) ||
        hello.channel >= 8)
        return;
    if (current_ && hello.work.sequence == current_->sequence && !(hello.work == *current_))
        throw_mismatch(int(hello.rank), hello.work, *current_);
    const LinkKey key{LinkKind(hello.kind), int(hello.channel), int(hello.rank)};
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd.get(), nullptr);
    if (receivers_.count(key) == 0) add_receiver(key, std::move(fd));
}

void Communicator::add_sender(const LinkKey& key, Fd fd) {
    auto link = std::make_unique<Sender>(std::move(fd), key.peer, key.channel, bridged());
    watch(link->watched, EPOLLIN | EPOLLOUT);
    senders_.emplace(key, std::move(link));
}

void Communicator::add_receiver(const LinkKey& key, Fd fd) {
    auto link = std::make_unique<Receiver>(std::move(fd), key.peer, key.channel, bridged());
    watch(link->watched, EPOLLIN | EPOLLOUT);
    receivers_.emplace(key, std::move(link));
}

void Communicator::connect(const std::vector<LinkKey>& senders,
                           const std::vector<LinkKey>& receivers, const WorkHeader& header) {
    const bool sending = std::all_of(senders.begin(), senders.end(),
                                     [&](const LinkKey& key) { return senders_.count(key) != 0; });
    if (sending && missing(receivers) == nullptr) return;
    note_progress();
    if (!bridged())
        connect_tcp(senders, header);
    else
        connect_bridge(senders, receivers, header);
    note_progress();
}

const LinkKey* Communicator::missing(const std::vector<LinkKey>& receivers) const {
    const auto found = std::find_if(receivers.begin(), receivers.end(), [&](const LinkKey& key) {
        return receivers_.count(key) == 0;
    });
    return found != receivers.end() ? &*found : nullptr;
}

void Communicator::connect_tcp(const std::vector<LinkKey>& senders, const WorkHeader& header) {
    // The receivers' systems accept at once, so nobody waits for anybody here.
    for (const LinkKey& key : senders) {
        if (senders_.count(key) != 0) continue;
        const std::uint64_t deadline = now_ns() + timeout_ns_;
        Fd fd = connect_to(addresses_[std::size_t(key.peer)], deadline, rank_text(key.peer));
        const LinkHello hello{hello_magic,
                              std::uint32_t(rank_),
                              id_,
                              std::uint32_t(key.kind),
                              std::uint32_t(key.channel),
                              header};
        write_all(fd.get(), &hello, sizeof hello, deadline, rank_text(key.peer));
        add_sender(key, std::move(fd));
    }
    poll_events(0);
}

void Communicator::connect_bridge(const std::vector<LinkKey>& senders,
                                  const std::vector<LinkKey>& receivers, const WorkHeader& header) {
    const std::uint64_t deadline = now_ns() + timeout_ns_;
    // Two trees, three neighbours in each, both directions; and a ring: no rank has more links on a
    // channel.
    constexpr std::size_t most = 14;
    std::size_t n_channels = 0;
    for (const LinkKey& key : senders)
        n_channels = std::max(n_channels, std::size_t(key.channel) + 1);
    const std::size_t size = sizeof(WorkHeader) + n_channels * most * sizeof(Offer);

    std::vector<std::uint8_t> mine(size);
    std::memcpy(mine.data(), &header, sizeof header);
    struct Opened {
        BridgeQueue queue;
        LinkKey key;
        bool sends;
    };
    std::vector<Opened> opened;
    const auto offer = [&](const LinkKey& key, bool sends) {
        const rb_open open{RB_MAGIC,
                           1,
                           id_,
                           std::uint32_t(rank_),
                           std::uint32_t(key.peer),
                           std::uint32_t(key.channel),
                           0};
        opened.push_back({open_queue(bridge_, open, deadline), key, sends});
        Offer made{
            1, sends, std::uint8_t(key.kind), std::uint8_t(key.channel), std::uint32_t(key.peer),
            {}};
        std::memcpy(made.endpoint, opened.back().queue.endpoint, sizeof made.endpoint);
        std::memcpy(mine.data() + sizeof header + (opened.size() - 1) * sizeof made, &made,
                    sizeof made);
    };
    for (const LinkKey& key : senders)
        if (senders_.count(key) == 0) offer(key, true);
    for (const LinkKey& key : receivers)
        if (receivers_.count(key) == 0) offer(key, false);

    std::vector<std::uint8_t> all(size * std::size_t(n_ranks_));
    exchange_in_use(mine.data(), all.data(), size);
    for (int rank = 0; rank < n_ranks_; rank++) {
        WorkHeader theirs;
        std::memcpy(&theirs, all.data() + std::size_t(rank) * size, sizeof theirs);
        if (!(theirs == header)) throw_mismatch(rank, theirs, header);
    }
    for (Opened& one : opened) {
        const std::uint8_t* theirs = all.data() + std::size_t(one.key.peer) * size + sizeof header;
        bool found = false;
        for (std::size_t i = 0; i < n_channels * most && !found; i++) {
            Offer other;
            std::memcpy(&other, theirs + i * sizeof other, sizeof other);
            found = other.used != 0 && (other.sends != 0) != one.sends &&
                    LinkKind(other.kind) == one.key.kind && int(other.channel) == one.key.channel &&
                    int(other.peer) == rank_;
            if (found) connect_queue(one.queue.fd.get(), other.endpoint, deadline);
        }
        if (!found)
            throw Error(RE_MISMATCH, rank_text(one.key.peer) +
                                         " offers no queue pair for channel " +
                                         std::to_string(one.key.channel));
        if (one.sends)
            add_sender(one.key, std::move(one.queue.fd));
        else
            add_receiver(one.key, std::move(one.queue.fd));
    }
}

}  // namespace ringstep
