#include "runtime/link.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rnic_bridge.h"

namespace ringstep {
namespace {

constexpr std::size_t word = 4;

std::size_t words_size(std::size_t bytes) {
    return (bytes + word - 1) / word * 2 * word;
}

std::uint32_t tag(std::uint64_t step) {
    return step == untagged ? RB_UNTAGGED : std::uint32_t(step % RB_UNTAGGED);
}

void append(std::vector<std::uint8_t>& bytes, const void* data, std::size_t size) {
    const auto* at = static_cast<const std::uint8_t*>(data);
    bytes.insert(bytes.end(), at, at + size);
}

// What precedes a message's payload on the wire: both ends know it.
void make_preamble(std::vector<std::uint8_t>& bytes, const WorkHeader* header, bool framed,
                   std::size_t payload, std::uint64_t step) {
    bytes.clear();
    if (header != nullptr) {
        const rb_message frame{sizeof(WorkHeader), RB_UNTAGGED};
        if (framed) append(bytes, &frame, sizeof frame);
        append(bytes, header, sizeof *header);
    }
    const rb_message frame{std::uint32_t(payload), tag(step)};
    if (framed) append(bytes, &frame, sizeof frame);
}

std::string rank_text(int peer) {
    return "rank " + std::to_string(peer);
}

void encode(std::uint8_t* to, const std::uint8_t* from, std::size_t n_words, std::uint32_t flag) {
    for (std::size_t i = 0; i < n_words; i++) {
        std::memcpy(to + 8 * i, from + 4 * i, 4);
        std::memcpy(to + 8 * i + 4, &flag, 4);
    }
}

// False where a flag is wrong.
bool decode(std::uint8_t* to, const std::uint8_t* from, std::size_t n_words, std::uint32_t flag) {
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < n_words; i++) {
        std::uint32_t found;
        std::memcpy(to + 4 * i, from + 8 * i, 4);
        std::memcpy(&found, from + 8 * i + 4, 4);
        wrong |= found ^ flag;
    }
    return wrong == 0;
}

const char* name_of(re_coll coll) {
    switch (coll) {
        case RE_BROADCAST:
            return "broadcast";
        case RE_ALL_GATHER:
            return "all-gather";
        case RE_REDUCE_SCATTER:
            return "reduce-scatter";
        case RE_ALL_REDUCE:
            return "all-reduce";
    }
    return "unknown collective";
}

}  // namespace

std::string described(const WorkHeader& work) {
    std::string text = "call " + std::to_string(work.sequence) + ": " +
                       name_of(re_coll(work.coll)) + " of " + std::to_string(work.count) +
                       " elements, type " + std::to_string(work.type) + ", operation " +
                       std::to_string(work.op);
    if (re_coll(work.coll) == RE_BROADCAST) text += ", root " + std::to_string(work.root);
    return text + (work.algo == RE_TREE ? ", tree" : ", ring") +
           (work.proto == RE_LL ? ", LL, " : ", Simple, ") + std::to_string(work.n_channels) +
           " channels, chunks of " + std::to_string(work.chunk_bytes) + " bytes";
}

Sender::Sender(Fd fd, int to, int on_channel, bool framed)
    : peer(to), channel(on_channel), framed_(framed) {
    watched.fd = std::move(fd);
}

void Sender::start_work(const WorkHeader& header, RunObserver* observer) {
    header_ = header;
    header_pending_ = true;
    words_ = header.proto == RE_LL;
    observer_ = observer;
}

bool Sender::begin(const void* data, std::size_t size, std::uint64_t step) {
    step_ = step;
    if (!words_) {
        if (messages_ - taken_ >= window) read_credits();
        if (messages_ - taken_ >= window) {
            starved_ = true;
            blocked();
            return false;
        }
        messages_++;
    }
    starved_ = false;
    busy_ = true;
    data_ = static_cast<const std::uint8_t*>(data);
    size_ = size;
    sent_ = 0;
    flag_++;
    staged_.clear();
    staged_sent_ = 0;
    make_preamble(preamble_, header_pending_ ? &header_ : nullptr, framed_,
                  words_ ? words_size(size) : size, step);
    preamble_sent_ = 0;
    header_pending_ = false;
    if (observer_ != nullptr) observer_->send_started(channel, peer, step);
    return true;
}

bool Sender::push(std::size_t available) {
    if (words_) return push_words(available);
    if (!watched.writable) {
        if (available > sent_) blocked();
        return false;
    }
    const std::size_t before = preamble_.size() - preamble_sent_;
    if (available <= sent_) return false;
    iovec parts[2] = {{preamble_.data() + preamble_sent_, before},
                      {const_cast<std::uint8_t*>(data_) + sent_, available - sent_}};
    msghdr message{};
    message.msg_iov = before != 0 ? parts : parts + 1;
    message.msg_iovlen = before != 0 ? 2 : 1;
    const ssize_t sent = sendmsg(watched.fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
        if (errno == EINTR) return true;
        if (errno != EAGAIN)
            throw LinkLost(peer, "the connection to " + rank_text(peer) +
                                     " failed while sending: " + std::strerror(errno));
        watched.writable = false;
        blocked();
        return false;
    }
    const std::size_t head = std::min(before, std::size_t(sent));
    preamble_sent_ += head;
    sent_ += std::size_t(sent) - head;
    if (sent_ < available) {
        watched.writable = false;
        blocked();
    }
    return sent > 0;
}

