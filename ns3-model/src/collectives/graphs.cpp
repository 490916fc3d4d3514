#include "collectives/graphs.h"

#include <algorithm>
#include <bit>

#include "collectives/ring.h"

namespace ringstep {

std::uint32_t MessageGraph::add(int src, int dst, std::int64_t bytes, std::uint32_t ring,
                                const std::vector<std::uint32_t>& after) {
    const auto id = static_cast<std::uint32_t>(messages.size());
    GraphMessage m;
    m.src = src;
    m.dst = dst;
    m.bytes = bytes;
    m.ring = ring;
    for (const auto earlier : after) {
        GraphMessage& e = messages[earlier];
        e.then.push_back(id);
        ++m.needs;
        m.step = std::max(m.step, e.step + 1);
    }
    messages.push_back(std::move(m));
    return id;
}

void MessageGraph::after_ack(std::uint32_t first, std::uint32_t second) {
    messages[first].then_acked.push_back(second);
    ++messages[second].needs;
    messages[second].step = std::max(messages[second].step, messages[first].step + 1);
}

std::uint32_t MessageGraph::steps() const {
    std::uint32_t steps = 0;
    for (const auto& m : messages) steps = std::max(steps, m.step + 1);
    return steps;
}

std::int64_t MessageGraph::total_bytes() const {
    std::int64_t sum = 0;
    for (const auto& m : messages) sum += m.bytes;
    return sum;
}

void add_broadcast_chain(MessageGraph& graph, const std::vector<int>& ranks, std::size_t root,
                         std::int64_t bytes, int chunks, std::uint32_t ring) {
    const std::size_t n = ranks.size();
    for (int c = 0; c < chunks; ++c) {
        std::vector<std::uint32_t> before;
        for (std::size_t i = 0; i + 1 < n; ++i) {
            const auto id = graph.add(ranks[(root + i) % n], ranks[(root + i + 1) % n],
                                      part(bytes, chunks, c), ring, before);
            // Chunks leave the root one after the other; the tag tells which.
            graph.messages[id].step = static_cast<std::uint32_t>(c) + static_cast<std::uint32_t>(i);
            before = {id};
        }
    }
}

namespace {

// Parent of `rank` in an in-order binary tree over 0..n-1 rooted at 0 (Sanders, Speck, Traeff,
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan").
int tree_parent(int rank, int n) {
    if (rank == 0) return -1;
    const int bit = rank & -rank;
    const int up = (rank ^ bit) | (bit << 1);
    return up < n ? up : rank ^ bit;
}

}  // namespace

void add_double_binary_tree(MessageGraph& graph, const std::vector<int>& ranks, std::int64_t bytes,
                            int chunks, std::uint32_t ring) {
    const int n = static_cast<int>(ranks.size());
    for (int tree = 0; tree < 2; ++tree) {
        // The second tree is the first one mirrored (n even) or shifted: inner nodes become leaves.
        auto place = [&](int node) {
            if (tree == 0) return node;
            return n % 2 == 0 ? n - 1 - node : (node + 1) % n;
        };
        std::vector<std::vector<int>> children(static_cast<std::size_t>(n));
        for (int node = 1; node < n; ++node)
            children[static_cast<std::size_t>(tree_parent(node, n))].push_back(node);
        std::vector<int> order = {0};  // parents before children
        for (std::size_t i = 0; i < order.size(); ++i)
            for (const int child : children[static_cast<std::size_t>(order[i])])
                order.push_back(child);
        auto rank_of = [&](int node) { return ranks[static_cast<std::size_t>(place(node))]; };
        for (int c = 0; c < chunks; ++c) {
            const std::int64_t size = part(part(bytes, 2, tree), chunks, c);
            std::vector<std::uint32_t> up(static_cast<std::size_t>(n)), down(up);
            for (auto it = order.rbegin(); it != order.rend(); ++it) {
                if (*it == 0) continue;
                std::vector<std::uint32_t> after;
                for (const int child : children[static_cast<std::size_t>(*it)])
                    after.push_back(up[static_cast<std::size_t>(child)]);
                up[static_cast<std::size_t>(*it)] =
                    graph.add(rank_of(*it), rank_of(tree_parent(*it, n)), size,
                              ring + static_cast<std::uint32_t>(tree), after);
            }
            for (const int node : order) {
                if (node == 0) continue;
                const int parent = tree_parent(node, n);
                std::vector<std::uint32_t> after;
                if (parent == 0) {
                    for (const int child : children[0])
                        after.push_back(up[static_cast<std::size_t>(child)]);
                } else {
                    after.push_back(down[static_cast<std::size_t>(parent)]);
                }
                down[static_cast<std::size_t>(node)] =
                    graph.add(rank_of(parent), rank_of(node), size,
                              ring + static_cast<std::uint32_t>(tree), after);
            }
        }
    }
}

void add_halving_doubling(MessageGraph& graph, const std::vector<int>& ranks, std::int64_t bytes,
                          std::uint32_t ring) {
    const std::size_t n = ranks.size();
    const std::size_t core = std::bit_floor(n);
    // What a rank of the core must have received before its next message.
    std::vector<std::vector<std::uint32_t>> have(core);
    for (std::size_t i = core; i < n; ++i)  // ranks beyond a power of two fold into the core
        have[i - core].push_back(graph.add(ranks[i], ranks[i - core], bytes, ring, {}));
    struct Range {
        std::int64_t low, high;
    };
    std::vector<Range> range(core, {0, bytes});
    auto exchange = [&](std::size_t distance, auto size_of) {
        std::vector<std::uint32_t> sent(core);
        for (std::size_t i = 0; i < core; ++i)
            sent[i] = graph.add(ranks[i], ranks[i ^ distance], size_of(i), ring, have[i]);
        for (std::size_t i = 0; i < core; ++i) have[i].push_back(sent[i ^ distance]);
    };
    for (std::size_t distance = core / 2; distance >= 1; distance /= 2) {
        auto middle = [&](std::size_t i) {
            return range[i].low + (range[i].high - range[i].low) / 2;
        };
        exchange(distance, [&](std::size_t i) {
            return i & distance ? middle(i) - range[i].low : range[i].high - middle(i);
        });
        for (std::size_t i = 0; i < core; ++i) {
            const std::int64_t m = middle(i);
            (i & distance ? range[i].low : range[i].high) = m;
        }
    }
    for (std::size_t distance = 1; distance < core; distance *= 2) {
        exchange(distance, [&](std::size_t i) { return range[i].high - range[i].low; });
        auto before = range;
        for (std::size_t i = 0; i < core; ++i) {
            const Range other = before[i ^ distance];
            range[i] = {std::min(before[i].low, other.low), std::max(before[i].high, other.high)};
        }
    }
    for (std::size_t i = core; i < n; ++i)
        graph.add(ranks[i - core], ranks[i], bytes, ring, have[i - core]);
}

void add_all_to_all(MessageGraph& graph, const std::vector<int>& ranks, std::int64_t bytes,
                    int window, std::uint32_t ring) {
    const std::size_t n = ranks.size();
    for (std::size_t i = 0; i < n; ++i) {
        std::vector<std::uint32_t> sent;
        for (std::size_t s = 1; s < n; ++s) {
            const std::size_t to = (i + s) % n;
            const auto id = graph.add(
                ranks[i], ranks[to],
                part(bytes, static_cast<std::int64_t>(n), static_cast<std::int64_t>(to)), ring, {});
            if (window > 0 && sent.size() >= static_cast<std::size_t>(window))
                graph.after_ack(sent[sent.size() - static_cast<std::size_t>(window)], id);
            graph.messages[id].step = static_cast<std::uint32_t>(s - 1);
            sent.push_back(id);
        }
    }
}

GraphCollective::GraphCollective(Waist& waist, std::shared_ptr<const MessageGraph> graph, int ranks)
    : waist_(waist), graph_(std::move(graph)), rank_(static_cast<std::size_t>(ranks)) {
    needs_.reserve(graph_->messages.size());
    for (std::uint32_t i = 0; i < graph_->messages.size(); ++i) {
        const GraphMessage& m = graph_->messages[i];
        needs_.push_back(m.needs);
        for (const auto rank : {m.src, m.dst}) {
            rank_[at(rank)].member = true;
            ++rank_[at(rank)].left;
        }
        if (m.needs == 0) rank_[at(m.src)].waiting.push_back(i);
    }
}

void GraphCollective::start(std::int32_t rank) {
    Rank& r = rank_[at(rank)];
    r.started = true;
    const auto waiting = std::move(r.waiting);
    r.waiting = {};
    for (const auto m : waiting) send(m);
    settle(rank);
}

void GraphCollective::send(std::uint32_t message) {
    const GraphMessage& m = graph_->messages[message];
    Transfer t;
    t.src = m.src;
    t.dst = m.dst;
    t.bytes = m.bytes;
    t.step = m.step;
    t.ring = m.ring;
    t.cookie = message;
    waist_.send(t);
}

void GraphCollective::ready(std::uint32_t message) {
    if (--needs_[message] != 0) return;
    Rank& r = rank_[at(graph_->messages[message].src)];
    if (r.started) {
        send(message);
    } else {
        r.waiting.push_back(message);
    }
}

void GraphCollective::settle(std::int32_t rank) {
    Rank& r = rank_[at(rank)];
    if (r.started && r.left == 0) {
        r.left = 0xFFFFFFFFU;  // said once
        waist_.done(rank);
    }
}

void GraphCollective::on_delivered(const Transfer& t) {
    const GraphMessage& m = graph_->messages[t.cookie];
    for (const auto next : m.then) ready(next);
    --rank_[at(m.src)].left;
    --rank_[at(m.dst)].left;
    settle(m.src);
    settle(m.dst);
}

void GraphCollective::on_acked(const Transfer& t) {
    for (const auto next : graph_->messages[t.cookie].then_acked) ready(next);
}

}  // namespace ringstep
