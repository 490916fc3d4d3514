// All-reduce on one of the two trees of a channel: up to the root, reduced on the way, and down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/flows.h"

namespace ringstep {

class TreeFlow final : public Flow {
  public:
    TreeFlow(Communicator& comm, const Work& work, const Combine& combine, const Part& part,
             int which);
    bool progress() override;
    bool done() const override;
    std::string awaited() const override;

  private:
    struct Child {
        LineReceiver up;
        LineSender down;
        Combiner combiner;
        std::size_t reduced = 0;
    };

    const std::size_t size_;
    const std::uint8_t* const own_;
    std::uint8_t* const to_;
    bool root_;
    std::vector<Child> children_;
    std::size_t got_ = 0;  // final bytes
    LineSender up_;
    LineReceiver down_;
};

}  // namespace ringstep
