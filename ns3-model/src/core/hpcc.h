// HPCC (Li et al., SIGCOMM 2019, Algorithm 1), in rates: the window follows as rate x base RTT.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/config.h"
#include "core/types.h"

namespace ringstep {

// What a switch port writes into a data packet as it leaves (INT).
struct IntHop {
    TimePs time = 0;
    std::uint64_t tx_bytes = 0;
    double rate_bps = 0;
    std::uint32_t queue_bytes = 0;
    std::uint32_t link = kNone;
};

struct IntRecord {
    std::uint32_t hops = 0;
    std::array<IntHop, kMaxHops> hop;
};

class Hpcc {
  public:
    void start(double line_rate, TimePs base_rtt) {
        line_ = rate_ = line_rate;
        loops_.fill({line_rate, line_rate, 1, 0});
        rtt_ = std::max<TimePs>(base_rtt, 1);
    }
    double rate() const { return rate_; }
    TimePs base_rtt() const { return rtt_; }

    // Takes the INT of an ACK for packets below `acked`; `next` is the next packet to be sent.
    void on_ack(const HpccParams& p, const IntRecord& record, std::uint32_t acked,
                std::uint32_t next) {
        const bool fresh = !valid_;
        if (fresh || path_changed(record)) {
            last_ = record;
            valid_ = true;
            if (fresh) update_seq_ = next;
            return;
        }
        const bool full_round = acked > update_seq_;
        if (p.multi_rate) {
            // A rate per hop, of which the smallest counts.
            double smallest = line_;
            for (std::uint32_t i = 0; i < record.hops; ++i) {
                double tau = 0;
                const double load = load_of(i, record, tau);
                smallest = std::min(smallest, react(p, loops_[i], load, tau, full_round));
            }
            rate_ = smallest;
        } else {
            double load = 0;
            double tau = 0;
            for (std::uint32_t i = 0; i < record.hops; ++i) {
                double hop_tau = 0;
                const double u = load_of(i, record, hop_tau);
                if (u > load) {
                    load = u;
                    tau = hop_tau;
                }
            }
            rate_ = react(p, loops_[0], load, tau, full_round);
        }
        if (full_round) update_seq_ = next;
        last_ = record;
    }

  private:
    bool path_changed(const IntRecord& r) const {
        if (r.hops != last_.hops) return true;
        for (std::uint32_t i = 0; i < r.hops; ++i)
            if (r.hop[i].link != last_.hop[i].link) return true;
        return false;
    }

    struct Loop {
        double rate = 0;
        double current = 0;  // the rate of the last full round
        double utilisation = 1;
        int stage = 0;
    };

    double load_of(std::uint32_t i, const IntRecord& record, double& tau) const {
        const IntHop& now = record.hop[i];
        const IntHop& was = last_.hop[i];
        tau = static_cast<double>(now.time - was.time);
        if (tau <= 0) return 0;
        const double tx = static_cast<double>(now.tx_bytes - was.tx_bytes) * 8e12 / tau;
        const double queue = std::min(now.queue_bytes, was.queue_bytes);
        return tx / now.rate_bps + queue * 8e12 / (now.rate_bps * static_cast<double>(rtt_));
    }

    double react(const HpccParams& p, Loop& loop, double load, double tau, bool full_round) const {
        if (load <= 0) return loop.rate;
        const double share = std::min(tau / static_cast<double>(rtt_), 1.0);
        loop.utilisation = (1 - share) * loop.utilisation + share * load;
        double next = loop.current + p.rate_ai_bps;
        int stage = loop.stage + 1;
        if (loop.utilisation >= p.eta || loop.stage >= p.max_stage) {
            next = loop.current * p.eta / loop.utilisation + p.rate_ai_bps;
            stage = 0;
        }
        loop.rate = std::clamp(next, std::min(p.min_rate_bps, line_), line_);
        if (full_round) {
            loop.current = loop.rate;
            loop.stage = stage;
        }
        return loop.rate;
    }

    double line_ = 0;
    double rate_ = 0;
    TimePs rtt_ = 1;
    std::array<Loop, kMaxHops> loops_;
    std::uint32_t update_seq_ = 0;
    bool valid_ = false;
    IntRecord last_;
};

}  // namespace ringstep
