// The tuner plugin's half of one communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "enqueue/choose.h"

namespace ringstep {

class Tuner {
  public:
    // Loads NCCL_TUNER_PLUGIN and initialises it; nullptr where there is none.
    // Throws Error(RE_TUNER) where its init fails, which fails the communicator as in NCCL.
    static std::unique_ptr<Tuner> open(std::uint64_t comm_id, int n_ranks, int n_nodes);
    ~Tuner();
    Tuner(const Tuner&) = delete;
    Tuner& operator=(const Tuner&) = delete;

    // Both throw Error(RE_TUNER) where the plugin returns an error: the collective fails.
    void coll_info(int coll, std::size_t bytes, int pipe_ops, CostTable& table, int& n_channels);
    // Nothing below v6, or where the plugin has no such function.
    void chunk_size(int coll, std::size_t bytes, int algo, int proto, int n_channels,
                    std::size_t& chunk);

    const std::string& name() const { return name_; }
    int version() const { return version_; }

  private:
    Tuner(const void* exported, int version);
    void check(int result, const char* function) const;

    const void* exported_;  // rs_tuner_v<version_>
    int version_;
    std::string name_;
    void* context_ = nullptr;
    bool live_ = false;
};

}  // namespace ringstep
