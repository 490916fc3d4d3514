// Marker rules under trial: what an ablation puts beside the marker. None is in the data plane.
//
// A Trial stands between the egress ports of a switch and its markers, which stay as they are: it
// may keep a packet from them, overrule what they say, and overrule RED for packets of jobs that
// they follow. Its own state is held per block, as the marker's.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config.h"
#include "core/marker.h"
#include "core/rng.h"

namespace ringstep {

struct TrialPacket {  // a data packet of a job at dequeue
    std::int64_t now_ns = 0;
    std::uint32_t step = 0;
    std::uint32_t psn = 0;
    bool last = false;
    bool ect = false;                // ECN-capable and not yet marked
    std::uint32_t r = 0;             // uniform in [0, 2^16)
    std::uint32_t left_packets = 0;  // in the queue behind it
    std::uint32_t left_bytes = 0;
    bool red = false;           // RED wants the mark
    std::uint32_t red_max = 0;  // RED marks everything above, in bytes
    std::uint32_t port = 0;
};

struct TrialVerdict {
    bool mark;  // by the marker, or in place of a mark by RED
    bool red;
};

// What a trial added to (or, below 0, took from) the marks that a marker counted.
struct TrialShift {
    std::int64_t marks = 0;
    std::int64_t red_marks = 0;
};

class Trial {
  public:
    // `per_port`: a block per egress port, else one per job. `seed` is of this switch.
    Trial(const TrialRules& rules, bool per_port, std::uint64_t seed);

    // What becomes of a packet of the job with number `job`, which `marker` follows.
    TrialVerdict on_packet(Marker& marker, std::uint32_t job, const TrialPacket& packet);
    TrialShift shift(std::uint32_t job) const;

  private:
    static constexpr std::int64_t kLongAgo = INT64_MIN / 2;
    struct Block {
        std::int64_t laggard_seen = kLongAgo;  // ns
        std::int64_t ahead_seen = kLongAgo;
        std::int64_t marked = kLongAgo;
        std::uint32_t credits = 0;  // marks by RED that laggards were spared
    };
    struct JobState {
        std::vector<Block> blocks;
        TrialShift shift;
    };

    Rng& rng(std::uint32_t port);
    JobState& job(std::uint32_t number);
    // Whether RED's mark stands; where not, a credit may be gained.
    bool red(Block& b, const Marker& marker, const TrialPacket& k, bool ahead);

    TrialRules rules_;
    bool per_port_;
    std::uint64_t seed_;
    std::uint64_t lost_;   // share of LAST packets that no marker sees, times 2^32
    std::uint32_t p_max_;  // times 2^16
    bool relief_;
    bool relief_always_;
    std::vector<Rng> rngs_;  // by port
    std::vector<JobState> jobs_;
};

}  // namespace ringstep
