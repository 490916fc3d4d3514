// The reaction point of DCQCN, evaluated lazily: no timer is an event.
//
// Rules of `periodic` (ConnectX as modelled by the HPCC simulator), with `stage` counting increases
// since the last cut:
// 1. First CNP: alpha = initial_alpha, target = rate = rate_on_first_cnp x rate; the alpha timer
//    starts, the decrease timer 1 ns later, so that alpha is updated before a cut on the same tick.
// 2. Every t_alpha: alpha = (1 - g) alpha, plus g if a CNP came since the last tick.
// 3. Every t_dec, if a CNP came since the last cut: the target is clamped where the clamp rules say
//    so, rate = rate (1 - alpha / gd) within min_dec_fac and min_rate; stages, byte counter and
//    increase timer restart.
// 4. Every t_rp: fast recovery, additive or hyper increase by stage; rate = (rate + target) / 2.
// 5. With a byte counter each full count is an increase too (IEEE 802.1Qau).
// A timer due at the instant of a CNP or packet acts first. Where increase and decrease are due at
// the same instant, the longer period acts first (it was armed first).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/types.h"

namespace ringstep {

DcqcnParams dcqcn_preset(const std::string& name, double link_rate_bps);
std::vector<std::string> dcqcn_preset_names();

// Parameters in the units in which the reaction point works; shared by all QPs that use them.
struct DcqcnConstants {
    DcqcnConstants(const DcqcnParams& params, double line_rate_bps);

    double line_rate;
    TimePs t_alpha, t_dec, t_rp;
    double g, gd, min_dec_fac, rate_on_first_cnp, initial_alpha;
    double ai, hai, min_rate;
    std::int64_t byte_limit;  // 0: no byte counter
    TimePs cnp_interval;      // -1: marks are echoed
    int f;
    bool clamp_target, clamp_after_time_inc, hai_scaling, per_cnp, inc_before_dec, frozen;
    std::vector<double> decay;  // (1 - g)^n
};

class ReactionPoint {
  public:
    void start(const DcqcnConstants& c);

    // Lets every timer due by `now` act; returns the rate in bit/s.
    double advance(const DcqcnConstants& c, TimePs now) {
        if (now >= due_) run_timers(c, now);
        return rate_;
    }
    void on_cnp(const DcqcnConstants& c, TimePs now);
    // Counts bytes put on the wire; the rate after them.
    double on_sent(const DcqcnConstants& c, std::int64_t wire_bytes, TimePs now) {
        advance(c, now);
        if (c.byte_limit != 0 && t_inc_next_ != kNever) count_bytes(c, wire_bytes);
        return rate_;
    }
    // Brings alpha to `now` too (the rate does not need that between CNPs).
    void settle(const DcqcnConstants& c, TimePs now);

    double rate() const { return rate_; }
    double target() const { return target_; }
    double alpha() const { return alpha_; }
    int time_stage() const { return time_stage_; }
    int byte_stage() const { return byte_stage_; }
    int cuts() const { return cuts_; }

  private:
    void run_timers(const DcqcnConstants& c, TimePs now);
    void alpha_until(const DcqcnConstants& c, TimePs now);
    void increase_until(const DcqcnConstants& c, TimePs now);
    void increase(const DcqcnConstants& c);
    void first_cnp_rate(const DcqcnConstants& c);
    void cut(const DcqcnConstants& c, TimePs at);
    void count_bytes(const DcqcnConstants& c, std::int64_t wire_bytes);
    void set_due(const DcqcnConstants& c);
    bool at_rest(const DcqcnConstants& c) const {
        return rate_ == target_ && (c.frozen || rate_ == c.line_rate);
    }

    double rate_ = 0;
    TimePs due_ = kNever;  // when a timer next changes the rate
    double target_ = 0;
    double alpha_ = 1;
    TimePs t_alpha_next_ = 0;
    TimePs t_dec_next_ = 0;
    TimePs t_inc_next_ = kNever;
    std::int64_t bytes_ = 0;
    std::int32_t time_stage_ = 0;
    std::int32_t byte_stage_ = 0;
    std::int32_t cuts_ = 0;
    bool started_ = false;
    bool alpha_cnp_ = false;
    bool dec_cnp_ = false;
};

}  // namespace ringstep
