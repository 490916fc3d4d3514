#include "core/network.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace ringstep {

std::string NodeSpec::text(int id) const {
    return std::string(is_host ? "host " : "switch ") + std::to_string(id) +
           (name.empty() ? "" : " (" + name + ")");
}

int Network::add_node(NodeSpec node) {
    nodes.push_back(std::move(node));
    return static_cast<int>(nodes.size()) - 1;
}

int Network::add_host(std::string name) {
    NodeSpec node;
    node.is_host = true;
    node.name = std::move(name);
    return add_node(std::move(node));
}

int Network::add_switch(const SwitchConfig& config, std::string name, int tier) {
    config.check();
    NodeSpec node;
    node.name = std::move(name);
    node.tier = tier;
    node.config = config;
    return add_node(std::move(node));
}

int Network::add_link(int a, int b, std::int64_t rate_bps, std::int64_t delay_ns,
                      std::int64_t rate_back_bps, std::int64_t delay_back_ns, double loss) {
    const int known = static_cast<int>(nodes.size());
    for (const auto& [name, node] : {std::pair{"a", a}, std::pair{"b", b}})
        require(node >= 0 && node < known, name, node, "no such node");
    require(a != b, "b", b, "a link needs two different ends");
    if (rate_back_bps == 0) rate_back_bps = rate_bps;
    if (delay_back_ns < 0) delay_back_ns = delay_ns;
    for (auto rate : {rate_bps, rate_back_bps})
        require(rate >= 1'000'000 && rate <= 10'000'000'000'000, "rate_bps", rate,
                "must lie in 1 Mb/s .. 10 Tb/s");
    for (auto delay : {delay_ns, delay_back_ns})
        require(delay >= 0 && delay <= 1'000'000'000, "delay_ns", delay, "must lie in 0 .. 1 s");
    require(loss >= 0 && loss < 1, "loss", loss, "must lie in [0, 1)");
    const auto cable = static_cast<std::uint32_t>(links.size() / 2);
    auto add = [&](int from, int to, std::int64_t rate, std::int64_t delay) {
        auto& out = nodes[static_cast<std::size_t>(from)].links;
        LinkSpec link;
        link.from = static_cast<std::uint32_t>(from);
        link.to = static_cast<std::uint32_t>(to);
        link.rate_bps = rate;
        link.delay_ns = delay;
        link.loss = loss;
        out.push_back(static_cast<std::uint32_t>(links.size()));
        link.port = static_cast<std::uint32_t>(out.size());
        links.push_back(link);
    };
    add(a, b, rate_bps, delay_ns);
    add(b, a, rate_back_bps, delay_back_ns);
    return static_cast<int>(cable);
}

void Network::add_event(std::int64_t time_ns, int cable, const std::string& action,
                        std::int64_t rate_bps) {
    require(time_ns >= 0, "time_ns", time_ns, "must not be negative");
    require(cable >= 0 && static_cast<std::size_t>(cable) < links.size() / 2, "cable", cable,
            "no such cable");
    LinkEventSpec e;
    e.time_ns = time_ns;
    e.cable = static_cast<std::uint32_t>(cable);
    e.rate_bps = rate_bps;
    if (action == "fail") {
        e.action = LinkAction::kFail;
    } else if (action == "restore") {
        e.action = LinkAction::kRestore;
    } else if (action == "degrade") {
        e.action = LinkAction::kDegrade;
        require(rate_bps >= 1'000'000, "rate_bps", rate_bps,
                "a degraded link needs at least 1 Mb/s");
    } else {
        require(false, "action", action, "must be \"fail\", \"restore\" or \"degrade\"");
    }
    events.push_back(e);
}

void Network::add_drop(const DropSpec& d) {
    require(d.kind == "data" || d.kind == "ack" || d.kind == "cnp", "kind", d.kind,
            "must be \"data\", \"ack\" or \"cnp\"");
    require(d.which == "last" || d.which == "nth", "which", d.which, "must be \"last\" or \"nth\"");
    require(d.n >= 1, "n", d.n, "counts from 1");
    require(d.times >= 1, "times", d.times, "must be at least 1");
    require(d.link < static_cast<std::int64_t>(links.size()), "link", d.link,
            "no such directed link");
    drops.push_back(d);
}

void Network::set_planned_path(int src, int dst, int channel, const std::vector<std::int64_t>& path,
                               int job) {
    require(is_host(src), "src", src, "not a host");
    require(is_host(dst), "dst", dst, "not a host");
    require(channel >= 0, "channel", channel, "must not be negative");
    require(!path.empty() && path.size() <= kMaxHops, "links", path.size(),
            "a planned path has 1.." + std::to_string(kMaxHops) + " links");
    PlannedPath p;
    p.src = static_cast<std::uint32_t>(src);
    p.dst = static_cast<std::uint32_t>(dst);
    p.channel = static_cast<std::uint32_t>(channel);
    p.job = job;
    auto at = p.src;
    for (const auto id : path) {
        require(id >= 0 && id < static_cast<std::int64_t>(links.size()), "links", id,
                "no such directed link");
        const LinkSpec& link = links[static_cast<std::size_t>(id)];
        require(link.from == at, "links", id,
                "starts at node " + std::to_string(link.from) + ", the path is at node " +
                    std::to_string(at));
        at = link.to;
        require(at == p.dst || !nodes[at].is_host, "links", id, "a host does not forward");
        p.links.push_back(static_cast<std::uint32_t>(id));
    }
    require(at == p.dst, "links", path.back(),
            "the path does not end at host " + std::to_string(dst));
    planned.push_back(std::move(p));
}

int Network::hosts() const {
    return static_cast<int>(
        std::count_if(nodes.begin(), nodes.end(), [](const NodeSpec& n) { return n.is_host; }));
}

void Network::check() const {
    if (hosts() == 0) throw ConfigError("the network has no host");
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const NodeSpec& node = nodes[i];
        const std::string who = node.text(static_cast<int>(i));
        if (node.is_host) {
            if (node.links.size() != 1)
                throw ConfigError(who + " has " + std::to_string(node.links.size()) +
                                  " cables; a host has exactly one");
            continue;
        }
        if (node.config.red.empty()) continue;
        for (const auto id : node.links) {
            const auto rate = links[id].rate_bps;
            const auto& red = node.config.red;
            if (std::none_of(red.begin(), red.end(),
                             [&](const RedEntry& r) { return r.rate_bps == rate; }))
                throw ConfigError(who + ", port " + std::to_string(links[id].port) +
                                  ": no RED entry for " + std::to_string(rate) +
                                  " bit/s; add one for this rate or leave the table empty");
        }
    }
}

