#include "core/trial.h"

#include <algorithm>
#include <cmath>

namespace ringstep {

void TrialRules::check() const {
    require(hold_ns >= 0, "trial.hold_ns", hold_ns, "must not be negative; 0 = off");
    require(min_lead >= 1 && min_lead < 1U << 13, "trial.min_lead", min_lead,
            "must lie in 1..8191, in steps");
    require(mark_gap_ns >= 0, "trial.mark_gap_ns", mark_gap_ns, "must not be negative; 0 = off");
    require(p_max > 0 && p_max <= 1, "trial.p_max", p_max, "must lie in (0, 1]");
    require(relief == "off" || relief == "while_ahead" || relief == "always", "trial.relief",
            relief, "must be \"off\", \"while_ahead\" or \"always\"");
    require(transfer == 0 || relief != "off", "trial.transfer", transfer,
            "spends marks that relief spares; switch relief on");
    require(transfer == 0 || p_max == 1, "trial.transfer", transfer,
            "marks without a probability; leave p_max at 1");
    require(last_lost >= 0 && last_lost <= 1, "trial.last_lost", last_lost, "must lie in [0, 1]");
}

Trial::Trial(const TrialRules& rules, bool per_port, std::uint64_t seed)
    : rules_(rules),
      per_port_(per_port),
      seed_(seed),
      lost_(static_cast<std::uint64_t>(std::llround(rules.last_lost * 0x1p32))),
      p_max_(static_cast<std::uint32_t>(std::lround(rules.p_max * 65536))),
      relief_(rules.relief != "off"),
      relief_always_(rules.relief == "always") {
    rules_.check();
}

Rng& Trial::rng(std::uint32_t port) {
    while (rngs_.size() <= port) rngs_.emplace_back(mix64(seed_ + rngs_.size()));
    return rngs_[port];
}

Trial::JobState& Trial::job(std::uint32_t number) {
    if (number >= jobs_.size()) jobs_.resize(number + 1);
    return jobs_[number];
}

TrialShift Trial::shift(std::uint32_t job) const {
    return job < jobs_.size() ? jobs_[job].shift : TrialShift{};
}

bool Trial::red(Block& b, const Marker& marker, const TrialPacket& k, bool ahead) {
    if (!k.red) return false;
    if (relief_ && !ahead && k.left_bytes <= k.red_max) {
        const std::int64_t within =
            rules_.hold_ns > 0 ? rules_.hold_ns : marker.params().t_win_us * 1000LL;
        if (relief_always_ || k.now_ns - b.ahead_seen <= within) {
            if (k.ect && b.credits < rules_.transfer) ++b.credits;
            return false;
        }
    }
    return true;
}

TrialVerdict Trial::on_packet(Marker& marker, std::uint32_t number, const TrialPacket& k) {
    if (k.last && lost_ > 0 && rng(k.port).next() < lost_) return {false, k.red};

    const MarkerDecision said =
        marker.on_packet(static_cast<std::uint64_t>(k.now_ns) / 1000, k.step, k.psn, k.last, k.ect,
                         k.r, k.left_packets, k.red, k.port);
    const MarkerParams& params = marker.params();
    const std::uint32_t step_min = marker.block(k.port).step_min;
    const bool ahead = marker.ahead(k.step, step_min);
    const std::uint32_t lead = ahead ? (k.step - step_min) & ((1U << params.step_bits) - 1) : 0;

    JobState& j = job(number);
    const std::uint32_t block = per_port_ ? k.port : 0;
    if (block >= j.blocks.size()) j.blocks.resize(block + 1);
    Block& b = j.blocks[block];
    (ahead ? b.ahead_seen : b.laggard_seen) = k.now_ns;

    const bool red_mark = red(b, marker, k, ahead);
    bool mark;
    if (rules_.transfer > 0) {
        mark = params.enabled && ahead && b.credits > 0 && !red_mark &&
               (!params.q_gate_packets || k.left_packets > *params.q_gate_packets);
    } else {
        mark = said.mark && k.r < p_max_;
    }
    mark = mark && lead >= rules_.min_lead &&
           (rules_.hold_ns == 0 || k.now_ns - b.laggard_seen <= rules_.hold_ns) &&
           (rules_.mark_gap_ns == 0 || k.now_ns - b.marked >= rules_.mark_gap_ns);
    if (mark && k.ect) {
        b.marked = k.now_ns;
        if (rules_.transfer > 0) --b.credits;
    }
    j.shift.marks += (mark && k.ect) - (said.mark && k.ect);
    j.shift.red_marks += (red_mark && k.ect) - (k.red && k.ect);
    return {mark, red_mark};
}

}  // namespace ringstep
