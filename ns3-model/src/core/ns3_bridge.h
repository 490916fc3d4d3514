// The border to ns-3: its clock and scheduler drive the run, its generator seeds the streams.
//
// Everything that others must see (user events, link events, job starts) is an event of ns-3.
// Packet events stay in the model's own queue: one ns-3 event, the pump, runs them up to the time
// of the next ns-3 event, which a scheduler of our own lets it see.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ringstep {

class Ns3Bridge {
  public:
    // Claims ns-3's simulator for one run; raises std::runtime_error while another run holds it.
    Ns3Bridge();
    ~Ns3Bridge();
    Ns3Bridge(const Ns3Bridge&) = delete;
    Ns3Bridge& operator=(const Ns3Bridge&) = delete;

    void schedule_at(std::int64_t time_ns, std::function<void()> action);
    std::int64_t now_ns() const;
    // Time of the next event of ns-3 (INT64_MAX: none). Cheap enough to ask per packet event: it is
    // a number that insertions keep up to date.
    const std::int64_t& next_ns() const;
    // Runs ns-3's events until none is left or stop() was called.
    void run();
    void stop();
    std::uint64_t executed() const;

    // The seed of a numbered stream, drawn from ns-3's generator for (seed, stream).
    static std::uint64_t stream_seed(std::uint32_t seed, std::uint64_t stream);
    static std::string version();

  private:
    std::uint64_t executed_at_start_ = 0;
};

}  // namespace ringstep