void Routes::build(const Network& net, const std::vector<char>& up) {
    net_ = &net;
    up_ = up;
    const std::size_t n = net.nodes.size();
    switch_index_.assign(n, kNone);
    host_up_.assign(n, {});
    host_down_.assign(n, {});
    std::vector<std::uint32_t> switches;
    for (std::uint32_t i = 0; i < n; ++i) {
        if (net.nodes[i].is_host) {
            for (const auto link : net.nodes[i].links) {
                if (up_[link]) host_up_[i].push_back(link);
                if (up_[link ^ 1]) host_down_[i].push_back(link ^ 1);
            }
        } else {
            switch_index_[i] = static_cast<std::uint32_t>(switches.size());
            switches.push_back(i);
        }
    }
    switches_ = static_cast<std::uint32_t>(switches.size());
    group_.assign(static_cast<std::size_t>(switches_) * switches_, 0);
    groups_.assign(1, {});
    std::map<std::vector<std::uint32_t>, std::uint32_t> known = {{{}, 0}};
    std::vector<std::uint32_t> distance(switches_);
    std::vector<std::uint32_t> order;
    for (std::uint32_t target = 0; target < switches_; ++target) {
        std::fill(distance.begin(), distance.end(), kNone);
        distance[target] = 0;
        order.assign(1, target);
        for (std::size_t i = 0; i < order.size(); ++i) {
            for (const auto out : net.nodes[switches[order[i]]].links) {
                const auto next = switch_index_[net.links[out].to];
                if (next == kNone || distance[next] != kNone || !up_[out ^ 1]) continue;
                distance[next] = distance[order[i]] + 1;
                order.push_back(next);
            }
        }
        for (const auto from : order) {
            if (from == target) continue;
            std::vector<std::uint32_t> hops;
            for (const auto out : net.nodes[switches[from]].links) {
                const auto next = switch_index_[net.links[out].to];
                if (next != kNone && up_[out] && distance[next] + 1 == distance[from])
                    hops.push_back(out);
            }
            std::sort(hops.begin(), hops.end());
            const auto [entry, fresh] =
                known.try_emplace(hops, static_cast<std::uint32_t>(groups_.size()));
            if (fresh) groups_.push_back(hops);
            group_[static_cast<std::size_t>(from) * switches_ + target] = entry->second;
        }
    }
}

std::span<const std::uint32_t> Routes::next_hops(std::uint32_t node, std::uint32_t dst) const {
    if (node == dst || host_down_[dst].empty()) return {};
    const auto last = host_down_[dst].front();
    const auto attach = net_->links[last].from;
    if (node == attach) return host_down_[dst];
    if (net_->nodes[node].is_host) {
        if (host_up_[node].empty()) return {};
        const auto first = net_->links[host_up_[node].front()].to;
        if (first != dst && next_hops(first, dst).empty()) return {};
        return host_up_[node];
    }
    if (net_->nodes[attach].is_host) return {};  // dst hangs on another host
    return groups_[group_[static_cast<std::size_t>(switch_index_[node]) * switches_ +
                          switch_index_[attach]]];
}

}  // namespace ringstep
