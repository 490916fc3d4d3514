// Collectives as graphs of messages: trees, halving-doubling, all-to-all, broadcast, single sends.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/waist.h"

namespace ringstep {

struct GraphMessage {
    std::int32_t src = 0;  // ranks
    std::int32_t dst = 0;
    std::int64_t bytes = 0;
    std::uint32_t step = 0;  // longest chain of messages before it
    std::uint32_t ring = 0;
    std::vector<std::uint32_t> then;        // messages that need this one to have arrived
    std::vector<std::uint32_t> then_acked;  // messages that need the sender to know that
    std::uint32_t needs = 0;
};

class MessageGraph {
  public:
    // `after`: messages that must have arrived (at `src`) before this one leaves.
    std::uint32_t add(int src, int dst, std::int64_t bytes, std::uint32_t ring,
                      const std::vector<std::uint32_t>& after);
    void after_ack(std::uint32_t first, std::uint32_t second);
    std::uint32_t steps() const;
    std::int64_t total_bytes() const;

    std::vector<GraphMessage> messages;
};

// Builders add the messages of one group (ranks in order) to `graph`.
void add_broadcast_chain(MessageGraph& graph, const std::vector<int>& ranks, std::size_t root,
                         std::int64_t bytes, int chunks, std::uint32_t ring);
void add_double_binary_tree(MessageGraph& graph, const std::vector<int>& ranks, std::int64_t bytes,
                            int chunks, std::uint32_t ring);
void add_halving_doubling(MessageGraph& graph, const std::vector<int>& ranks, std::int64_t bytes,
                          std::uint32_t ring);
void add_all_to_all(MessageGraph& graph, const std::vector<int>& ranks, std::int64_t bytes,
                    int window, std::uint32_t ring);

class GraphCollective final : public Collective {
  public:
    GraphCollective(Waist& waist, std::shared_ptr<const MessageGraph> graph, int ranks);

    void start(std::int32_t rank) override;
    void on_delivered(const Transfer& transfer) override;
    void on_acked(const Transfer& transfer) override;
    bool involves(std::int32_t rank) const override { return rank_[at(rank)].member; }
    std::uint32_t steps() const override { return graph_->steps(); }

  private:
    struct Rank {
        bool member = false;
        bool started = false;
        std::uint32_t left = 0;              // messages from or to it that have not arrived
        std::vector<std::uint32_t> waiting;  // its messages that need only its start
    };
    static std::size_t at(std::int32_t rank) { return static_cast<std::size_t>(rank); }
    void ready(std::uint32_t message);
    void send(std::uint32_t message);
    void settle(std::int32_t rank);

    Waist& waist_;
    std::shared_ptr<const MessageGraph> graph_;
    std::vector<std::uint32_t> needs_;
    std::vector<Rank> rank_;
};

}  // namespace ringstep
