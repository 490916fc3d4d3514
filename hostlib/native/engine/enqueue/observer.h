// One running collective as the profiler sees it: kernels per channel, operations, steps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core.h"
#include "enqueue/profiler.h"

namespace ringstep {

inline constexpr int kMaxChannels = 8;  // of the engine

class Observer final : public RunObserver {
  public:
    // profiler: nullptr for times alone. coll: handle of the collective's event.
    Observer(const Profiler* profiler, void* coll, int n_channels, std::size_t chunk_bytes);

    void channel_started(int channel, std::uint64_t now_ns) override;
    void channel_stopped(int channel, std::uint64_t now_ns) override;
    void send_started(int channel, int peer, std::uint64_t step) override;
    void send_blocked(int channel, int peer, std::uint64_t step) override;
    void send_finished(int channel, int peer, std::uint64_t step) override;

    // After the run, also a failed one: ends what is open, so that the plugin is done with it.
    void finish(std::uint64_t now_ns);
    // From the first channel's start to the last one's stop.
    std::uint64_t nanoseconds() const { return last_ns_ > first_ns_ ? last_ns_ - first_ns_ : 0; }

  private:
    struct Step {
        std::uint64_t step;
        void* handle;
    };
    struct Operation {  // sends of one channel to one peer
        int channel;
        int peer;
        void* handle;
        std::vector<Step> open;
    };
    struct Kernel {
        void* handle = nullptr;
        bool started = false;
        bool stopped = false;
    };

    Operation& operation(int channel, int peer);
    Step& open_step(Operation& op, std::uint64_t step);

    const Profiler* steps_;    // nullptr: nobody wants them
    const Profiler* kernels_;  // nullptr: nobody wants them
    const Profiler* ops_;
    void* coll_;
    int n_channels_;
    std::size_t chunk_bytes_;
    std::uint64_t first_ns_ = 0;
    std::uint64_t last_ns_ = 0;
    std::array<Kernel, kMaxChannels> channels_ = {};
    std::vector<Operation> operations_;
};

}  // namespace ringstep
