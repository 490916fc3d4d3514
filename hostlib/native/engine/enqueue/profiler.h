// The profiler plugin's half of one communicator: which events it wants, and telling it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nccl_profiler_v6.h"

namespace ringstep {

class Profiler {
  public:
    // Loads NCCL_PROFILER_PLUGIN and initialises it; nullptr where there is none or its init
    // fails, which is no error of the communicator. Throws only for RINGSTEP_ENGINE_PROFILER_ABI.
    static std::unique_ptr<Profiler> open(std::uint64_t comm_id, int n_ranks, int n_nodes,
                                          int rank);
    ~Profiler();
    Profiler(const Profiler&) = delete;
    Profiler& operator=(const Profiler&) = delete;

    // Whether events of the type are told: those asked for, and what is above them, as in NCCL.
    bool wants(int type) const { return (wanted_ & type) != 0; }

    // Starts an event; descr.rank is set here. nullptr where the plugin does not follow it.
    void* start(rs_prof_descr_v6& descr) const;
    // Both do nothing for nullptr.
    void stop(void* handle) const;
    void record(void* handle, int state, std::uint64_t p_timer = 0) const;

    const std::string& name() const { return name_; }
    int version() const { return version_; }

  private:
    Profiler(const void* exported, int version, int rank);
    int initialise(std::uint64_t comm_id, int n_ranks, int n_nodes);

    const void* exported_;  // rs_profiler_v<version_>
    int version_;
    int rank_;
    std::string name_;
    void* context_ = nullptr;
    int wanted_ = 0;
    bool live_ = false;
};

}  // namespace ringstep
