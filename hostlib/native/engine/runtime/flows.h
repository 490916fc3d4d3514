// The algorithms, one channel each, as machines that move what can move now.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core.h"
#include "runtime/communicator.h"
#include "runtime/reduce.h"

namespace ringstep {

// How elements are combined in one work.
struct Combine {
    re_type type;
    std::size_t element;  // bytes
    ReduceFn reduce;
    int divide_by;  // what ends an average; 0: nothing does
};

class Flow {
  public:
    virtual ~Flow() = default;
    // Moves what can move without waiting; true where anything did.
    virtual bool progress() = 0;
    virtual bool done() const = 0;
    virtual std::string awaited() const = 0;
};

// Bytes from a receiver, combined with own ones as they come.
class Combiner {
  public:
    Combiner(const Combine& combine, std::vector<std::uint8_t>& scratch)
        : combine_(combine), scratch_(scratch) {}
    // Fills at most room bytes of `to`; returns how many are final. What is left of an element goes
    // first the next time.
    std::size_t pull(Receiver& from, std::uint8_t* to, const std::uint8_t* own, std::size_t room,
                     bool last);

  private:
    const Combine& combine_;
    std::vector<std::uint8_t>& scratch_;  // shared by all flows, so that it stays in the cache
    std::uint8_t part_[8] = {};           // of an element
    std::size_t part_size_ = 0;
};

// A region that is sent from front to back, in messages of `chunk` bytes.
class LineSender {
  public:
    LineSender(Sender* link, const void* data, std::size_t size, std::size_t chunk,
               std::uint64_t first_step)
        : link_(link),
          data_(static_cast<const std::uint8_t*>(data)),
          size_(size),
          chunk_(chunk),
          step_(first_step) {}
    bool progress(std::size_t available);
    bool done() const { return at_ >= size_; }
    std::string awaited() const { return link_->awaited(); }

  private:
    Sender* link_;
    const std::uint8_t* data_;
    std::size_t size_;
    std::size_t chunk_;
    std::uint64_t step_;  // untagged: for all messages
    std::size_t at_ = 0;  // start of the message under way
};

// The receiving end of the same.
class LineReceiver {
  public:
    LineReceiver(Receiver* link, std::size_t size, std::size_t chunk, std::uint64_t first_step)
        : link_(link), size_(size), chunk_(chunk), step_(first_step) {}
    bool done() const { return at_ >= size_; }
    // Makes the next message the link's; how much of it may come.
    std::size_t expect();
    // Takes note of what was pulled.
    void settle();
    Receiver& link() { return *link_; }
    std::string awaited() const { return link_->awaited(); }

  private:
    Receiver* link_;
    std::size_t size_;
    std::size_t chunk_;
    std::uint64_t step_;
    std::size_t at_ = 0;
};

// One channel's part of a work: elements [first, first + size) of each rank's block, in bytes.
struct Part {
    int channel;
    std::size_t first;
    std::size_t size;
};

// Flows of one channel, and how far the communicator's ring steps advance by it.
struct Plan {
    std::vector<std::unique_ptr<Flow>> flows;
    std::uint64_t ring_steps = 0;
};

// Links that the work needs on one channel.
void needed_links(const Work& work, int channel, std::vector<LinkKey>& senders,
                  std::vector<LinkKey>& receivers);
Plan plan(Communicator& comm, const Work& work, const Combine& combine, const Part& part);

}  // namespace ringstep
