#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/communicator.h"
#include "runtime/flows.h"

namespace ringstep {
namespace {

constexpr std::size_t cell = 64;                         // what channels share out
constexpr std::size_t max_chunk = 32
                                  << 20;  // twice as much with flags has to fit in RB_MAX_MESSAGE

// As NCCL: contiguous parts, equal but for the last cells; channels that get none stay idle.
std::vector<Part> parts(std::size_t bytes, int n_channels) {
    std::vector<Part> found;
    const std::size_t cells = (bytes + cell - 1) / cell;
    const auto n = std::size_t(n_channels);
    std::size_t first = 0;
    for (std::size_t channel = 0; channel < n && first < bytes; channel++) {
        const std::size_t size =
            std::min((cells / n + (channel < cells % n ? 1 : 0)) * cell, bytes - first);
        if (size != 0) found.push_back({int(channel), first, size});
        first += size;
    }
    return found;
}

std::vector<Part> shares_of(const Work& work) {
    return parts(work.count * size_of(work.type), work.n_channels);
}

std::vector<LinkKey> distinct(std::vector<LinkKey> keys) {
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
}

Work settled(Work work) {
    if (work.chunk_bytes == 0) work.chunk_bytes = default_chunk(work.proto);
    work.chunk_bytes = std::clamp((work.chunk_bytes + cell - 1) / cell * cell, cell, max_chunk);
    return work;
}

void copy_alone(const Work& work, std::size_t bytes) {
    if (work.send != work.recv && bytes != 0) std::memmove(work.recv, work.send, bytes);
}

// The works of one communicator, one after the other.
class Runner {
  public:
    explicit Runner(Communicator& on) : comm(on), lock_(on.use()) {}

    void add(const Work& work) { works_.push_back(settled(work)); }
    bool done() const { return next_ == works_.size() && flows_.empty(); }

    // True where anything moved.
    bool progress() {
        if (flows_.empty()) {
            if (next_ == works_.size()) return false;
            const bool begins = !header_;
            if (begins) begin(works_[next_]);
            if (comm.missing(receivers_) != nullptr) return begins;
            start(works_[next_]);
            header_.reset();
            next_++;  // only now: a work that could not start is not done
            if (flows_.empty()) return true;
        }
        comm.throw_if_aborted();
        bool moved = false;
        for (Running& running : flows_) {
            if (running.stuck || running.finished) continue;
            try {
                moved |= running.flow->progress();
            } catch (const LinkLost& lost) {
                running.stuck = true;
                comm.suspect(lost);
            }
        }
        if (moved) comm.note_progress();
        retire();
        if (flows_.empty()) comm.ring_steps += steps_;
        return moved;
    }

    std::string awaited() const {
        if (const LinkKey* key = header_ ? comm.missing(receivers_) : nullptr; key != nullptr)
            return "rank " + std::to_string(key->peer) + " to connect for channel " +
                   std::to_string(key->channel);
        for (const Running& running : flows_)
            if (!running.finished) return running.flow->awaited();
        return "nothing";
    }

    Communicator& comm;

  private:
    struct Running {
        std::unique_ptr<Flow> flow;
        int channel;
        bool stuck = false;
        bool finished = false;
    };

    // Connects where it has not before. A peer may be busy with another communicator's work first:
    // what this rank has to do for that one goes on meanwhile.
    void begin(const Work& work) {
        comm.throw_if_broken();
        comm.note_progress();
        header_ = comm.next_header(work);
        senders_.clear();
        receivers_.clear();
        shares_.clear();
        if (comm.n_ranks() == 1) return;
        shares_ = shares_of(work);
        for (const Part& part : shares_) needed_links(work, part.channel, senders_, receivers_);
        // Opening queue pairs on a bridge waits for the peers. So all that the works need are opened
        // with the first one, before a peer can be held up by another communicator's later work.
        std::vector<LinkKey> senders = senders_, receivers = receivers_;
        if (comm.bridged())
            for (const Work& other : works_)
                for (const Part& part : shares_of(other))
                    needed_links(other, part.channel, senders, receivers);
        comm.connect(distinct(senders), distinct(receivers), *header_);
    }

