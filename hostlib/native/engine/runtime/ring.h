// Ring algorithms on one channel: what NCCL's rings do, step by step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/flows.h"

namespace ringstep {

// All-reduce, all-gather and reduce-scatter. Each is a list of operations, in loops over the data;
// receiving and sending go through the list each at its own pace, and what has been received and
// reduced of an operation leaves at once.
class RingFlow final : public Flow {
  public:
    RingFlow(Communicator& comm, const Work& work, const Combine& combine, const Part& part,
             Sender& next, Receiver& previous);
    bool progress() override;
    bool done() const override { return received_ == n_ops_ && sent_ == n_ops_; }
    std::string awaited() const override;
    std::uint64_t steps() const { return n_loops_ * steps_per_loop_; }

  private:
    struct Op {
        bool receives = false;
        bool sends = false;
        bool reduces = false;
        bool last = false;    // the reduction's result
        bool staged = false;  // `to` is a slot of staging_
        const std::uint8_t* own = nullptr;
        std::uint8_t* to = nullptr;
        std::size_t size = 0;
        std::uint64_t step = 0;  // of what it sends
    };

    Op op(std::uint64_t index);
    bool receive();
    bool send();

    const re_coll coll_;
    const std::uint64_t n_;
    const std::uint64_t rank_;
    const std::uint8_t* const send_data_;
    std::uint8_t* const recv_data_;
    const std::size_t block_;  // bytes of one rank's block
    const Part part_;
    const std::uint64_t first_step_;
    Sender& next_;
    Receiver& previous_;
    Combiner combiner_;

    std::size_t chunk_ = 0;
    std::uint64_t n_loops_ = 0;
    std::uint64_t ops_per_loop_ = 0;
    std::uint64_t steps_per_loop_ = 0;
    std::uint64_t n_ops_ = 0;
    std::vector<std::uint8_t> staging_;

    std::uint64_t received_ = 0;  // operations done with receiving
    std::uint64_t sent_ = 0;      // and with sending
    std::size_t ready_ = 0;       // bytes of operation received_ that may be sent
    std::optional<Op> receiving_;
    std::optional<Op> sending_;
};

// Broadcast: a pipeline from the root around the ring.
class RelayFlow final : public Flow {
  public:
    RelayFlow(Communicator& comm, const Work& work, const Part& part, Sender& next,
              Receiver& previous);
    bool progress() override;
    bool done() const override { return got_ == size_ && out_.done(); }
    std::string awaited() const override;
    std::uint64_t steps() const { return steps_; }

  private:
    const std::size_t size_;
    std::uint8_t* const to_;
    std::size_t got_ = 0;
    std::uint64_t steps_;
    LineReceiver in_;
    LineSender out_;
};

}  // namespace ringstep
