// The near-future event queue: a calendar of buckets over sources that each have one next event.
//
// A directed link, a port, the timer heap: each is a source with at most one pending event, so an
// event is an entry of a fixed array and moving it allocates nothing. Network events are inserted
// nearly in the order of time and within a few transmission times of now: a bucket rarely holds
// more than a few. What lies beyond the calendar waits in an unsorted list until its time is near.
// Events at the same time run in the order in which they were scheduled, those of the sources below
// `first_late` (arrivals) before those of the others.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace ringstep {

class EventQueue {
  public:
    static constexpr std::uint32_t kBuckets = 4096;

    // `width_log2`: log2 of a bucket's width in ps.
    void reset(std::uint32_t sources, std::uint32_t first_late, int width_log2) {
        shift_ = width_log2;
        first_late_ = first_late;
        node_.assign(sources, Node{});
        head_.assign(kBuckets + 1, kNone);
        for (auto& word : bits_) word = 0;
        summary_ = 0;
        current_ = 0;
        far_min_ = kNever;
    }

    TimePs time_of(std::uint32_t source) const { return node_[source].time; }
    bool scheduled(std::uint32_t source) const { return node_[source].time != kNever; }

    void schedule(std::uint32_t source, TimePs time) {
        if (node_[source].time != kNever) unlink(source);
        insert(source, time);
    }

    void cancel(std::uint32_t source) {
        if (node_[source].time == kNever) return;
        unlink(source);
        node_[source].time = kNever;
    }

    // The time of the next event, or kNever.
    TimePs peek() {
        const std::uint32_t slot = first_slot();
        const TimePs near = slot == kNone ? kNever : node_[head_[slot]].time;
        if (far_min_ > near || far_min_ == kNever) return near;
        far_min_ = kNever;
        for (std::uint32_t i = head_[kFar]; i != kNone; i = node_[i].next)
            if (node_[i].time < far_min_) far_min_ = node_[i].time;
        return far_min_ < near ? far_min_ : near;
    }

    // Removes the next event if it is before `limit`; returns its source or kNone.
    std::uint32_t pop_before(TimePs limit, TimePs& time) {
        std::uint32_t slot = first_slot();
        if (slot == kNone || far_min_ <= node_[head_[slot]].time) {
            const TimePs next = peek();
            if (next >= limit) return kNone;
            if (far_min_ == next) {
                // Time moves on to this event, so the calendar may start at its bucket.
                current_ = static_cast<std::uint64_t>(next) >> shift_;
                migrate();
            }
            slot = first_slot();
        }
        const std::uint32_t source = head_[slot];
        Node& n = node_[source];
        if (n.time >= limit) return kNone;
        time = n.time;
        current_ = static_cast<std::uint64_t>(n.time) >> shift_;
        remove_first(slot, n);
        n.time = kNever;
        return source;
    }

  private:
    struct Node {
        TimePs time = kNever;
        std::uint32_t next = kNone;
        std::uint32_t prev = kNone;  // of the first in a bucket: the last
        std::uint32_t slot = 0;
        std::uint32_t pad = 0;
    };
    static constexpr std::uint32_t kFar = kBuckets;

    // Whether the event of `other` runs after one of `source` at `time` that is scheduled now.
    bool runs_after(std::uint32_t other, std::uint32_t source, TimePs time) const {
        const TimePs t = node_[other].time;
        return t != time ? t > time : other >= first_late_ && source < first_late_;
    }

    void insert(std::uint32_t source, TimePs time) {
        Node& n = node_[source];
        n.time = time;
        const std::uint64_t bucket = static_cast<std::uint64_t>(time) >> shift_;
        if (bucket - current_ >= kBuckets) {
            if (time < far_min_) far_min_ = time;
            link_last(kFar, source, n);
            return;
        }
        const std::uint32_t slot = static_cast<std::uint32_t>(bucket) & (kBuckets - 1);
        const std::uint32_t first = head_[slot];
        if (first == kNone) {
            head_[slot] = source;
            n.next = kNone;
            n.prev = source;
            n.slot = slot;
            bits_[slot >> 6] |= 1ULL << (slot & 63);
            summary_ |= 1ULL << (slot >> 6);
            return;
        }
        std::uint32_t at = node_[first].prev;
        if (!runs_after(at, source, time)) {
            link_last(slot, source, n);
            return;
        }
        n.slot = slot;
        if (runs_after(first, source, time)) {
            n.next = first;
            n.prev = node_[first].prev;
            node_[first].prev = source;
            head_[slot] = source;
            return;
        }
        do at = node_[at].prev;
        while (runs_after(at, source, time));
        n.prev = at;
        n.next = node_[at].next;
        node_[n.next].prev = source;
        node_[at].next = source;
    }

    void link_last(std::uint32_t slot, std::uint32_t source, Node& n) {
        n.slot = slot;
        n.next = kNone;
        const std::uint32_t first = head_[slot];
        if (first == kNone) {
            head_[slot] = source;
            n.prev = source;
            return;
        }
        Node& f = node_[first];
        n.prev = f.prev;
        node_[f.prev].next = source;
        f.prev = source;
    }

    void remove_first(std::uint32_t slot, Node& n) {
        const std::uint32_t next = n.next;
        head_[slot] = next;
        if (next != kNone) {
            node_[next].prev = n.prev;
        } else {
            clear_slot(slot);
        }
    }

    void clear_slot(std::uint32_t slot) {
        if (slot == kFar) return;
        std::uint64_t& word = bits_[slot >> 6];
        word &= ~(1ULL << (slot & 63));
        if (word == 0) summary_ &= ~(1ULL << (slot >> 6));
    }

    void unlink(std::uint32_t source) {
        Node& n = node_[source];
        const std::uint32_t slot = n.slot;
        const std::uint32_t first = head_[slot];
        if (source == first) {
            remove_first(slot, n);
        } else {
            node_[n.prev].next = n.next;
            if (n.next != kNone) {
                node_[n.next].prev = n.prev;
            } else {
                node_[first].prev = n.prev;
            }
        }
        // far_min_ may now be too early; peek() finds the true one when it matters.
    }

    // First used slot at or after the current one, in circular order.
    std::uint32_t first_slot() const {
        if (summary_ == 0) return kNone;
        const std::uint32_t from = static_cast<std::uint32_t>(current_) & (kBuckets - 1);
        const std::uint32_t word = from >> 6;
        const std::uint64_t here = bits_[word] >> (from & 63);
        if (here != 0) return from + static_cast<std::uint32_t>(std::countr_zero(here));
        // Words after this one, then (rotated) the ones before it, and last its own lower bits.
        const std::uint64_t rotated = std::rotr(summary_, static_cast<int>(word) + 1);
        const std::uint32_t w =
            (word + 1 + static_cast<std::uint32_t>(std::countr_zero(rotated))) & 63;
        return (w << 6) + static_cast<std::uint32_t>(std::countr_zero(bits_[w]));
    }

    void migrate() {
        std::uint32_t i = head_[kFar];
        head_[kFar] = kNone;
        far_min_ = kNever;
        while (i != kNone) {
            const std::uint32_t next = node_[i].next;
            insert(i, node_[i].time);
            i = next;
        }
    }

    std::vector<Node> node_;
    std::vector<std::uint32_t> head_;
    std::uint64_t bits_[kBuckets / 64] = {};
    std::uint64_t summary_ = 0;
    std::uint64_t current_ = 0;
    TimePs far_min_ = kNever;
    std::uint32_t first_late_ = 0;
    int shift_ = 14;
};

static_assert(EventQueue::kBuckets == 64 * 64, "the summary is one word");

}  // namespace ringstep
