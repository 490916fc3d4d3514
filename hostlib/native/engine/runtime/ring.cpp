#include "runtime/ring.h"

#include <algorithm>
#include <cstring>

namespace ringstep {
namespace {

constexpr std::uint64_t slots = 4;
constexpr std::size_t alignment = 64;  // of chunks: whole elements of every type, and cache lines

std::size_t aligned(std::size_t size) {
    return (size + alignment - 1) / alignment * alignment;
}
std::size_t ceil_div(std::size_t a, std::size_t b) {
    return (a + b - 1) / b;
}

}  // namespace

RingFlow::RingFlow(Communicator& comm, const Work& work, const Combine& combine, const Part& part,
                   Sender& next, Receiver& previous)
    : coll_(work.coll),
      n_(std::uint64_t(comm.n_ranks())),
      rank_(std::uint64_t(comm.rank())),
      send_data_(static_cast<const std::uint8_t*>(work.send)),
      recv_data_(static_cast<std::uint8_t*>(work.recv)),
      block_(work.count * combine.element),
      part_(part),
      first_step_(comm.ring_steps),
      next_(next),
      previous_(previous),
      combiner_(combine, comm.scratch()) {
    const bool all_reduce = coll_ == RE_ALL_REDUCE;
    const std::size_t chunks = all_reduce ? n_ : 1;  // that the part is cut into, per loop
    n_loops_ = ceil_div(part.size, work.chunk_bytes * chunks);
    chunk_ = aligned(ceil_div(part.size, n_loops_ * chunks));
    ops_per_loop_ = all_reduce ? 2 * n_ - 1 : n_;
    steps_per_loop_ = ops_per_loop_ - 1;
    n_ops_ = n_loops_ * ops_per_loop_;
    if (coll_ == RE_REDUCE_SCATTER && n_ > 2) staging_.resize(slots * chunk_);
}

RingFlow::Op RingFlow::op(std::uint64_t index) {
    const std::uint64_t loop = index / ops_per_loop_;
    const std::uint64_t j = index % ops_per_loop_;
    Op op;
    op.receives = j > 0;
    op.sends = j + 1 < ops_per_loop_;
    op.step = first_step_ + loop * steps_per_loop_ + j;

    const bool all_reduce = coll_ == RE_ALL_REDUCE;
    // All-gather starts with the own block, the others with the previous rank's.
    const std::uint64_t whose =
        (rank_ + 2 * n_ - j % n_ + (coll_ == RE_ALL_GATHER ? 0 : n_ - 1)) % n_;
    const std::size_t at = all_reduce ? (loop * n_ + whose) * chunk_ : loop * chunk_;
    op.size = at < part_.size ? std::min(chunk_, part_.size - at) : 0;
    const std::size_t in_block = part_.first + at;
    switch (coll_) {
        case RE_ALL_REDUCE:
            op.reduces = op.receives && j < n_;
            op.last = j == n_ - 1;
            op.own = send_data_ + in_block;
            op.to = recv_data_ + in_block;
            break;
        case RE_REDUCE_SCATTER:
            op.reduces = op.receives;
            op.last = j == n_ - 1;
            op.staged = op.receives && !op.last;
            op.own = send_data_ + whose * block_ + in_block;
            op.to = op.staged ? staging_.data() + (index % slots) * chunk_ : recv_data_ + in_block;
            break;
        default:
            op.own = send_data_ + in_block;
            op.to = recv_data_ + whose * block_ + in_block;
    }
    return op;
}

bool RingFlow::receive() {
    bool moved = false;
    while (received_ < n_ops_) {
        if (!receiving_) receiving_ = op(received_);
        const Op& now = *receiving_;
        if (now.receives && now.size != 0) {
            if (now.staged && received_ >= sent_ + slots) return moved;
            if (!previous_.busy()) previous_.begin(now.size, now.step - 1);
            const std::size_t left = now.size - ready_;
            const std::size_t got = now.reduces ? combiner_.pull(previous_, now.to + ready_,
                                                                 now.own + ready_, left, now.last)
                                                : previous_.pull(now.to + ready_, left);
            if (got == 0) return moved;
            moved = true;
            ready_ += got;
            if (ready_ < now.size) return true;  // what has come can be sent meanwhile
            previous_.finish();
        } else if (coll_ == RE_ALL_GATHER && !now.receives && now.own != now.to) {
            std::memcpy(now.to, now.own, now.size);
        }
        received_++;
        ready_ = 0;
        receiving_.reset();
        moved = true;
    }
    return moved;
}

bool RingFlow::send() {
    bool moved = false;
    while (sent_ < n_ops_) {
        if (!sending_) sending_ = op(sent_);
        const Op& now = *sending_;
        if (now.sends && now.size != 0) {
            std::size_t available = now.size;
            if (now.receives && sent_ >= received_) available = sent_ == received_ ? ready_ : 0;
            if (available == 0) return moved;
            if (!next_.busy() && !next_.begin(now.receives ? now.to : now.own, now.size, now.step))
                return moved;
            moved |= next_.push(available);
            if (!next_.finish()) return moved;
        }
        sent_++;
        sending_.reset();
        moved = true;
    }
    return moved;
}

bool RingFlow::progress() {
    const bool received = receive();
    return send() || received;
}

std::string RingFlow::awaited() const {
    if (next_.busy() && sent_ < received_) return next_.awaited();
    if (received_ < n_ops_) return previous_.awaited();
    return next_.awaited();
}

RelayFlow::RelayFlow(Communicator& comm, const Work& work, const Part& part, Sender& next,
                     Receiver& previous)
    : size_(part.size),
      to_(static_cast<std::uint8_t*>(work.recv) + part.first),
      steps_(0),
      in_(nullptr, 0, 1, 0),
      out_(nullptr, nullptr, 0, 1, 0) {
    const int n = comm.n_ranks();
    const auto hop = std::uint64_t((comm.rank() + n - work.root) % n);
    const std::size_t chunk = std::min(work.chunk_bytes, aligned(part.size));
    steps_ = ceil_div(size_, chunk) + std::uint64_t(n) - 2;
    const auto* from = static_cast<const std::uint8_t*>(work.send) + part.first;
    if (hop == 0) {
        if (from != to_) std::memcpy(to_, from, size_);
        got_ = size_;
    } else {
        in_ = LineReceiver(&previous, size_, chunk, comm.ring_steps + hop - 1);
    }
    if (hop + 1 < std::uint64_t(n))
        out_ = LineSender(&next, to_, size_, chunk, comm.ring_steps + hop);
}

bool RelayFlow::progress() {
    bool moved = false;
    if (const std::size_t room = in_.expect(); room != 0) {
        const std::size_t got = in_.link().pull(to_ + got_, room);
        got_ += got;
        moved = got != 0;
        in_.settle();
    }
    return out_.progress(got_) || moved;
}

std::string RelayFlow::awaited() const {
    return got_ < size_ ? in_.awaited() : out_.awaited();
}

}  // namespace ringstep
