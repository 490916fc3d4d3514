#include "runtime/communicator.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace ringstep {
namespace {

constexpr std::uint32_t work_magic = 0x574b5352;  // "RSKW"
constexpr std::uint64_t grace_ns = 200'000'000;
constexpr std::uint64_t drain_ns = 5'000'000'000;
constexpr std::size_t scratch_bytes = 256 << 10;

std::string rank_text(int rank) {
    return "rank " + std::to_string(rank);
}

std::string seconds_text(std::uint64_t ns) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", double(ns) / 1e9);
    return text;
}

}  // namespace

std::unique_ptr<Comm> Comm::create(const re_unique_id& id, int n_ranks, int rank,
                                   const re_config& given) {
    if (n_ranks < 1 || n_ranks > 64)
        throw Error(RE_BAD_ARGUMENT,
                    "a communicator has 1 to 64 ranks, not " + std::to_string(n_ranks));
    if (rank < 0 || rank >= n_ranks)
        throw Error(RE_BAD_ARGUMENT, "rank " + std::to_string(rank) + " is not within 0 and " +
                                         std::to_string(n_ranks - 1));
    re_config config = given;
    if (config.max_channels == 0) config.max_channels = 8;
    if (config.max_channels < 1 || config.max_channels > 8)
        throw Error(RE_BAD_ARGUMENT, "max_channels is 1 to 8, or 0 for 8, not " +
                                         std::to_string(config.max_channels));
    if (!(config.timeout_s >= 0) || config.timeout_s > 1e9)
        throw Error(RE_BAD_ARGUMENT, "timeout_s is a number of seconds, or 0 for 300");
    const double timeout_s = config.timeout_s == 0 ? 300 : config.timeout_s;
    const auto timeout_ns = std::max<std::uint64_t>(std::uint64_t(timeout_s * 1e9), 1'000'000);
    Joined joined = join(id, n_ranks, rank, config, timeout_ns);
    return std::make_unique<Communicator>(rank, n_ranks, config, timeout_ns, std::move(joined));
}

Communicator::Communicator(int rank, int n_ranks, const re_config& config, std::uint64_t timeout_ns,
                           Joined joined)
    : rank_(rank),
      n_ranks_(n_ranks),
      n_nodes_(joined.n_nodes),
      id_(joined.comm_id),
      max_channels_(joined.max_channels),
      timeout_ns_(timeout_ns),
      bridge_(config.bridge != nullptr ? config.bridge : ""),
      addresses_(std::move(joined.addresses)),
      generation_(fork_generation()),
      control_(rank, n_ranks, std::move(joined.control)),
      scratch_(scratch_bytes) {
    epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    wake_.fd = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !wake_.fd) throw_errno("cannot make a communicator");
    watch(wake_, EPOLLIN);
    listener_.fd = std::move(joined.listener);
    watch(listener_, EPOLLIN);
    for (Watched& connection : control_.watched) watch(connection, EPOLLIN);
}

Communicator::~Communicator() {
    if (generation_ != fork_generation()) return;
    const std::lock_guard lock(use_);
    if (aborted_) break_down_aborted();
    if (broken_) return;
    control_.say_bye(sequence_);
    drain();
}

// Until the peers' systems have everything: closing earlier could reset a connection under data.
void Communicator::drain() noexcept {
    const std::uint64_t until = now_ns() + std::min(timeout_ns_, drain_ns);
    long pause_ns = 20'000;
    while (now_ns() < until) {
        if (std::all_of(senders_.begin(), senders_.end(),
                        [](const auto& link) { return link.second->unsent() == 0; }))
            return;
        const timespec pause{0, pause_ns};
        nanosleep(&pause, nullptr);
        pause_ns = std::min(pause_ns * 2, 5'000'000L);
    }
}

void Communicator::watch(Watched& watched, std::uint32_t events) {
    epoll_event event{};
    event.events = events | EPOLLET | EPOLLRDHUP;
    event.data.ptr = &watched;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watched.fd.get(), &event) != 0)
        throw_errno("epoll_ctl");
}

void Communicator::throw_if_foreign() const {
    if (generation_ != fork_generation())
        throw Error(RE_BAD_ARGUMENT,
                    "the communicator belongs to the parent process; a forked child makes its own");
}

void Communicator::throw_if_broken() {
    if (broken_)
        throw Error(
            broken_->code,
            std::string("the communicator is broken since an earlier error: ") + broken_->what());
    if (!aborted_) return;
    break_down_aborted();
    throw Error(RE_ABORTED, "the communicator was aborted");
}

WorkHeader Communicator::next_header(const Work& work) {
    current_ = WorkHeader{work_magic,
                          ++sequence_,
                          std::uint8_t(work.coll),
                          std::uint8_t(work.algo),
                          std::uint8_t(work.proto),
                          std::uint8_t(work.n_channels),
                          std::uint8_t(work.type),
                          std::uint8_t(work.op),
                          std::uint16_t(work.root),
                          work.count,
                          work.chunk_bytes};
    return *current_;
}

void Communicator::exchange(const void* mine, void* all, std::size_t bytes) {
    throw_if_foreign();
    const std::lock_guard lock(use_);
    throw_if_broken();
    try {
        exchange_in_use(mine, all, bytes);
    } catch (const Error& error) {
        break_down(error.code, error.what());
        throw;
    }
}

