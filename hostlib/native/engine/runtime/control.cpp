#include "runtime/control.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ringstep {
namespace {

constexpr std::uint32_t magic = 0x31435352;  // "RSC1"
constexpr std::size_t max_message = 64 << 20;

enum Kind : std::uint32_t { part = 1, whole = 2, giving_up = 3, bye = 4, stalled = 5 };

struct Head {
    std::uint32_t magic;
    std::uint32_t kind;
    std::uint32_t origin;
    std::uint32_t size;
};

std::vector<std::uint8_t> message(std::uint32_t kind, int origin, const void* data,
                                  std::size_t size) {
    const Head head{magic, kind, std::uint32_t(origin), std::uint32_t(size)};
    std::vector<std::uint8_t> bytes(sizeof head + size);
    std::memcpy(bytes.data(), &head, sizeof head);
    if (size != 0) std::memcpy(bytes.data() + sizeof head, data, size);
    return bytes;
}

std::string rank_text(int rank) {
    return "rank " + std::to_string(rank);
}

}  // namespace

Control::Control(int rank, int n_ranks, std::vector<Fd> connections)
    : rank_(rank), stalled_at_(std::size_t(n_ranks), -1) {
    if (n_ranks == 1) return;
    for (std::size_t i = rank == 0 ? 1 : 0; i < connections.size(); i++) {
        peers_.push_back({int(i)});
        watched.push_back({std::move(connections[i])});
    }
}

void Control::poll() {
    for (std::size_t i = 0; i < peers_.size(); i++)
        if (watched[i].readable && !peers_[i].gone) read_from(i);
}

void Control::read_from(std::size_t i) {
    Peer& peer = peers_[i];
    for (;;) {
        const std::size_t at = peer.buffer.size();
        peer.buffer.resize(at + 16384);
        const ssize_t got = recv(watched[i].fd.get(), peer.buffer.data() + at, 16384, MSG_DONTWAIT);
        peer.buffer.resize(at + std::size_t(std::max<ssize_t>(got, 0)));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) {
            watched[i].readable = false;
            return;
        }
        if (got <= 0) {
            peer.gone = true;
            if (!peer.bye && lost < 0) lost = peer.rank;
            return;
        }
        parse(i);
    }
}

void Control::parse(std::size_t i) {
    std::vector<std::uint8_t>& buffer = peers_[i].buffer;
    std::size_t at = 0;
    while (buffer.size() - at >= sizeof(Head)) {
        Head head;
        std::memcpy(&head, buffer.data() + at, sizeof head);
        if (head.magic != magic || head.size > max_message)
            throw Error(RE_MISMATCH, "what " + rank_text(peers_[i].rank) +
                                         " sends on its control connection is no message");
        if (buffer.size() - at < sizeof head + head.size) break;
        handle(i, head.kind, int(head.origin), buffer.data() + at + sizeof head, head.size);
        at += sizeof head + head.size;
    }
    buffer.erase(buffer.begin(), buffer.begin() + long(at));
}

void Control::handle(std::size_t i, std::uint32_t kind, int origin, const std::uint8_t* data,
                     std::size_t size) {
    switch (kind) {
        case part:
        case whole:
            peers_[i].parts.emplace_back(data, data + size);
            return;
        case giving_up: {
            std::uint32_t code = RE_PEER_LOST;
            if (size < sizeof code || notice.has_value()) return;
            std::memcpy(&code, data, sizeof code);
            notice = Notice{re_result(code), origin, std::string(data + sizeof code, data + size)};
            break;
        }
        case bye: {
            std::uint32_t sequence = 0;
            if (size != sizeof sequence) return;
            std::memcpy(&sequence, data, sizeof sequence);
            if (origin == peers_[i].rank) peers_[i].bye = true;
            departed.push_back({origin, sequence});
            break;
        }
        case stalled: {
            std::uint32_t sequence = 0;
            if (size != sizeof sequence || std::size_t(origin) >= stalled_at_.size()) return;
            std::memcpy(&sequence, data, sizeof sequence);
            stalled_at_[std::size_t(origin)] = sequence;
            break;
        }
        default:
            return;
    }
    if (rank_ != 0) return;
    for (std::size_t other = 0; other < peers_.size(); other++)
        if (other != i) send_quietly(other, kind, origin, data, size);
}