bool Sender::push_words(std::size_t available) {
    bool moved = false;
    for (;;) {
        if (staged_sent_ == staged_.size()) {
            staged_.clear();
            staged_sent_ = 0;
            std::size_t take = std::min(available - sent_, staging_bytes / 2);
            if (sent_ + take < size_) take -= take % word;
            if (take == 0) return moved;
            if (preamble_sent_ == 0 && sent_ == 0) staged_.swap(preamble_);
            const std::size_t at = staged_.size();
            staged_.resize(at + words_size(take));
            encode(staged_.data() + at, data_ + sent_, take / word, flag_);
            if (take % word != 0) {
                std::uint8_t last[word] = {};
                std::memcpy(last, data_ + sent_ + take - take % word, take % word);
                encode(staged_.data() + staged_.size() - 2 * word, last, 1, flag_);
            }
            sent_ += take;
            moved = true;
        }
        if (!watched.writable) {
            blocked();
            return moved;
        }
        const ssize_t sent = send(watched.fd.get(), staged_.data() + staged_sent_,
                                  staged_.size() - staged_sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN)
                throw LinkLost(peer, "the connection to " + rank_text(peer) +
                                         " failed while sending: " + std::strerror(errno));
            watched.writable = false;
            continue;
        }
        moved = true;
        staged_sent_ += std::size_t(sent);
        if (staged_sent_ < staged_.size()) watched.writable = false;
    }
}

bool Sender::finish() {
    if (!busy_ || sent_ < size_ || staged_sent_ < staged_.size()) return false;
    busy_ = false;
    was_blocked_ = false;
    if (observer_ != nullptr) observer_->send_finished(channel, peer, step_);
    return true;
}

void Sender::blocked() {
    if (was_blocked_) return;
    was_blocked_ = true;
    if (observer_ != nullptr) observer_->send_blocked(channel, peer, step_);
}

void Sender::read_credits() {
    const std::size_t record = framed_ ? sizeof(rb_message) + 4 : 4;
    while (watched.readable) {
        const ssize_t got =
            recv(watched.fd.get(), credit_ + credit_got_, record - credit_got_, MSG_DONTWAIT);
        if (got < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN)
                throw LinkLost(peer, "the connection to " + rank_text(peer) +
                                         " failed: " + std::strerror(errno));
            watched.readable = false;
            return;
        }
        if (got == 0)
            throw LinkLost(peer,
                           rank_text(peer) + " closed its connection while a credit was awaited");
        credit_got_ += std::size_t(got);
        if (credit_got_ == record) {
            std::uint32_t taken = 0;
            std::memcpy(&taken, credit_ + record - 4, 4);
            credit_got_ = 0;
            // Counts wrap; what is acknowledged lies between the last word and what was sent.
            if (taken - taken_ > messages_ - taken_)
                throw Error(RE_MISMATCH, rank_text(peer) + " has taken " + std::to_string(taken) +
                                             " messages, " + std::to_string(messages_) +
                                             " were sent to it");
            taken_ = taken;
        }
    }
}

std::size_t Sender::unsent() const {
    pollfd state{watched.fd.get(), 0, 0};
    if (poll(&state, 1, 0) < 0 || (state.revents & (POLLERR | POLLHUP)) != 0) return 0;
    int bytes = 0;
    return ioctl(watched.fd.get(), SIOCOUTQ, &bytes) == 0 ? std::size_t(bytes) : 0;
}

std::string Sender::awaited() const {
    const std::string where =
        " (step " + std::to_string(step_) + ", channel " + std::to_string(channel) + ")";
    if (starved_) return rank_text(peer) + " to give credit for a message" + where;
    return rank_text(peer) + " to take bytes " + std::to_string(sent_) + " to " +
           std::to_string(size_) + " of a message" + where;
}

Receiver::Receiver(Fd fd, int from, int on_channel, bool framed)
    : peer(from), channel(on_channel), framed_(framed) {
    watched.fd = std::move(fd);
}

void Receiver::start_work(const WorkHeader& header) {
    header_ = header;
    header_pending_ = true;
    words_ = header.proto == RE_LL;
}

void Receiver::begin(std::size_t size, std::uint64_t step) {
    busy_ = true;
    size_ = size;
    got_ = 0;
    step_ = step;
    flag_++;
    wire_left_ = words_ ? words_size(size) : size;
    raw_size_ = 0;
    make_preamble(expected_, header_pending_ ? &header_ : nullptr, framed_, wire_left_, step);
    header_pending_ = false;
    preamble_.resize(expected_.size());
    preamble_got_ = 0;
}