    void start(const Work& work) {
        comm.note_progress();
        observer_ = work.observer;
        const std::size_t element = size_of(work.type);
        const std::size_t bytes = work.count * element;
        steps_ = 0;
        if (comm.n_ranks() == 1) {
            observe_start(0);
            copy_alone(work, bytes);
            if (observer_ != nullptr) observer_->channel_stopped(0, now_ns());
            return;
        }
        const bool reduces = work.coll == RE_ALL_REDUCE || work.coll == RE_REDUCE_SCATTER;
        combine_ = {work.type, element, reduces ? reducer(work.type, work.op) : nullptr,
                    reduces && work.op == RE_AVG ? comm.n_ranks() : 0};
        for (const LinkKey& key : senders_) comm.sender(key).start_work(*header_, observer_);
        for (const LinkKey& key : receivers_) comm.receiver(key).start_work(*header_);
        for (const Part& part : shares_) {
            observe_start(part.channel);
            Plan planned = plan(comm, work, combine_, part);
            steps_ = std::max(steps_, planned.ring_steps);
            for (auto& flow : planned.flows) flows_.push_back({std::move(flow), part.channel});
        }
        n_running_ = flows_.size();
    }

    void observe_start(int channel) {
        if (observer_ != nullptr) observer_->channel_started(channel, now_ns());
    }

    void retire() {
        for (Running& running : flows_) {
            if (running.finished || !running.flow->done()) continue;
            running.finished = true;
            n_running_--;
            const bool channel_done =
                std::all_of(flows_.begin(), flows_.end(), [&](const Running& other) {
                    return other.channel != running.channel || other.finished;
                });
            if (channel_done && observer_ != nullptr)
                observer_->channel_stopped(running.channel, now_ns());
        }
        if (n_running_ == 0) flows_.clear();
    }

    std::unique_lock<std::mutex> lock_;
    std::vector<Work> works_;
    std::size_t next_ = 0;
    std::optional<WorkHeader> header_;  // of the work that waits for its links
    std::vector<LinkKey> senders_, receivers_;
    std::vector<Part> shares_;
    std::vector<Running> flows_;
    Combine combine_{};
    RunObserver* observer_ = nullptr;
    std::uint64_t steps_ = 0;
    std::size_t n_running_ = 0;
};

void wait(std::vector<std::unique_ptr<Runner>>& runners) {
    int patience = 3'600'000;
    std::vector<pollfd> polls;
    for (const auto& runner : runners) {
        if (runner->done()) continue;
        patience = std::min(patience, runner->comm.patience_ms([&] { return runner->awaited(); }));
        polls.push_back({runner->comm.epoll(), POLLIN, 0});
    }
    if (polls.size() > 1 && poll(polls.data(), polls.size(), patience) < 0 && errno != EINTR)
        throw_errno("poll");
    for (const auto& runner : runners)
        if (!runner->done()) runner->comm.poll_events(polls.size() > 1 ? 0 : patience);
}

}  // namespace

std::size_t default_chunk(re_proto proto) {
    return proto == RE_LL ? std::size_t{32} << 10 : std::size_t{512} << 10;
}

void run(std::span<const Work> works) {
    std::vector<std::unique_ptr<Runner>> runners;
    std::vector<Communicator*> comms;
    for (const Work& work : works) comms.push_back(static_cast<Communicator*>(work.comm));
    // Locks in one order, whatever the order of the works; and the same order on all ranks, since
    // opening queue pairs on a bridge waits for the peers.
    std::sort(comms.begin(), comms.end(), [](const Communicator* a, const Communicator* b) {
        return a->id() != b->id() ? a->id() < b->id() : std::less<>()(a, b);
    });
    comms.erase(std::unique(comms.begin(), comms.end()), comms.end());
    for (const Communicator* comm : comms) comm->throw_if_foreign();
    for (Communicator* comm : comms) runners.push_back(std::make_unique<Runner>(*comm));
    for (const auto& runner : runners) runner->comm.throw_if_broken();
    for (const Work& work : works)
        (*std::find_if(runners.begin(), runners.end(), [&](const auto& runner) {
            return &runner->comm == work.comm;
        }))->add(work);
    try {
        for (;;) {
            bool moved = false;
            bool all = true;
            for (const auto& runner : runners) {
                if (!runner->done()) moved |= runner->progress();
                all &= runner->done();
            }
            if (all) return;
            if (!moved) wait(runners);
        }
    } catch (const Error& error) {
        for (const auto& runner : runners)
            if (!runner->done()) runner->comm.break_down(error.code, error.what());
        throw;
    } catch (const std::bad_alloc&) {
        for (const auto& runner : runners)
            if (!runner->done()) runner->comm.break_down(RE_SYSTEM, "out of memory");
        throw Error(RE_SYSTEM, "out of memory");
    }
}

}  // namespace ringstep
