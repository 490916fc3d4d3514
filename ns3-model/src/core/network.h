// The network as the user describes it, and shortest-path routes over it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/types.h"

namespace ringstep {

struct NodeSpec {
    bool is_host = false;
    std::string name;
    int tier = 0;
    SwitchConfig config;
    std::vector<std::uint32_t> links;  // outgoing directed links, in the order of their cables

    std::string text(int id) const;
};

struct LinkSpec {  // directed
    std::uint32_t from = 0;
    std::uint32_t to = 0;
    std::int64_t rate_bps = 0;
    std::int64_t delay_ns = 0;
    double loss = 0;
    std::uint32_t port = 0;  // number of the port at `from`, from 1
};

enum class LinkAction { kFail, kRestore, kDegrade };

struct LinkEventSpec {
    std::int64_t time_ns = 0;
    std::uint32_t cable = 0;
    LinkAction action = LinkAction::kFail;
    std::int64_t rate_bps = 0;
};

struct DropSpec {
    std::string kind = "data";
    std::string which = "last";
    std::int64_t n = 1;
    std::int64_t src = -1;
    std::int64_t dst = -1;
    std::int64_t step = -1;
    std::int64_t link = -1;
    std::int64_t times = 1;
};

struct PlannedPath {
    std::uint32_t src = 0;
    std::uint32_t dst = 0;
    std::uint32_t channel = 0;
    int job = 0;
    std::vector<std::uint32_t> links;
};

class Network {
  public:
    int add_host(std::string name);
    int add_switch(const SwitchConfig& config, std::string name, int tier);
    int add_link(int a, int b, std::int64_t rate_bps, std::int64_t delay_ns,
                 std::int64_t rate_back_bps, std::int64_t delay_back_ns, double loss);
    void add_event(std::int64_t time_ns, int cable, const std::string& action,
                   std::int64_t rate_bps);
    void add_drop(const DropSpec& drop);
    void set_planned_path(int src, int dst, int channel, const std::vector<std::int64_t>& links,
                          int job);

    // Raises ConfigError where the description disagrees with itself.
    void check() const;
    bool is_host(std::int64_t node) const {
        return node >= 0 && node < static_cast<std::int64_t>(nodes.size()) &&
               nodes[static_cast<std::size_t>(node)].is_host;
    }
    int hosts() const;

    std::vector<NodeSpec> nodes;
    std::vector<LinkSpec> links;
    std::vector<LinkEventSpec> events;
    std::vector<DropSpec> drops;
    std::vector<PlannedPath> planned;

  private:
    int add_node(NodeSpec node);
};

// Equal-cost next hops by hop count, for every switch and every host.
class Routes {
  public:
    // `up`: whether each directed link carries traffic.
    void build(const Network& net, const std::vector<char>& up);
    // Directed links from `node` towards host `dst`, ascending; empty: unreachable.
    std::span<const std::uint32_t> next_hops(std::uint32_t node, std::uint32_t dst) const;

  private:
    const Network* net_ = nullptr;
    std::vector<char> up_;
    std::vector<std::uint32_t> switch_index_;         // by node; kNone for hosts
    std::vector<std::uint32_t> group_;                // [from switch][to switch] -> group
    std::vector<std::vector<std::uint32_t>> groups_;  // group 0 is empty
    std::uint32_t switches_ = 0;
    std::vector<std::vector<std::uint32_t>> host_up_;  // by node: the host's own link, if up
    std::vector<std::vector<std::uint32_t>> host_down_;
};

}  // namespace ringstep
