#include "core/dcqcn.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace ringstep {

namespace {

constexpr double kMbps = 1e6;

TimePs ps(double us) {
    // The published rules live on a grid of 1 ns, where "the same instant" is exact.
    return std::max<TimePs>(1, std::llround(us * 1000)) * kPsPerNs;
}

DcqcnParams hpcc_run(double rate) {
    DcqcnParams p;
    p.rate_ai_bps = 5 * kMbps * rate / 25e9;
    p.rate_hai_bps = 50 * kMbps * rate / 25e9;
    p.min_rate_bps = 1000 * kMbps;
    return p;
}

DcqcnParams hpcc_config(double) {
    DcqcnParams p;
    p.t_rp_us = 900;
    p.rate_ai_bps = 50 * kMbps;
    p.rate_hai_bps = 100 * kMbps;
    p.min_rate_bps = 100 * kMbps;
    return p;
}

DcqcnParams dcqcn_paper(double rate) {
    DcqcnParams p = hpcc_run(rate);
    p.t_alpha_us = 50;
    p.t_dec_us = 50;
    p.t_rp_us = 55;
    return p;
}

DcqcnParams conweave(double rate) {
    DcqcnParams p = hpcc_run(rate);
    p.rate_ai_bps = 10 * kMbps * rate / 25e9;
    p.rate_hai_bps = kMbps * rate / 1e9;
    p.min_rate_bps = 100 * kMbps;
    return p;
}

DcqcnParams dcqcn_author(double) {
    DcqcnParams p;
    p.t_alpha_us = 55;
    p.t_dec_us = 50;
    p.t_rp_us = 60;
    p.f = 5;
    p.rate_ai_bps = 40 * kMbps;
    p.rate_hai_bps = 200 * kMbps;
    p.min_rate_bps = 100 * kMbps;
    p.byte_counter_bytes = 300'000;
    p.clamp_target = true;
    p.reaction = "per_cnp";
    p.cnp_interval_us = 50;
    return p;
}

DcqcnParams sigcomm15(double rate) {
    DcqcnParams p = dcqcn_author(rate);
    p.t_rp_us = 55;
    p.byte_counter_bytes = 10'000'000;
    return p;
}

DcqcnParams connectx(double) {
    DcqcnParams p;
    p.g = 5.0 / 1024;
    p.rate_ai_bps = 5 * kMbps;
    p.rate_hai_bps = 50 * kMbps;
    p.min_rate_bps = 1 * kMbps;
    p.byte_counter_bytes = 32767;
    p.min_dec_fac = 0.5;
    p.initial_alpha = 1023.0 / 1024;
    p.cnp_interval_us = 4;
    return p;
}

using Make = DcqcnParams (*)(double);
const std::map<std::string, Make>& presets() {
    static const std::map<std::string, Make> table = {
        {"hpcc_run", hpcc_run}, {"hpcc_config", hpcc_config},   {"dcqcn_paper", dcqcn_paper},
        {"conweave", conweave}, {"dcqcn_author", dcqcn_author}, {"sigcomm15", sigcomm15},
        {"connectx", connectx},
    };
    return table;
}

}  // namespace

std::vector<std::string> dcqcn_preset_names() {
    std::vector<std::string> names;
    for (const auto& [name, make] : presets()) names.push_back(name);
    return names;
}

DcqcnParams dcqcn_preset(const std::string& name, double link_rate_bps) {
    require(link_rate_bps > 0, "link_rate_bps", link_rate_bps, "must be above 0");
    const auto found = presets().find(name);
    if (found == presets().end()) {
        std::string known;
        for (const auto& n : dcqcn_preset_names()) known += (known.empty() ? "" : ", ") + n;
        throw ConfigError("unknown DCQCN preset \"" + name + "\"; known: " + known);
    }
    return found->second(link_rate_bps);
}

