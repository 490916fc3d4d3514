// What the engine's halves share: below, connections and algorithms (run()); above, what decides
// (enqueue) and what shows (the C interface, ringstep-perf).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "ringstep_engine.h"

namespace ringstep {

// Every error inside the engine; the C interface turns it into its code and text.
class Error : public std::runtime_error {
  public:
    Error(re_result why, const std::string& what) : std::runtime_error(what), code(why) {}
    re_result code;
};

std::size_t size_of(re_type type);

class Comm;

// Told while a collective runs, on the thread that runs it. All methods must be quick.
class RunObserver {
  public:
    virtual ~RunObserver() = default;
    virtual void channel_started(int channel, std::uint64_t now_ns) = 0;
    virtual void channel_stopped(int channel, std::uint64_t now_ns) = 0;
    // A message of ring or tree step `step` left, or wanted to leave and could not (no credit from
    // the receiver, or the connection takes no more): NCCL's SendPeerWait.
    virtual void send_started(int channel, int peer, std::uint64_t step) = 0;
    virtual void send_blocked(int channel, int peer, std::uint64_t step) = 0;
    virtual void send_finished(int channel, int peer, std::uint64_t step) = 0;
};

// One collective to run with everything decided. All ranks hold the same.
struct Work {
    Comm* comm = nullptr;
    re_coll coll = RE_ALL_REDUCE;
    re_algo algo = RE_RING;
    re_proto proto = RE_SIMPLE;
    int n_channels = 1;
    std::size_t chunk_bytes = 0;  // what one message carries; 0: the protocol's default
    re_type type = RE_FLOAT32;
    re_op op = RE_SUM;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;  // elements of the smaller side
    int root = 0;
    RunObserver* observer = nullptr;
};

// Connections among n_ranks ranks.
class Comm {
  public:
    // Throws Error. Blocks until all ranks are there, or timeout.
    static std::unique_ptr<Comm> create(const re_unique_id& id, int n_ranks, int rank,
                                        const re_config& config);
    virtual ~Comm() = default;

    virtual int rank() const = 0;
    virtual int n_ranks() const = 0;
    virtual int n_nodes() const = 0;
    virtual std::uint64_t id() const = 0;  // the same on all ranks, else unique
    virtual int max_channels() const = 0;  // the least of all ranks

    // All-gather of a few bytes over the control connections: all[i * bytes] is rank i's.
    // The same calls on all ranks, never while collectives run. Throws Error.
    virtual void exchange(const void* mine, void* all, std::size_t bytes) = 0;

    // Ends whatever runs, with RE_ABORTED; from any thread.
    virtual void abort() noexcept = 0;
};

// What one message carries where nobody said otherwise, in bytes.
std::size_t default_chunk(re_proto proto);

// Runs collectives to the end; those of one communicator in order, several communicators side by
// side. Throws Error, after which the communicators concerned are broken: every later call says so.
// Checks nothing but what would corrupt memory; the enqueue half checks arguments.
void run(std::span<const Work> works);

}  // namespace ringstep
