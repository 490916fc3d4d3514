#include "core/marker.h"

#include <algorithm>

namespace ringstep {

namespace {
constexpr std::uint64_t kClockMask = (1ULL << 48) - 1;
// A time up to that before the start of a window ends nothing, as in ringstep.protocol.marker.
constexpr std::uint64_t kLatenessUs = 1 << 16;
constexpr std::uint32_t kCountMask = 0xFFFFFFFFU;
constexpr std::uint32_t kPsnHalf = 1U << 23;
constexpr std::uint32_t kUnmapped = 0xFFFFFFFFU;
}  // namespace

void MarkerParams::check() const {
    require(k <= 65536, "k", k, "must be in 0..65536, K = round(k * 2**16)");
    require(tau_den >= 1 && tau_den <= 255, "tau_den", tau_den, "must be in 1..255");
    require(tau_num <= tau_den, "tau_num", tau_num, "must be in 0..tau_den");
    require(t_win_us >= 1, "t_win_us", t_win_us, "must be at least 1 us");
    require(n_sample <= 65535, "n_sample", n_sample, "must be in 0..65535");
    require(n_warmup <= kPsnMask, "n_warmup", n_warmup, "must be in 0..16777215");
    require(alpha_max >= 1 && alpha_max <= 255, "alpha_max", alpha_max, "must be in 1..255");
    if (q_gate_packets)
        require(*q_gate_packets <= (1U << 19) - 2, "q_gate_packets", *q_gate_packets,
                "must be in 0..524286 or None");
    require(step_bits >= 2 && step_bits <= 14, "step_bits", step_bits, "must be in 2..14");
    require(!anchored || step_bits > 2, "step_bits", step_bits,
            "anchored progress needs more than four steps, step_bits >= 3");
    require(packets_per_step <= kPsnMask, "packets_per_step", packets_per_step,
            "must be in 0..16777215");
    require(generation >= 1 && generation <= 255, "generation", generation, "must be in 1..255");
}

Marker::Marker(const MarkerParams& params, bool per_port) : per_port_(per_port) {
    update(params);
}

void Marker::update(const MarkerParams& params) {
    params.check();
    p_ = params;
    mask_ = (1U << p_.step_bits) - 1;
    sign_ = 1U << (p_.step_bits - 1);
}

std::uint32_t Marker::block_of(std::uint32_t port) {
    if (port >= map_.size()) map_.resize(port + 1, kUnmapped);
    if (map_[port] == kUnmapped) map_[port] = per_port_ ? port : 0;
    const std::uint32_t block = map_[port];
    if (block >= blocks_.size()) blocks_.resize(block + 1);
    return block;
}

void Marker::set_block(std::uint32_t port, std::uint32_t block) {
    if (port >= map_.size()) map_.resize(port + 1, kUnmapped);
    map_[port] = block;
}

const MarkerBlock& Marker::block(std::uint32_t port) {
    return blocks_[block_of(port)];
}

bool Marker::lagging(std::uint32_t step, std::uint32_t port) {
    const MarkerBlock& b = block(port);
    return b.generation == p_.generation && !ahead(step & mask_, b.step_min);
}

std::uint32_t Marker::progress(std::uint32_t step, std::uint32_t psn) {
    if (!p_.anchored) return psn;
    MarkerAnchor& a = anchors_[step & 3];
    if (a.generation != p_.generation || a.step != step) {
        a = {p_.generation, step, psn};
        return 0;
    }
    const std::uint32_t offset = (psn - a.base) & kPsnMask;
    return offset < kPsnHalf ? offset : 0;
}

MarkerDecision Marker::on_packet(std::uint64_t now_us, std::uint32_t step, std::uint32_t psn,
                                 bool last, bool ect, std::uint32_t r, std::uint32_t qdepth,
                                 bool red, std::uint32_t port) {
    step &= mask_;
    const std::uint32_t done = progress(step, psn);
    const bool ends_step = last && (p_.packets_per_step == 0 || done >= p_.packets_per_step - 1);

    MarkerBlock& b = blocks_[block_of(port)];
    if (b.generation != p_.generation) {
        b.step_min = step;
        b.psn_rec = 0;
        b.alpha = 1;
        b.cnt_total = b.cnt_op = 0;
        b.win_start = now_us;
        b.generation = p_.generation;
    }

    const std::uint64_t age = (now_us - b.win_start) & kClockMask;
    if (age >= p_.t_win_us && age <= kClockMask - kLatenessUs) {
        if (b.cnt_total > p_.n_sample) {
            if (static_cast<std::uint64_t>(b.cnt_op) * p_.tau_den >=
                static_cast<std::uint64_t>(p_.tau_num) * b.cnt_total) {
                b.alpha = std::min(b.alpha + 1, p_.alpha_max);
            } else {
                b.alpha = std::max(b.alpha - 1, 1U);
            }
        }
        b.cnt_total = b.cnt_op = b.psn_rec = 0;
        b.win_start = now_us;
    }

    b.cnt_total = (b.cnt_total + 1) & kCountMask;
    if (ahead(step, b.step_min)) b.cnt_op = (b.cnt_op + 1) & kCountMask;

    const std::uint32_t before = b.step_min;
    if (ends_step) {
        b.step_min = (step + 1) & mask_;
        b.psn_rec = 0;
    } else if (ahead(b.step_min, step)) {
        b.step_min = step;
        b.psn_rec = done;
    } else if (step == b.step_min) {
        b.psn_rec = std::max(b.psn_rec, done);
    }

    // r psn_rec < 2^40 and k alpha progress < 2^17 2^8 2^24: both sides fit 64 bits.
    const bool mark = p_.enabled && ahead(step, b.step_min) && b.psn_rec > p_.n_warmup &&
                      (!p_.q_gate_packets || qdepth > *p_.q_gate_packets) &&
                      static_cast<std::uint64_t>(r) * b.psn_rec <
                          static_cast<std::uint64_t>(p_.k) * b.alpha * done;
    ++counters_.data;
    counters_.marks += mark && ect;
    counters_.red_marks += red && ect;
    counters_.advances += ahead(b.step_min, before);
    counters_.corrections += ahead(before, b.step_min);
    return {mark, ect && (mark || red), done};
}

}  // namespace ringstep