void Control::send_quietly(std::size_t i, std::uint32_t kind, int origin, const void* data,
                           std::size_t size) noexcept {
    if (peers_[i].gone) return;
    const std::vector<std::uint8_t> bytes = message(kind, origin, data, size);
    (void)!send(watched[i].fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Control::give_up(re_result code, const std::string& why) noexcept {
    const auto number = std::uint32_t(code);
    std::vector<std::uint8_t> data(sizeof number);
    std::memcpy(data.data(), &number, sizeof number);
    data.insert(data.end(), why.begin(), why.end());
    for (std::size_t i = 0; i < peers_.size(); i++) {
        send_quietly(i, giving_up, rank_, data.data(), data.size());
        shutdown(watched[i].fd.get(), SHUT_WR);
    }
}

void Control::say_bye(std::uint32_t sequence) noexcept {
    for (std::size_t i = 0; i < peers_.size(); i++) {
        send_quietly(i, bye, rank_, &sequence, sizeof sequence);
        shutdown(watched[i].fd.get(), SHUT_WR);
    }
}

void Control::say_stalled(std::uint32_t sequence) noexcept {
    stalled_at_[std::size_t(rank_)] = sequence;
    for (std::size_t i = 0; i < peers_.size(); i++)
        send_quietly(i, stalled, rank_, &sequence, sizeof sequence);
}

std::string Control::silent_at(std::uint32_t sequence) const {
    // Without rank 0 nobody else is heard.
    if (stalled_at_[0] != sequence) return rank_text(0);
    std::string text;
    for (std::size_t rank = 1; rank < stalled_at_.size(); rank++)
        if (stalled_at_[rank] != sequence)
            text += (text.empty() ? "" : ", ") + rank_text(int(rank));
    return text;
}

void Control::send_exchange(const void* data, std::size_t size, std::uint64_t deadline_ns) {
    if (rank_ == 0) return;
    const std::vector<std::uint8_t> bytes = message(part, rank_, data, size);
    write_all(watched[0].fd.get(), bytes.data(), bytes.size(), deadline_ns, rank_text(0));
}

bool Control::exchanged() const {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return !peer.parts.empty(); });
}

void Control::take_exchange(const void* mine, void* all, std::size_t bytes,
                            std::uint64_t deadline_ns) {
    auto* to = static_cast<std::uint8_t*>(all);
    if (rank_ != 0) {
        const std::vector<std::uint8_t> answer = std::move(peers_[0].parts.front());
        peers_[0].parts.pop_front();
        if (answer.size() != bytes * stalled_at_.size())
            throw Error(RE_MISMATCH, "rank 0 exchanges something of another size than the " +
                                         std::to_string(bytes) + " bytes of each rank here");
        if (bytes != 0) std::memcpy(to, answer.data(), answer.size());
        return;
    }
    if (bytes != 0) std::memcpy(to, mine, bytes);
    for (Peer& peer : peers_) {
        const std::vector<std::uint8_t> got = std::move(peer.parts.front());
        peer.parts.pop_front();
        if (got.size() != bytes)
            throw Error(RE_MISMATCH,
                        rank_text(peer.rank) + " exchanges " + std::to_string(got.size()) +
                            " bytes, rank 0 " + std::to_string(bytes) +
                            "; all ranks have to make the same calls in the same order");
        if (bytes != 0) std::memcpy(to + std::size_t(peer.rank) * bytes, got.data(), bytes);
    }
    const std::vector<std::uint8_t> answer = message(whole, 0, all, bytes * (peers_.size() + 1));
    for (std::size_t i = 0; i < peers_.size(); i++)
        write_all(watched[i].fd.get(), answer.data(), answer.size(), deadline_ns,
                  rank_text(peers_[i].rank));
}

int Control::departed_before_exchange() const {
    for (const Peer& peer : peers_)
        if (peer.bye && peer.parts.empty()) return peer.rank;
    return -1;
}

std::string Control::awaited() const {
    std::string text;
    for (const Peer& peer : peers_)
        if (peer.parts.empty()) text += (text.empty() ? "" : ", ") + rank_text(peer.rank);
    return text + " to take part in an exchange";
}

}  // namespace ringstep
