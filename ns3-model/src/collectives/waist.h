// The narrow waist between collectives and transport: send, delivered, schedule, now.
//
// Collectives know ranks, steps and bytes; they know nothing of hosts, queue pairs or packets. What
// carries the messages knows nothing of rings.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ringstep {

struct Transfer {
    std::int32_t src = 0;  // ranks
    std::int32_t dst = 0;
    std::int64_t bytes = 0;
    std::uint32_t step = 0;  // index within the stage; the job adds the base of the operation
    std::uint32_t ring = 0;  // channel: transfers of one channel between two ranks keep their order
    std::uint64_t cookie = 0;    // of the collective, 40 bits
    std::uint32_t messages = 1;  // of this step on this channel, from `src`
};

// What a collective may ask for.
class Waist {
  public:
    virtual void send(const Transfer& transfer) = 0;
    // Calls on_wakeup(arg) of the collective after `delay`.
    virtual void schedule(TimePs delay, std::uint64_t arg) = 0;
    virtual TimePs now() const = 0;
    // `rank` has all it takes part in for.
    virtual void done(std::int32_t rank) = 0;

  protected:
    ~Waist() = default;
};

// One stage of an operation: a collective among the ranks of some groups.
class Collective {
  public:
    virtual ~Collective() = default;
    virtual void start(std::int32_t rank) = 0;
    // A message of this collective arrived (as the job's notify rule has it).
    virtual void on_delivered(const Transfer& transfer) = 0;
    // The sender got the last ACK of it.
    virtual void on_acked(const Transfer&) {}
    virtual void on_wakeup(std::uint64_t) {}
    virtual bool involves(std::int32_t rank) const = 0;
    // Step indices are below this.
    virtual std::uint32_t steps() const = 0;
};

}  // namespace ringstep
