#include "runtime/flows.h"

#include <algorithm>
#include <cstring>

#include "runtime/ring.h"
#include "runtime/topology.h"
#include "runtime/tree.h"

namespace ringstep {

std::size_t Combiner::pull(Receiver& from, std::uint8_t* to, const std::uint8_t* own,
                           std::size_t room, bool last) {
    std::uint8_t* raw = scratch_.data();
    std::memcpy(raw, part_, part_size_);
    // The start of an element that is in part_ counts as room taken.
    const std::size_t want = std::min(room, scratch_.size()) - part_size_;
    const std::size_t have = part_size_ + from.pull(raw + part_size_, want);
    const std::size_t count = have / combine_.element;
    const std::size_t whole = count * combine_.element;
    combine_.reduce(to, own, raw, count);
    if (last && combine_.divide_by != 0) divide(to, combine_.type, count, combine_.divide_by);
    part_size_ = have - whole;
    std::memcpy(part_, raw + whole, part_size_);
    return whole;
}

bool LineSender::progress(std::size_t available) {
    bool moved = false;
    while (at_ < size_ && available > at_) {
        const std::size_t size = std::min(chunk_, size_ - at_);
        if (!link_->busy() && !link_->begin(data_ + at_, size, step_)) return moved;
        moved |= link_->push(std::min(available - at_, size));
        if (!link_->finish()) return moved;
        moved = true;
        at_ += size;
        if (step_ != untagged) step_++;
    }
    return moved;
}

std::size_t LineReceiver::expect() {
    if (done()) return 0;
    if (!link_->busy()) link_->begin(std::min(chunk_, size_ - at_), step_);
    return link_->left();
}

void LineReceiver::settle() {
    if (!link_->busy() || link_->left() != 0) return;
    at_ += std::min(chunk_, size_ - at_);
    link_->finish();
    if (step_ != untagged) step_++;
}

namespace {

int ring_next(const Comm& comm) {
    return (comm.rank() + 1) % comm.n_ranks();
}
int ring_previous(const Comm& comm) {
    return (comm.rank() + comm.n_ranks() - 1) % comm.n_ranks();
}

}  // namespace

void needed_links(const Work& work, int channel, std::vector<LinkKey>& senders,
                  std::vector<LinkKey>& receivers) {
    if (work.algo != RE_TREE) {
        senders.push_back({LinkKind::ring, channel, ring_next(*work.comm)});
        receivers.push_back({LinkKind::ring, channel, ring_previous(*work.comm)});
        return;
    }
    for (int which = 0; which < 2; which++) {
        const LinkKind up = which == 0 ? LinkKind::tree0_up : LinkKind::tree1_up;
        const LinkKind down = which == 0 ? LinkKind::tree0_down : LinkKind::tree1_down;
        const TreePlace place = double_tree(work.comm->n_ranks(), work.comm->rank(), which);
        if (place.parent >= 0) {
            senders.push_back({up, channel, place.parent});
            receivers.push_back({down, channel, place.parent});
        }
        for (const int child : place.children) {
            receivers.push_back({up, channel, child});
            senders.push_back({down, channel, child});
        }
    }
}

Plan plan(Communicator& comm, const Work& work, const Combine& combine, const Part& part) {
    Plan made;
    if (work.algo == RE_TREE) {
        // Each tree carries half of the data, cut between elements.
        const std::size_t half = (part.size / 2 + 63) / 64 * 64;
        const std::size_t first = std::min(half, part.size);
        made.flows.push_back(std::make_unique<TreeFlow>(comm, work, combine,
                                                        Part{part.channel, part.first, first}, 0));
        if (first < part.size)
            made.flows.push_back(std::make_unique<TreeFlow>(
                comm, work, combine, Part{part.channel, part.first + first, part.size - first}, 1));
        return made;
    }
    Sender& next = comm.sender({LinkKind::ring, part.channel, ring_next(comm)});
    Receiver& previous = comm.receiver({LinkKind::ring, part.channel, ring_previous(comm)});
    if (work.coll == RE_BROADCAST) {
        auto flow = std::make_unique<RelayFlow>(comm, work, part, next, previous);
        made.ring_steps = flow->steps();
        made.flows.push_back(std::move(flow));
    } else {
        auto flow = std::make_unique<RingFlow>(comm, work, combine, part, next, previous);
        made.ring_steps = flow->steps();
        made.flows.push_back(std::move(flow));
    }
    return made;
}

}  // namespace ringstep
