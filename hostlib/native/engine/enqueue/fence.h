// The rank's side of a fence of the agreement (docs/agreement.md).
#pragma once

#include <cstdint>

#include "core.h"
#include "ringstep_shm.h"

namespace ringstep {

class Fence {
  public:
    Fence() = default;
    ~Fence();
    Fence(const Fence&) = delete;
    Fence& operator=(const Fence&) = delete;

    // Looks for the slot that the plugin of this process took for the communicator in the job's
    // file; nothing is found without one. Called once, after the plugin's init.
    void find(const Comm& comm);
    bool found() const { return slot_ != nullptr; }

    // All ranks: exchanges what each holds, and puts it in force where all hold the same.
    // Throws Error where the exchange fails; the ranks without a slot take part and agree to none.
    void pass(Comm& comm);

  private:
    rs_file* file_ = nullptr;
    rs_rank_slot* slot_ = nullptr;
};

}  // namespace ringstep
