#include "collectives/ring.h"

#include <algorithm>

namespace ringstep {

RingCollective::RingCollective(Waist& waist, Kind kind, const std::vector<std::vector<int>>& groups,
                               int channels, std::int64_t bytes, int passes, int messages,
                               Dependency dependency, int ranks)
    : waist_(waist),
      kind_(kind),
      dependency_(dependency),
      messages_(static_cast<std::uint32_t>(messages)),
      place_(static_cast<std::size_t>(ranks)),
      unfinished_(static_cast<std::size_t>(ranks), 0) {
    for (const auto& group : groups) {
        for (int c = 0; c < channels; ++c) {
            Ring ring;
            const auto n = static_cast<std::uint32_t>(group.size());
            ring.bytes = part(bytes, channels, c);
            ring.steps_per_pass = (kind == Kind::kAllReduce ? 2 : 1) * (n - 1);
            ring.per_pass = ring.steps_per_pass * messages_;
            ring.total = ring.per_pass * static_cast<std::uint32_t>(passes);
            steps_ = std::max(steps_, ring.total / messages_);
            for (std::uint32_t i = 0; i < n; ++i) {
                Member m;
                m.rank = group[i];
                ring.members.push_back(std::move(m));
                const auto rank = static_cast<std::size_t>(group[i]);
                place_[rank].push_back({static_cast<std::uint32_t>(rings_.size()), i});
                ++unfinished_[rank];
            }
            rings_.push_back(std::move(ring));
        }
    }
}

std::int64_t RingCollective::total_bytes() const {
    std::int64_t sum = 0;
    for (const Ring& r : rings_) {
        // Every step moves each chunk once.
        sum += r.bytes * (r.total / messages_);
    }
    return sum;
}

std::int64_t RingCollective::chunk_bytes(const Ring& ring, std::uint32_t position,
                                         std::uint32_t step) const {
    const auto n = static_cast<std::int64_t>(ring.members.size());
    std::int64_t s = step % ring.steps_per_pass;
    std::int64_t chunk = position;
    if (kind_ == Kind::kAllReduce && s >= n - 1) {
        // The second half hands round what the first half has summed up: it starts one further on.
        s -= n - 1;
        ++chunk;
    }
    chunk = ((chunk - s) % n + n) % n;
    return part(ring.bytes, n, chunk);
}

void RingCollective::start(std::int32_t rank) {
    const auto places = place_[static_cast<std::size_t>(rank)];
    for (const Place p : places) {
        Member& m = rings_[p.ring].members[p.position];
        m.started = true;
        go_on(p.ring, p.position);
    }
}

void RingCollective::send_message(std::uint32_t ring, std::uint32_t position,
                                  std::uint32_t message) {
    Ring& r = rings_[ring];
    const auto n = static_cast<std::uint32_t>(r.members.size());
    const std::uint32_t next = position + 1 == n ? 0 : position + 1;
    ++r.members[position].sent;
    Transfer t;
    t.src = r.members[position].rank;
    t.dst = r.members[next].rank;
    t.step = message / messages_;
    t.bytes = part(chunk_bytes(r, position, t.step), messages_, message % messages_);
    t.ring = ring;
    t.cookie = static_cast<std::uint64_t>(ring) << 24 | next << 8 | message % messages_;
    t.messages = messages_;
    waist_.send(t);
}

void RingCollective::go_on(std::uint32_t ring, std::uint32_t position) {
    Ring& r = rings_[ring];
    Member& m = r.members[position];
    if (!m.started) return;
    if (dependency_ == Dependency::kPerChunk) {
        begin_passes(ring, position);
    } else {
        const std::uint32_t have = dependency_ == Dependency::kCount ? m.received : m.prefix;
        while (m.sent < r.total && m.sent < have + messages_) send_message(ring, position, m.sent);
    }
    if (m.received == r.total && m.sent == r.total) {
        m.early.clear();
        m.early.shrink_to_fit();
        if (--unfinished_[static_cast<std::size_t>(m.rank)] == 0) waist_.done(m.rank);
    }
}

void RingCollective::begin_passes(std::uint32_t ring, std::uint32_t position) {
    // A pass begins with a rank's own data, once all of the pass before is in; chunks of it that
    // came earlier go on now.
    Ring& r = rings_[ring];
    Member& m = r.members[position];
    while (m.passes * r.per_pass < r.total && m.prefix >= m.passes * r.per_pass) {
        const std::uint32_t first = m.passes * r.per_pass;
        const std::uint32_t last = first + r.per_pass - messages_;
        ++m.passes;
        for (std::uint32_t k = first; k < first + messages_; ++k) send_message(ring, position, k);
        const std::vector<std::uint32_t> early = m.early;
        for (std::uint32_t k = first; k < std::min(m.prefix, last); ++k)
            send_message(ring, position, k + messages_);
        for (const std::uint32_t k : early)
            if (k >= first && k < last) send_message(ring, position, k + messages_);
    }
}

void RingCollective::on_delivered(const Transfer& t) {
    const auto ring = static_cast<std::uint32_t>(t.cookie >> 24);
    const auto position = static_cast<std::uint32_t>(t.cookie >> 8 & 0xFFFF);
    const std::uint32_t message = t.step * messages_ + static_cast<std::uint32_t>(t.cookie & 0xFF);
    Ring& r = rings_[ring];
    Member& m = r.members[position];
    ++m.received;
    if (message == m.prefix) {
        ++m.prefix;
        auto it = m.early.begin();
        while (it != m.early.end() && *it == m.prefix) {
            ++m.prefix;
            ++it;
        }
        m.early.erase(m.early.begin(), it);
    } else {
        m.early.insert(std::lower_bound(m.early.begin(), m.early.end(), message), message);
    }
    if (dependency_ == Dependency::kPerChunk && message < m.passes * r.per_pass &&
        message % r.per_pass < r.per_pass - messages_)
        send_message(ring, position, message + messages_);
    go_on(ring, position);
}

}  // namespace ringstep
