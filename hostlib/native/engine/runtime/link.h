// One direction of data between two ranks on one channel, on its own connection; credits flow back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core.h"
#include "runtime/socket.h"

namespace ringstep {

// What the bytes of a work must agree on; stands before a work's first message on every link.
struct WorkHeader {
    std::uint32_t magic;
    std::uint32_t sequence;  // of the communicator's works
    std::uint8_t coll, algo, proto, n_channels, type, op;
    std::uint16_t root;
    std::uint64_t count;
    std::uint64_t chunk_bytes;

    bool operator==(const WorkHeader&) const = default;
};
static_assert(sizeof(WorkHeader) == 32);

std::string described(const WorkHeader& work);

// A descriptor in the communicator's epoll set, edge-triggered: what is known of it.
struct Watched {
    Fd fd;
    bool readable = true;
    bool writable = true;
    bool ended = false;  // the peer has shut down; what it sent before can still be read
};

// A connection that ended in the middle of something. The progress loop finds out why.
class LinkLost : public std::exception {
  public:
    LinkLost(int rank, std::string what) : peer(rank), text(std::move(what)) {}
    const char* what() const noexcept override { return text.c_str(); }
    int peer;
    std::string text;
};

constexpr std::uint64_t untagged = ~std::uint64_t{0};  // a step that is none
constexpr std::uint32_t window = 8;                    // messages in flight, as NCCL_STEPS
constexpr std::size_t staging_bytes = 128 << 10;       // of flagged words, per link

class Sender {
  public:
    Sender(Fd fd, int peer, int channel, bool framed);

    void start_work(const WorkHeader& header, RunObserver* observer);

    // A message of `size` bytes at data. False while the receiver has given no credit.
    bool begin(const void* data, std::size_t size, std::uint64_t step);
    bool busy() const { return busy_; }
    // Sends what is there of the message's first `available` bytes. True where anything moved.
    bool push(std::size_t available);
    // All of the message has left; the next may begin.
    bool finish();

    // Bytes that the peer's system has not acknowledged; 0 where it is gone.
    std::size_t unsent() const;
    std::string awaited() const;

    Watched watched;
    const int peer;
    const int channel;

  private:
    bool push_words(std::size_t available);
    void read_credits();
    void blocked();

    const bool framed_;
    bool words_ = false;
    bool busy_ = false;
    bool was_blocked_ = false;
    bool starved_ = false;
    bool header_pending_ = false;
    WorkHeader header_{};
    RunObserver* observer_ = nullptr;

    const std::uint8_t* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t sent_ = 0;  // bytes of data that left, or were encoded
    std::uint64_t step_ = 0;
    std::vector<std::uint8_t> preamble_;
    std::size_t preamble_sent_ = 0;
    std::vector<std::uint8_t> staged_;  // flagged words
    std::size_t staged_sent_ = 0;
    std::uint32_t flag_ = 0;
    std::uint32_t messages_ = 0;  // with credits
    std::uint32_t taken_ = 0;     // by the receiver, as it says
    std::uint8_t credit_[12] = {};
    std::size_t credit_got_ = 0;
};

class Receiver {
  public:
    Receiver(Fd fd, int peer, int channel, bool framed);

    void start_work(const WorkHeader& header);

    void begin(std::size_t size, std::uint64_t step);
    bool busy() const { return busy_; }
    // Up to room bytes of the message; 0 where none are there.
    std::size_t pull(void* to, std::size_t room);
    std::size_t left() const { return size_ - got_; }
    // The message was used up, and its slot is free.
    void finish();
    // A credit that found no room earlier.
    void flush_credits();

    std::string awaited() const;

    Watched watched;
    const int peer;
    const int channel;

  private:
    std::size_t receive(void* to, std::size_t room);
    std::size_t pull_words(std::uint8_t* to, std::size_t room);
    void check_preamble() const;

    const bool framed_;
    bool words_ = false;
    bool busy_ = false;
    bool header_pending_ = false;
    WorkHeader header_{};

    std::size_t size_ = 0;
    std::size_t got_ = 0;
    std::uint64_t step_ = 0;
    std::vector<std::uint8_t> expected_;
    std::vector<std::uint8_t> preamble_;
    std::size_t preamble_got_ = 0;
    std::vector<std::uint8_t> raw_;  // flagged words
    std::size_t raw_size_ = 0;
    std::size_t wire_left_ = 0;
    std::uint32_t flag_ = 0;
    std::uint32_t taken_ = 0;
    std::uint32_t told_ = 0;
    std::vector<std::uint8_t> unsent_;
};

}  // namespace ringstep
