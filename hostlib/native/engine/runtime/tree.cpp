#include "runtime/tree.h"

#include <algorithm>

#include "runtime/topology.h"

namespace ringstep {

TreeFlow::TreeFlow(Communicator& comm, const Work& work, const Combine& combine, const Part& part,
                   int which)
    : size_(part.size),
      own_(static_cast<const std::uint8_t*>(work.send) + part.first),
      to_(static_cast<std::uint8_t*>(work.recv) + part.first),
      root_(true),
      up_(nullptr, nullptr, 0, 1, untagged),
      down_(nullptr, 0, 1, untagged) {
    const LinkKind up = which == 0 ? LinkKind::tree0_up : LinkKind::tree1_up;
    const LinkKind down = which == 0 ? LinkKind::tree0_down : LinkKind::tree1_down;
    const TreePlace place = double_tree(comm.n_ranks(), comm.rank(), which);
    const std::size_t chunk = work.chunk_bytes;
    for (const int child : place.children)
        children_.push_back(
            {LineReceiver(&comm.receiver({up, part.channel, child}), size_, chunk, untagged),
             LineSender(&comm.sender({down, part.channel, child}), to_, size_, chunk, untagged),
             Combiner(combine, comm.scratch())});
    if (place.parent < 0) return;
    root_ = false;
    const std::uint8_t* from = children_.empty() ? own_ : to_;
    up_ = LineSender(&comm.sender({up, part.channel, place.parent}), from, size_, chunk, untagged);
    down_ =
        LineReceiver(&comm.receiver({down, part.channel, place.parent}), size_, chunk, untagged);
}

bool TreeFlow::progress() {
    bool moved = false;
    // Up: the first child's bytes are reduced with the own ones, the second's with the result, so
    // that the order is the same whoever comes first.
    std::size_t reduced = size_;
    const std::uint8_t* own = own_;
    for (Child& child : children_) {
        const bool last = root_ && &child == &children_.back();
        const std::size_t room = reduced - child.reduced;
        if (room != 0 && child.up.expect() != 0) {
            const std::size_t got = child.combiner.pull(child.up.link(), to_ + child.reduced,
                                                        own + child.reduced, room, last);
            child.reduced += got;
            moved |= got != 0;
            child.up.settle();
        }
        reduced = child.reduced;
        own = to_;
    }
    if (root_)
        got_ = reduced;
    else
        moved |= up_.progress(reduced);

    // Down. What comes from the parent replaces bytes that it has had from here.
    if (const std::size_t room = down_.expect(); room != 0) {
        const std::size_t got = down_.link().pull(to_ + got_, room);
        got_ += got;
        moved |= got != 0;
        down_.settle();
    }
    for (Child& child : children_) moved |= child.down.progress(got_);
    return moved;
}

bool TreeFlow::done() const {
    return got_ == size_ && up_.done() &&
           std::all_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.down.done(); });
}

std::string TreeFlow::awaited() const {
    for (const Child& child : children_)
        if (child.reduced < size_) return child.up.awaited();
    if (!up_.done()) return up_.awaited();
    if (got_ < size_) return down_.awaited();
    for (const Child& child : children_)
        if (!child.down.done()) return child.down.awaited();
    return "nothing";
}

}  // namespace ringstep
