// Rings: all-reduce, all-gather and reduce-scatter, with constant state per rank.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/waist.h"

namespace ringstep {

enum class Dependency : std::uint8_t { kCount, kInOrder, kPerChunk };

// The bytes of part `i` of `total` cut into `n` parts that differ by at most one byte.
inline std::int64_t part(std::int64_t total, std::int64_t n, std::int64_t i) {
    // total * n could overflow; total / n and total % n cannot.
    const std::int64_t base = total / n;
    const std::int64_t rest = total % n;
    return base + (rest * (i + 1) / n - rest * i / n);
}

class RingCollective final : public Collective {
  public:
    enum class Kind : std::uint8_t { kAllReduce, kAllGather, kReduceScatter };

    // `groups`: ranks in ring order. Each group runs `channels` rings with the bytes split.
    // A step travels as `messages`; each waits for its like of the step before, not for the others.
    RingCollective(Waist& waist, Kind kind, const std::vector<std::vector<int>>& groups,
                   int channels, std::int64_t bytes, int passes, int messages,
                   Dependency dependency, int ranks);

    void start(std::int32_t rank) override;
    void on_delivered(const Transfer& transfer) override;
    bool involves(std::int32_t rank) const override {
        return !place_[static_cast<std::size_t>(rank)].empty();
    }
    std::uint32_t steps() const override { return steps_; }
    std::int64_t total_bytes() const;

  private:
    struct Member {  // message m is number m % messages_ of step m / messages_
        std::int32_t rank = 0;
        bool started = false;
        std::uint32_t sent = 0;            // messages sent (kCount, kInOrder: all below)
        std::uint32_t received = 0;        // arrivals
        std::uint32_t prefix = 0;          // all messages below have arrived
        std::uint32_t passes = 0;          // kPerChunk: passes begun
        std::vector<std::uint32_t> early;  // arrivals above the prefix, ascending
    };
    struct Ring {
        std::vector<Member> members;
        std::int64_t bytes = 0;
        std::uint32_t steps_per_pass = 0;
        std::uint32_t per_pass = 0;  // messages
        std::uint32_t total = 0;     // messages
    };
    struct Place {
        std::uint32_t ring;
        std::uint32_t position;
    };

    std::int64_t chunk_bytes(const Ring& ring, std::uint32_t position, std::uint32_t step) const;
    void send_message(std::uint32_t ring, std::uint32_t position, std::uint32_t message);
    void go_on(std::uint32_t ring, std::uint32_t position);
    void begin_passes(std::uint32_t ring, std::uint32_t position);

    Waist& waist_;
    Kind kind_;
    Dependency dependency_;
    std::uint32_t messages_;  // per step
    std::uint32_t steps_ = 0;
    std::vector<Ring> rings_;
    std::vector<std::vector<Place>> place_;  // by rank
    std::vector<std::uint32_t> unfinished_;  // by rank: rings under way
};

}  // namespace ringstep
