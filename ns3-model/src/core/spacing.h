// Marks on packets of jobs, spaced: at most one per egress port and gap, whoever wants it.
//
// A burst of marks cuts a DCQCN flow many times before its queue has drained. The rule is that of
// ringstep.protocol.red and of the P4 programs, where time is in microseconds.
#pragma once

#include <cstdint>

namespace ringstep {

class MarkSpacing {  // of one port
  public:
    // Whether a mark on an ECN-capable packet of a job stands. `left` is the depth of the queue
    // and `red_max` the depth above which RED marks everything, in the same unit.
    bool stands(std::uint64_t now_us, std::uint32_t gap_us, std::uint64_t left,
                std::uint64_t red_max) {
        // Deeper than that the queue has to come down, whatever the flows need to recover.
        if (gap_us == 0 || left > 2 * red_max) return true;
        if (now_us < next_us_) return false;
        next_us_ = now_us + gap_us;
        return true;
    }

  private:
    std::uint64_t next_us_ = 0;
};

}  // namespace ringstep
