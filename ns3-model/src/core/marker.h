// The marker: follows a job's ring progress at dequeue and says which packets to mark.
//
// The same rules as the reference (protocol/marker.py), packet for packet on the golden vectors in
// tests/vectors/marker; every simulated switch runs this code. Symphony (arXiv:2604.16880),
// section 3 and Algorithm 1, with state blocks, a queue gate and anchored progress.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/config.h"

namespace ringstep {

struct MarkerBlock {
    std::uint64_t win_start = 0;  // us, 48 bits
    std::uint32_t step_min = 0;
    std::uint32_t psn_rec = 0;
    std::uint32_t alpha = 0;
    std::uint32_t cnt_total = 0;
    std::uint32_t cnt_op = 0;
    std::uint32_t generation = 0;
};

struct MarkerCounters {
    std::uint64_t data = 0;
    std::uint64_t marks = 0;
    std::uint64_t red_marks = 0;
    std::uint64_t corrections = 0;
    std::uint64_t advances = 0;
};

struct MarkerDecision {
    bool mark;               // the marker's own word
    bool ce;                 // the packet leaves newly marked, by the marker or by RED
    std::uint32_t progress;  // packets within the step
};

struct MarkerAnchor {
    std::uint32_t generation = 0;
    std::uint32_t step = 0;
    std::uint32_t base = 0;
};

class Marker {
  public:
    Marker(const MarkerParams& params, bool per_port);

    MarkerDecision on_packet(std::uint64_t now_us, std::uint32_t step, std::uint32_t psn, bool last,
                             bool ect, std::uint32_t r, std::uint32_t qdepth, bool red,
                             std::uint32_t port);
    void update(const MarkerParams& params);
    void set_block(std::uint32_t port, std::uint32_t block);
    const MarkerBlock& block(std::uint32_t port);
    bool ahead(std::uint32_t a, std::uint32_t b) const {
        const std::uint32_t d = (a - b) & mask_;
        return d != 0 && d < sign_;
    }
    // Whether a packet of `step` belongs to a laggard, as far as this port's block knows.
    bool lagging(std::uint32_t step, std::uint32_t port);

    const MarkerParams& params() const { return p_; }
    const std::array<MarkerAnchor, 4>& anchors() const { return anchors_; }
    const MarkerCounters& counters() const { return counters_; }

  private:
    std::uint32_t progress(std::uint32_t step, std::uint32_t psn);
    std::uint32_t block_of(std::uint32_t port);

    MarkerParams p_;
    bool per_port_;
    std::uint32_t mask_ = 0;
    std::uint32_t sign_ = 0;
    std::vector<std::uint32_t> map_;  // port -> block number
    std::vector<MarkerBlock> blocks_;
    std::array<MarkerAnchor, 4> anchors_;
    MarkerCounters counters_;
};

}  // namespace ringstep