void DcqcnParams::check() const {
    for (const auto& [name, value] : {std::pair<const char*, double>{"t_alpha_us", t_alpha_us},
                                      {"t_dec_us", t_dec_us},
                                      {"t_rp_us", t_rp_us}})
        require(value >= 0.001, name, value, "must be at least 0.001 us");
    require(g > 0 && g <= 1, "g", g, "must lie in (0, 1]");
    require(f >= 0, "f", f, "must not be negative");
    require(rate_ai_bps >= 0, "rate_ai_bps", rate_ai_bps, "must not be negative");
    require(rate_hai_bps >= 0, "rate_hai_bps", rate_hai_bps, "must not be negative");
    require(min_rate_bps > 0, "min_rate_bps", min_rate_bps, "must be above 0");
    if (byte_counter_bytes)
        require(*byte_counter_bytes > 0, "byte_counter_bytes", *byte_counter_bytes,
                "must be above 0; None switches the byte counter off");
    require(gd >= 1, "gd", gd, "must be at least 1, or a cut could go below zero");
    require(min_dec_fac >= 0 && min_dec_fac <= 1, "min_dec_fac", min_dec_fac, "must lie in [0, 1]");
    require(rate_on_first_cnp > 0 && rate_on_first_cnp <= 1, "rate_on_first_cnp", rate_on_first_cnp,
            "must lie in (0, 1]");
    require(initial_alpha >= 0 && initial_alpha <= 1, "initial_alpha", initial_alpha,
            "must lie in [0, 1]");
    require(reaction == "periodic" || reaction == "per_cnp", "reaction", reaction,
            "must be \"periodic\" or \"per_cnp\"");
    if (cnp_interval_us)
        require(*cnp_interval_us >= 0, "cnp_interval_us", *cnp_interval_us,
                "must not be negative; None echoes marks in ACKs");
}

DcqcnConstants::DcqcnConstants(const DcqcnParams& p, double line_rate_bps) {
    p.check();
    require(p.min_rate_bps <= line_rate_bps, "min_rate_bps", p.min_rate_bps,
            "exceeds the line rate of " + std::to_string(line_rate_bps) + " bit/s");
    line_rate = line_rate_bps;
    t_alpha = ps(p.t_alpha_us);
    t_dec = ps(p.t_dec_us);
    t_rp = ps(p.t_rp_us);
    g = p.g;
    gd = p.gd;
    min_dec_fac = p.min_dec_fac;
    rate_on_first_cnp = p.rate_on_first_cnp;
    initial_alpha = p.initial_alpha;
    ai = p.rate_ai_bps;
    hai = p.rate_hai_bps;
    min_rate = p.min_rate_bps;
    byte_limit = p.byte_counter_bytes.value_or(0);
    cnp_interval = p.cnp_interval_us ? std::llround(*p.cnp_interval_us * 1000) * kPsPerNs : -1;
    f = p.f;
    clamp_target = p.clamp_target;
    clamp_after_time_inc = p.clamp_after_time_inc;
    hai_scaling = p.hai_scaling;
    per_cnp = p.reaction == "per_cnp";
    inc_before_dec = t_rp > t_dec;
    frozen = ai == 0 && hai == 0;
    decay.resize(1024);
    for (std::size_t n = 0; n < decay.size(); ++n)
        decay[n] = std::pow(1 - g, static_cast<double>(n));
}

void ReactionPoint::start(const DcqcnConstants& c) {
    *this = ReactionPoint();
    rate_ = target_ = c.line_rate;
    alpha_ = c.initial_alpha;
}

void ReactionPoint::set_due(const DcqcnConstants& c) {
    TimePs due = kNever;
    if (dec_cnp_) due = t_dec_next_;
    if (t_inc_next_ != kNever && !at_rest(c)) due = std::min(due, t_inc_next_);
    due_ = due;
}

void ReactionPoint::run_timers(const DcqcnConstants& c, TimePs now) {
    if (!started_) return;
    if (!c.per_cnp) {
        // Calls come in the order of time, so at most one cut is pending between two calls.
        if (dec_cnp_ && t_dec_next_ <= now) {
            const TimePs at = t_dec_next_;
            alpha_until(c, at);
            increase_until(c, c.inc_before_dec ? at : at - 1);
            dec_cnp_ = false;
            cut(c, at);
        }
        if (t_dec_next_ <= now) t_dec_next_ += ((now - t_dec_next_) / c.t_dec + 1) * c.t_dec;
    }
    increase_until(c, now);
    set_due(c);
}