// Payload bytes into `to`, through the preamble.
std::size_t Receiver::receive(void* to, std::size_t room) {
    if (!watched.readable || room == 0) return 0;
    for (;;) {
        const std::size_t before = preamble_.size() - preamble_got_;
        iovec parts[2] = {{preamble_.data() + preamble_got_, before}, {to, room}};
        msghdr message{};
        message.msg_iov = before != 0 ? parts : parts + 1;
        message.msg_iovlen = before != 0 ? 2 : 1;
        const ssize_t got = recvmsg(watched.fd.get(), &message, MSG_DONTWAIT);
        if (got < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN)
                throw LinkLost(peer, "the connection to " + rank_text(peer) +
                                         " failed: " + std::strerror(errno));
            watched.readable = false;
            return 0;
        }
        if (got == 0)
            throw LinkLost(
                peer, rank_text(peer) + " closed its connection in the middle of a collective");
        if (std::size_t(got) < before + room && !watched.ended) watched.readable = false;
        const std::size_t head = std::min(before, std::size_t(got));
        preamble_got_ += head;
        if (head != 0 && preamble_got_ == preamble_.size()) check_preamble();
        if (std::size_t(got) > head || !watched.readable) return std::size_t(got) - head;
    }
}

void Receiver::check_preamble() const {
    if (preamble_ == expected_) return;
    const std::size_t frame = framed_ ? sizeof(rb_message) : 0;
    if (preamble_.size() >= frame + sizeof(WorkHeader)) {
        WorkHeader theirs, ours;
        std::memcpy(&theirs, preamble_.data() + frame, sizeof theirs);
        std::memcpy(&ours, expected_.data() + frame, sizeof ours);
        if (theirs.magic == ours.magic && !(theirs == ours))
            throw Error(RE_MISMATCH,
                        rank_text(peer) + " runs another collective: there " + described(theirs) +
                            "; here " + described(ours) +
                            ". All ranks have to make the same calls in the same order");
    }
    throw Error(RE_MISMATCH, rank_text(peer) + " sends something else than the message of step " +
                                 std::to_string(step_) + " on channel " + std::to_string(channel) +
                                 " (" + described(header_) + ")");
}

std::size_t Receiver::pull(void* to, std::size_t room) {
    room = std::min(room, size_ - got_);
    if (words_) return pull_words(static_cast<std::uint8_t*>(to), room);
    const std::size_t got = receive(to, room);
    got_ += got;
    return got;
}

std::size_t Receiver::pull_words(std::uint8_t* to, std::size_t room) {
    if (raw_.empty()) raw_.resize(staging_bytes);
    if (raw_size_ < 2 * word) {
        const std::size_t take = std::min(wire_left_, raw_.size() - raw_size_);
        const std::size_t got = receive(raw_.data() + raw_size_, take);
        raw_size_ += got;
        wire_left_ -= got;
    }
    const std::size_t n_words = std::min(raw_size_ / (2 * word), (room + word - 1) / word);
    if (n_words == 0) return 0;
    const std::size_t whole = std::min(n_words, room / word);
    bool right = decode(to, raw_.data(), whole, flag_);
    std::size_t bytes = whole * word;
    if (whole < n_words) {
        if (room < size_ - got_) {
            // No room for a whole word that is not the last: leave it.
        } else {
            std::uint8_t last[word];
            right = decode(last, raw_.data() + 2 * word * whole, 1, flag_) && right;
            std::memcpy(to + bytes, last, room - bytes);
            bytes = room;
        }
    }
    if (!right)
        throw Error(RE_MISMATCH, "a word from " + rank_text(peer) + " on channel " +
                                     std::to_string(channel) + " has another flag than step " +
                                     std::to_string(step_) + " needs");
    const std::size_t used = words_size(bytes);
    std::memmove(raw_.data(), raw_.data() + used, raw_size_ - used);
    raw_size_ -= used;
    got_ += bytes;
    return bytes;
}

void Receiver::finish() {
    busy_ = false;
    if (words_) return;
    taken_++;
    if (taken_ - told_ < window / 2) return;
    told_ = taken_;
    const rb_message frame{sizeof taken_, RB_UNTAGGED};
    if (framed_) append(unsent_, &frame, sizeof frame);
    append(unsent_, &taken_, sizeof taken_);
    flush_credits();
}

void Receiver::flush_credits() {
    if (unsent_.empty()) return;
    const ssize_t sent =
        send(watched.fd.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // A peer that has gone needs none; where it matters, receiving tells.
    if (sent > 0) unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) unsent_.clear();
}

std::string Receiver::awaited() const {
    return rank_text(peer) + " to send bytes " + std::to_string(got_) + " to " +
           std::to_string(size_) + " of a message (step " + std::to_string(step_) + ", channel " +
           std::to_string(channel) + ")";
}

}  // namespace ringstep
