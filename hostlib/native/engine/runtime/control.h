// The control connections: a star around rank 0. They carry exchanges, the reason why a rank gave
// up, and that a rank is done; and their end is how all learn of a rank's death.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core.h"
#include "runtime/link.h"

namespace ringstep {

class Control {
  public:
    Control(int rank, int n_ranks, std::vector<Fd> connections);

    // Reads what has come. Throws Error for what is no message.
    void poll();

    void send_exchange(const void* data, std::size_t size, std::uint64_t deadline_ns);
    // Rank 0: all parts are there. Others: the answer is.
    bool exchanged() const;
    // Rank 0 answers here. Throws Error where the sizes differ.
    void take_exchange(const void* mine, void* all, std::size_t bytes, std::uint64_t deadline_ns);
    std::string awaited() const;
    // A rank that left without taking part in the exchange under way; -1: none.
    int departed_before_exchange() const;

    // Tells the others why this rank gives up. Never blocks or throws.
    void give_up(re_result code, const std::string& why) noexcept;
    void say_bye(std::uint32_t sequence) noexcept;
    // Tells the others that this rank waits, at call `sequence`; and who has not said so of that
    // call.
    void say_stalled(std::uint32_t sequence) noexcept;
    std::string silent_at(std::uint32_t sequence) const;

    struct Notice {
        re_result code;
        int origin;
        std::string text;
    };
    std::optional<Notice> notice;  // why another rank gave up
    int lost = -1;                 // a rank whose connection ended without a word
    struct Departure {
        int rank;
        std::uint32_t sequence;
    };
    std::vector<Departure> departed;  // destroyed their communicator after so many calls

    std::vector<Watched> watched;

  private:
    struct Peer {
        int rank;
        bool gone = false;
        bool bye = false;
        std::vector<std::uint8_t> buffer;
        std::deque<std::vector<std::uint8_t>> parts;
    };

    void read_from(std::size_t i);
    void parse(std::size_t i);
    void handle(std::size_t i, std::uint32_t kind, int origin, const std::uint8_t* data,
                std::size_t size);
    void send_quietly(std::size_t i, std::uint32_t kind, int origin, const void* data,
                      std::size_t size) noexcept;

    const int rank_;
    std::vector<std::int64_t> stalled_at_;  // by rank: the call; -1: none
    std::vector<Peer> peers_;
};

}  // namespace ringstep