void ReactionPoint::settle(const DcqcnConstants& c, TimePs now) {
    if (!started_) return;
    run_timers(c, now);
    alpha_until(c, now);
}

void ReactionPoint::on_cnp(const DcqcnConstants& c, TimePs now) {
    settle(c, now);
    if (c.per_cnp) {
        if (!started_) {
            started_ = true;
            alpha_ = c.initial_alpha;
            first_cnp_rate(c);
        }
        cut(c, now);
        alpha_ = (1 - c.g) * alpha_ + c.g;
        t_alpha_next_ = now + c.t_alpha;
    } else {
        alpha_cnp_ = true;
        dec_cnp_ = true;
        if (!started_) {
            started_ = true;
            alpha_ = c.initial_alpha;
            alpha_cnp_ = false;
            t_alpha_next_ = now + c.t_alpha;
            t_dec_next_ = now + c.t_dec + kPsPerNs;
            first_cnp_rate(c);
        }
    }
    set_due(c);
}

void ReactionPoint::alpha_until(const DcqcnConstants& c, TimePs now) {
    if (now < t_alpha_next_) return;
    TimePs ticks = (now - t_alpha_next_) / c.t_alpha + 1;
    t_alpha_next_ += ticks * c.t_alpha;
    if (alpha_cnp_) {
        alpha_cnp_ = false;
        alpha_ = (1 - c.g) * alpha_ + c.g;
        --ticks;
    }
    if (ticks == 0) return;
    const auto n = static_cast<std::size_t>(ticks);
    alpha_ *= n < c.decay.size() ? c.decay[n] : std::pow(1 - c.g, static_cast<double>(ticks));
}

void ReactionPoint::increase_until(const DcqcnConstants& c, TimePs now) {
    if (t_inc_next_ == kNever) return;
    while (t_inc_next_ <= now) {
        if (at_rest(c)) {  // nothing left to gain: only the stage still counts
            const TimePs ticks = (now - t_inc_next_) / c.t_rp + 1;
            time_stage_ += static_cast<std::int32_t>(std::min<TimePs>(ticks, 1 << 20));
            t_inc_next_ += ticks * c.t_rp;
            return;
        }
        increase(c);
        ++time_stage_;
        t_inc_next_ += c.t_rp;
    }
}

void ReactionPoint::increase(const DcqcnConstants& c) {
    int low = time_stage_;
    int high = time_stage_;
    if (c.byte_limit != 0) {
        low = std::min(time_stage_, byte_stage_);
        high = std::max(time_stage_, byte_stage_);
    }
    if (high >= c.f) {
        const double step = low > c.f ? c.hai * (c.hai_scaling ? low - c.f : 1) : c.ai;
        target_ = std::min(c.line_rate, target_ + step);
    }
    rate_ = (rate_ + target_) / 2;
}

void ReactionPoint::first_cnp_rate(const DcqcnConstants& c) {
    target_ = std::max(c.min_rate, c.rate_on_first_cnp * rate_);
    rate_ = target_;
}

void ReactionPoint::cut(const DcqcnConstants& c, TimePs at) {
    if (c.clamp_target || byte_stage_ > 0 || (c.clamp_after_time_inc && time_stage_ > 0))
        target_ = rate_;
    const double factor = std::max(1 - alpha_ / c.gd, c.min_dec_fac);
    time_stage_ = 0;
    byte_stage_ = 0;
    bytes_ = 0;
    t_inc_next_ = at + c.t_rp;
    ++cuts_;
    rate_ = std::max(c.min_rate, rate_ * factor);
}

void ReactionPoint::count_bytes(const DcqcnConstants& c, std::int64_t wire_bytes) {
    bytes_ += wire_bytes;
    if (bytes_ < c.byte_limit) return;
    while (bytes_ >= c.byte_limit) {
        bytes_ -= c.byte_limit;
        increase(c);
        ++byte_stage_;
    }
    set_due(c);
}

}  // namespace ringstep