void Communicator::exchange_in_use(const void* mine, void* all, std::size_t bytes) {
    if (n_ranks_ == 1) {
        if (bytes != 0) std::memmove(all, mine, bytes);
        return;
    }
    note_progress();
    exchanging_ = true;
    const std::uint64_t deadline = progress_ns_ + timeout_ns_;
    control_.send_exchange(mine, bytes, deadline);
    for (;;) {
        poll_events(0);
        if (control_.exchanged()) break;
        poll_events(patience_ms([&] { return control_.awaited(); }));
    }
    control_.take_exchange(mine, all, bytes, deadline);
    exchanging_ = false;
}

void Communicator::abort() noexcept {
    if (generation_ != fork_generation()) return;
    aborted_ = true;
    const std::uint64_t one = 1;
    (void)!write(wake_.fd.get(), &one, sizeof one);
    if (use_.try_lock()) {
        break_down_aborted();
        use_.unlock();
    }
}

// By abort(), or by the next that comes where abort() found a call that was just ending.
void Communicator::break_down_aborted() noexcept {
    break_down(RE_ABORTED, rank_text(rank_) + " aborted the communicator");
}

void Communicator::break_down(re_result code, const std::string& why) noexcept {
    if (broken_) return;
    broken_ = Error(code, why);
    control_.give_up(code, why);
    for (const auto& [key, link] : senders_) shutdown(link->watched.fd.get(), SHUT_RDWR);
    for (const auto& [key, link] : receivers_) shutdown(link->watched.fd.get(), SHUT_RDWR);
}

void Communicator::suspect(const LinkLost& lost) {
    if (suspicion_.empty()) suspicion_ = lost.what();
    if (suspected_ns_ == 0) suspected_ns_ = now_ns();
}

void Communicator::throw_if_aborted() const {
    if (aborted_) throw Error(RE_ABORTED, rank_text(rank_) + " aborted the communicator");
}

// What a lost rank sent before may still end the work, and the reason may still come.
std::uint64_t Communicator::grace_end() const {
    return std::max(progress_ns_, suspected_ns_) + grace_ns;
}

void Communicator::poll_events(int timeout_ms) {
    epoll_event events[64];
    const int n = epoll_wait(epoll_.get(), events, 64, timeout_ms);
    if (n < 0 && errno != EINTR) throw_errno("epoll_wait");
    for (int i = 0; i < n; i++) {
        auto& watched = *static_cast<Watched*>(events[i].data.ptr);
        const std::uint32_t found = events[i].events;
        if (found & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) watched.ended = true;
        if (found & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) watched.readable = true;
        if (found & (EPOLLOUT | EPOLLHUP | EPOLLERR)) watched.writable = true;
    }
    for (const auto& [key, link] : receivers_) link->flush_credits();
    control_.poll();
    accept_links();
    check();
}

void Communicator::check() {
    throw_if_aborted();
    if (control_.notice) {
        const Control::Notice& notice = *control_.notice;
        throw Error(notice.code,
                    notice.text + " (said by rank " + std::to_string(notice.origin) + ")");
    }
    for (const Control::Departure& departure : control_.departed)
        if (current_ && current_->sequence > departure.sequence)
            throw Error(RE_PEER_LOST,
                        rank_text(departure.rank) + " destroyed its communicator after call " +
                            std::to_string(departure.sequence) + ", this rank is at call " +
                            std::to_string(current_->sequence));
    if (exchanging_) {
        const int gone = control_.departed_before_exchange();
        if (gone >= 0)
            throw Error(RE_PEER_LOST,
                        rank_text(gone) + " destroyed its communicator; an exchange needs it");
    }
    if (control_.lost >= 0 && suspected_ns_ == 0) suspected_ns_ = now_ns();
    if (suspected_ns_ != 0 && now_ns() >= grace_end()) {
        if (control_.lost >= 0)
            throw Error(
                RE_PEER_LOST,
                rank_text(control_.lost) +
                    " ended: its control connection closed without a word (did its process die?)");
        throw Error(RE_PEER_LOST, suspicion_ + " (did its process die?)");
    }
}

int Communicator::patience_ms(const std::function<std::string()>& awaited) {
    const std::uint64_t now = now_ns();
    const std::uint64_t timeout = progress_ns_ + timeout_ns_;
    const std::uint64_t half = progress_ns_ + timeout_ns_ / 2;
    if (now >= timeout) {
        // One rank's standstill becomes everybody's; the one that does not say so is the cause.
        const std::string silent = control_.silent_at(sequence_);
        throw Error(RE_TIMEOUT,
                    "no progress for " + seconds_text(timeout_ns_) + " s; awaited " + awaited() +
                        (silent.empty() ? "; all ranks say that they wait"
                                        : "; not waiting here, so stuck or elsewhere: " + silent));
    }
    if (now >= half && !told_stalled_) {
        control_.say_stalled(sequence_);
        told_stalled_ = true;
    }
    std::uint64_t until = told_stalled_ ? timeout : half;
    if (suspected_ns_ != 0) until = std::min(until, grace_end());
    for (const Stranger& stranger : strangers_) until = std::min(until, stranger.deadline);
    const std::uint64_t left = until > now ? until - now : 0;
    return int(std::min<std::uint64_t>(left / 1'000'000 + 1, 3'600'000));
}

}  // namespace ringstep
