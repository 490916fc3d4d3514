// A rank's communicators: those measured, and one for the tool's own messages.
#pragma once

#include <span>
#include <vector>

#include "perf/launch.h"
#include "perf/options.h"

namespace perf {

class Session {
  public:
    // ids: one per measured communicator, then the tool's own. Throws Failure.
    Session(const Options& options, int rank, const std::vector<re_unique_id>& ids);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    int rank() const { return rank_; }
    int n_ranks() const { return n_ranks_; }
    int n_nodes() const;
    std::span<re_comm* const> comms() const { return comms_; }

    // Over all ranks, element by element, in place; both are barriers.
    void most(std::span<double> values);
    void sum(std::span<std::int64_t> values);

  private:
    void close();

    int rank_;
    int n_ranks_;
    std::vector<re_comm*> comms_;
    re_comm* own_ = nullptr;
};

}  // namespace perf
