// Packets: one cache line each, in a pool, named by index.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace ringstep {

enum class PacketKind : std::uint8_t { kData, kAck, kNak, kCnp, kPause };

enum PacketFlag : std::uint8_t {
    kEct = 1,         // ECN-capable
    kCe = 2,          // marked
    kFirst = 4,       // first of its message
    kLast = 8,        // last of its message
    kEcho = 16,       // an ACK that tells of a mark
    kAckReq = 16,     // a data packet that asks for an ACK (nothing else can open the window)
    kByHop = 32,      // routed hop by hop, `path` is not valid
    kPauseOn = 64,    // PFC frame: XOFF (else XON)
    kAckOfLast = 128  // an ACK set off by the last packet of a message
};

struct alignas(64) Packet {
    std::uint32_t next;
    std::uint32_t qp;
    std::uint32_t message;
    std::uint32_t psn;   // data: index within the QP; ACK, NAK: next expected index
    std::uint16_t size;  // bytes on the wire
    PacketKind kind;
    std::uint8_t flags;
    std::uint8_t cls;  // queue; 0 is control
    std::uint8_t hop;
    std::uint16_t job;  // index of the job + 1; 0: background
    TimePs arrival;     // at the far end of the link it is on
    std::uint32_t in_link;
    std::uint32_t step;
    std::uint32_t aux;     // data: UDP source port; ACK, NAK: index of what came; PFC: class
    std::uint16_t qp_use;  // how often the QP's slot was in use before
    std::uint8_t prio;     // PFC class
    std::uint8_t rev;      // 1: travels from receiver to sender
    std::array<std::uint16_t, kMaxHops> path;
};
static_assert(sizeof(Packet) == 64);

class PacketPool {
  public:
    std::uint32_t alloc() {
        ++live_;
        if (free_ != kNone) {
            const std::uint32_t id = free_;
            free_ = packets_[id].next;
            return id;
        }
        packets_.emplace_back();
        return static_cast<std::uint32_t>(packets_.size() - 1);
    }
    void release(std::uint32_t id) {
        --live_;
        packets_[id].next = free_;
        free_ = id;
    }
    Packet& operator[](std::uint32_t id) { return packets_[id]; }
    std::size_t peak() const { return packets_.size(); }
    std::size_t live() const { return live_; }

  private:
    std::vector<Packet> packets_;
    std::uint32_t free_ = kNone;
    std::size_t live_ = 0;
};

}  // namespace ringstep
