// The packet-level model: links, switches, hosts and their transport.
//
// Every packet costs one event per hop: its arrival at the far end of a link. Departures are not
// events. A port is brought up to date (`advance`) whenever something happens to it: then all
// departures that were due since are carried out in order, each at its own time and with the queue
// as it was then, because nothing was added to the queue in between. While packets wait, the one in
// transmission is on the wire, and its arrival brings the port up to date in time for the next.
// A packet that arrives at a switch at the instant of a departure there is in the queue before it,
// as in ns-3, where the end of a transmission is the younger event.
// Where others must see a departure at its very time (a switch that has paused a neighbour, a
// marker or policy whose state is shared by the ports of a switch), departures are events too
// ("eager").
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/dcqcn.h"
#include "core/event_queue.h"
#include "core/hpcc.h"
#include "core/marker.h"
#include "core/network.h"
#include "core/packet.h"
#include "core/rng.h"
#include "core/spacing.h"
#include "core/stats.h"
#include "core/trial.h"
#include "core/types.h"

namespace ringstep {

// Somebody who asked to be called at a time.
class TimerTarget {
  public:
    virtual void on_timer(std::uint64_t arg) = 0;

  protected:
    ~TimerTarget() = default;
};

// What a message carries along for the one who sent it.
struct MessageTag {
    std::uint64_t cookie = 0;
    std::uint32_t op = 0;
    std::uint32_t ring = 0;
    std::uint32_t step = 0;
    std::uint16_t job = 0;  // index + 1; 0: background
};

class MessageSink {
  public:
    // The last byte is in at the receiver.
    virtual void on_delivered(const MessageTag& tag, std::int64_t bytes) = 0;
    // The sender has the last ACK.
    virtual void on_acked(const MessageTag& tag, std::int64_t bytes) = 0;

  protected:
    ~MessageSink() = default;
};

// A data packet at dequeue, as a marking policy sees it.
struct PolicyPacket {
    std::int64_t now_ns;
    std::int32_t switch_node, port, job, src, dst;
    std::uint32_t step, psn, sport, dest_qp, payload_bytes, qdepth_packets, qdepth_bytes, r;
    bool first, last, ect, red;
};
using MarkingPolicy = std::function<bool(const PolicyPacket&)>;

struct CcKind {  // a congestion control and its constants for one line rate
    enum class Kind : std::uint8_t { kDcqcn, kHpcc, kFixed } kind = Kind::kFixed;
    double line_rate = 0;
    double fixed_rate = 0;
    std::unique_ptr<DcqcnConstants> dcqcn;
    HpccParams hpcc;
};

class Model {
  public:
    Model(const Network& net, const TransportConfig& transport, const StatsConfig& stats,
          std::uint32_t seed);
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    // --- set-up ---
    std::uint32_t add_cc(const CcConfig& cc, double line_rate);
    void add_job(int job_id, const std::optional<MarkerParams>& marker, bool known,
                 std::uint8_t prio);
    void use_class(std::uint8_t prio);  // a PFC class that carries data
    void set_policy(std::uint32_t switch_node, MarkingPolicy policy);
    void set_planned(int job_id, bool on);
    void set_marker(std::uint16_t job, const MarkerParams& params);  // job: index + 1
    std::vector<std::string> warnings() const;
    std::vector<std::int64_t> drops_done() const {
        std::vector<std::int64_t> done;
        for (const DropRule& rule : drops_) done.push_back(rule.done);
        return done;
    }
    void set_sink(MessageSink* sink) { sink_ = sink; }
    void start();  // when all is known, before the first event

    // --- transport ---
    struct Connection {
        std::uint32_t src = 0;  // nodes
        std::uint32_t dst = 0;
        std::uint32_t channel = 0;
        std::uint32_t cc = 0;
        std::uint16_t job = 0;  // index + 1
        std::uint8_t prio = 3;
        std::uint16_t messages = 1;  // after so many the QP goes; 0: it stays
    };
    std::uint32_t open_qp(const Connection& c);
    void post(std::uint32_t qp, std::int64_t bytes, std::uint32_t sport, const MessageTag& tag);
    double line_rate(std::uint32_t host_node) const;
    // Messages posted and not yet acknowledged in full.
    std::size_t open_messages() const { return messages_.size() - free_messages_.size(); }

    // --- time ---
    TimePs now() const { return now_; }
    void set_now(TimePs t) { now_ = std::max(now_, t); }
    void schedule(TimePs at, TimerTarget* target, std::uint64_t arg);
    TimePs next_event() { return events_.peek(); }
    // Runs events before `limit_ns` (which may shrink meanwhile), at most `budget` of them, until
    // stop(); returns whether the budget ended it.
    bool run_before(const std::int64_t& limit_ns, std::uint64_t budget);
    void stop() { stop_ = true; }
    void clear_stop() { stop_ = false; }
    // Ends the run after the event under way, where nobody may leave in the middle of it.
    void fail(std::exception_ptr why) {
        if (!failure_) failure_ = std::move(why);
        stop_ = true;
    }

    void apply(const LinkEventSpec& event);

    // --- results ---
    std::vector<std::uint32_t> path(std::uint32_t src, std::uint32_t dst, std::uint32_t sport,
                                    std::uint32_t channel, int job);
    const Routes& routes() const { return routes_; }
    RunTotals totals;
    FlowColumns flows;
    Table flow_table() const;
    Table link_table();
    Table series_table();
    Table alpha_table() const;
    Table histogram_table() const;
    Table marker_table() const;
    Table rate_table() const;
    void trace_rate(std::uint32_t src, std::uint32_t dst);

  private:
    struct ClassQueue {
        std::uint32_t head = kNone;
        std::uint32_t tail = kNone;
        std::uint32_t bytes = 0;
        std::uint32_t packets = 0;
    };

    enum PortFlag : std::uint32_t {
        kUp = 1,
        kNic = 2,     // leaves a host
        kToHost = 4,  // arrives at a host
        kEager = 8,   // departures are events
        kRed = 16,
        kMark = 32,  // the switch follows jobs here
        kPolicy = 64,
        kRecord = 128,  // series and histogram
        kMmu = 256,     // the switch's buffer is finite
        kLossy = 512,   // random loss or a drop rule
        kInt = 1024,
        kStrict = 2048,
        kDequeueHooks = kRed | kMark | kPolicy | kRecord | kInt,
        kTakeCare = kLossy,
    };

    struct alignas(64) Port {  // one direction of a cable, with the queues in front of it
        TimePs busy_until = 0;
        TimePs delay = 0;
        std::uint64_t ps_per_byte = 0;  // times 2^20
        std::uint32_t flight_head = kNone;
        std::uint32_t flight_tail = kNone;
        std::uint32_t flags = kUp;
        std::uint32_t to = 0;     // node
        std::uint32_t owner = 0;  // index of the host or switch in front
        std::uint32_t peer = 0;   // index of the host or switch behind
        std::uint8_t backlog = 0;
        std::uint8_t paused = 0;
        std::uint8_t rr = 0;
        std::uint8_t pad = 0;
        std::uint32_t number = 0;  // port number at the switch, from 1

        std::uint64_t packets = 0;
        std::uint64_t bytes = 0;
        std::uint32_t red_min = 0;
        std::uint32_t red_max = 0;
        double red_slope = 0;  // p_max / (red_max - red_min), times 2^32
        MarkSpacing spacing;
        std::uint64_t data_packets = 0;
        std::uint64_t marks_red = 0;
        std::uint64_t marks_marker = 0;
        std::uint32_t max_queue_bytes = 0;
        std::uint32_t max_queue_packets = 0;

        std::uint64_t drops_buffer = 0;
        std::uint64_t drops_wire = 0;
        std::uint64_t pauses_sent = 0;
        std::uint64_t pauses_received = 0;
        TimePs paused_since = 0;
        TimePs paused_time = 0;
        std::int64_t rate_bps = 0;
        double loss = 0;
    };

    struct Ingress {  // a PFC class that comes in over a link
        std::int64_t bytes = 0;
        std::int64_t headroom_used = 0;
        std::int64_t headroom = 0;
        std::int32_t shift = 3;
        bool paused = false;
    };

    struct Switch {
        std::uint32_t node = 0;
        std::vector<std::uint32_t> ports;
        const SwitchConfig* config = nullptr;
        bool pfc = false;
        std::uint32_t mark_gap_us = 0;
        std::int64_t pool = 0;         // shared bytes to give out
        std::int64_t shared_used = 0;  // PFC: of the pool; else: all bytes held
        std::uint32_t paused = 0;      // classes at links held back
        bool always_eager = false;
        bool strict_laggards = false;
        std::uint32_t hash_seed = 0;
        enum class Lb : std::uint8_t { kEcmp, kFlowlet, kSpray, kLeastLoaded } lb = Lb::kEcmp;
        Rng spray;
        struct Flowlet {
            std::uint32_t key = 0;
            std::uint32_t link = kNone;
            TimePs last = 0;
        };
        std::vector<Flowlet> flowlets;
        std::vector<std::unique_ptr<Marker>> markers;  // by job index
        std::unique_ptr<Trial> trial;                  // rules under trial; nearly always none
        MarkingPolicy policy;
        std::vector<std::int64_t> alpha_next;  // [job][port]: end of the window under way, ns
    };

    struct Host {
        std::uint32_t node = 0;
        std::uint32_t nic = 0;
        std::vector<std::uint32_t> active;  // QPs with something to send
        std::uint32_t rr = 0;
        ClassQueue control;    // ACK, NAK, CNP
        TimePs wake = kNever;  // when a paced QP may send next
        std::uint32_t wake_size = 0;
    };

    struct Message {
        std::uint32_t next = kNone;
        std::uint32_t qp = 0;
        std::uint32_t begin = 0;  // packets [begin, end) of the QP
        std::uint32_t end = 0;
        std::int64_t bytes = 0;
        MessageTag tag;
        std::uint32_t sport = 0;
        std::uint32_t retransmissions = 0;
        bool live = false;
        TimePs start = 0;
        TimePs delivered = kNever;
        TimePs acked = kNever;
        std::array<std::uint16_t, kMaxHops> forward;
        std::array<std::uint16_t, kMaxHops> reverse;
        std::uint8_t by_hop = 0;       // bit 0: forward, bit 1: reverse
        std::uint8_t lag_decided = 0;  // by hop
        std::uint8_t lag_high = 0;
        std::uint64_t number = 0;  // in the order of posting, from 0
    };

    // Least loaded: the egress of a message at one switch of its path.
    struct Lane {
        std::uint32_t link = kNone;
        std::uint32_t seen = 0;  // one past the highest packet that came
    };

    // Flags of packets at and above a base, for reordering windows of any width.
    class FlagRing {
      public:
        bool test(std::uint32_t i) const {
            return !flags_.empty() && flags_[i & (flags_.size() - 1)] == i + 1ULL;
        }
        void clear(std::uint32_t i) { flags_[i & (flags_.size() - 1)] = 0; }
        void set(std::uint32_t i, std::uint32_t base) {
            std::size_t size = std::max<std::size_t>(64, flags_.size());
            while (i - base >= size) size *= 2;
            if (size != flags_.size()) {
                std::vector<std::uint64_t> wider(size, 0);
                for (const auto f : flags_)
                    if (f > base) wider[(f - 1) & (size - 1)] = f;
                flags_ = std::move(wider);
            }
            flags_[i & (size - 1)] = i + 1ULL;
        }
        void reset() { flags_.clear(); }

      private:
        std::vector<std::uint64_t> flags_;  // index + 1 of the packet that set the slot
    };

    struct Selective {
        FlagRing received;  // receiver
        FlagRing sacked;    // sender
        void clear() { *this = Selective{}; }
        std::uint32_t highest = 0;  // sender: one past the highest packet known received
        std::uint32_t resend = 0;   // sender: next hole to look at
    };

    struct alignas(64) Qp {
        // sender
        std::uint32_t snd_nxt = 0;
        std::uint32_t snd_una = 0;
        std::uint32_t snd_end = 0;
        std::uint32_t snd_max = 0;  // one past the highest packet ever sent
        TimePs next_avail = 0;
        std::uint32_t message = kNone;  // that of snd_nxt
        std::uint32_t head = kNone;     // oldest not acked
        std::uint32_t tail = kNone;
        std::uint32_t host = 0;
        std::uint32_t cc = 0;
        std::int64_t window = 0;  // bytes; 0: none
        std::uint16_t use = 0;
        std::uint16_t job = 0;
        std::uint8_t prio = 3;
        bool active = false;
        std::uint16_t messages_left = 1;  // before it goes; 0: it stays
        bool live = false;
        ReactionPoint rp;
        // receiver
        std::uint32_t rcv_nxt = 0;
        std::uint32_t rcv_unacked = 0;
        std::uint32_t rcv_message = kNone;  // oldest not delivered
        std::uint32_t nak_for = kNone;
        TimePs nak_time = 0;
        TimePs last_cnp = -1;
        bool ce_pending = false;
        bool timer_armed = false;
        bool traced = false;
        // rarely
        std::uint32_t peer = 0;  // host index of the receiver
        std::uint32_t channel = 0;
        std::uint32_t extra = kNone;  // index of Selective state
        std::uint32_t hpcc = kNone;
        TimePs rto_deadline = kNever;
    };

    struct Timer {
        TimePs time;
        std::uint64_t order;
        TimerTarget* target;
        std::uint64_t arg;
        bool operator>(const Timer& o) const {
            return time != o.time ? time > o.time : order > o.order;
        }
    };

    struct DropRule {
        DropSpec spec;
        std::int64_t seen = 0;
        std::int64_t done = 0;
    };

    class RtoTarget final : public TimerTarget {
      public:
        explicit RtoTarget(Model& m) : model_(m) {}
        void on_timer(std::uint64_t arg) override { model_.on_rto(arg); }

      private:
        Model& model_;
    };

    // ports
    TimePs tx_time(const Port& p, std::uint32_t bytes) const {
        const auto ps = static_cast<TimePs>((bytes * p.ps_per_byte + (1U << 19)) >> 20);
        return round_ns_ ? (ps + 500) / 1000 * 1000 : ps;
    }
    void set_rate(Port& p, std::int64_t rate_bps);
    void advance(std::uint32_t link, TimePs now);
    std::uint32_t pick_class(Port& p, std::uint32_t mask);
    void begin_transmission(std::uint32_t link, Port& p, std::uint32_t id, TimePs start);
    void dequeue(std::uint32_t link, Port& p, TimePs start);
    void on_departure(std::uint32_t link, Port& p, Packet& k, TimePs start,
                      std::uint32_t left_bytes, std::uint32_t left_packets);
    void enqueue(std::uint32_t link, std::uint32_t id);
    void want_departure_event(std::uint32_t link, Port& p);
    void kick_port(std::uint32_t link);
    void link_event(std::uint32_t link);
    void departure_event(std::uint32_t link);
    void timer_event();
    bool lost(std::uint32_t link, Port& p, const Packet& k);
    void drop_on_wire(std::uint32_t link, std::uint32_t id);
    void purge(std::uint32_t link);
    void record(std::uint32_t link, Packet& k, TimePs start, std::uint32_t left_bytes, bool marked);

    // switches
    void switch_receive(std::uint32_t link, std::uint32_t id);
    std::uint32_t choose(Switch& s, const Packet& k);
    std::uint32_t least_loaded(const Switch& s, const Packet& k,
                               std::span<const std::uint32_t> hops, std::uint32_t hash);
    TimePs load(std::uint32_t link, TimePs horizon);
    void leave_lanes(std::uint32_t message);
    void classify(Packet& k, std::uint32_t out);
    std::uint32_t ecmp(std::uint32_t node, std::uint32_t from, std::uint32_t to,
                       std::uint32_t ports) const;
    std::uint32_t ports_word(const Message& m, bool reverse) const;
    bool walk(std::uint32_t from, std::uint32_t to, std::uint32_t ports,
              std::vector<std::uint32_t>& path) const;
    // Planned paths of an edge take turns by the step.
    const std::vector<std::uint32_t>* planned(std::uint32_t src, std::uint32_t dst,
                                              std::uint32_t channel, int job,
                                              std::uint32_t step) const;
    bool admit(Switch& s, std::uint32_t out, Packet& k);
    void release(Switch& s, const Packet& k);
    void sync(Switch& s);
    void set_eager(Switch& s, bool eager);
    void send_pause(Switch& s, std::uint32_t in_link, std::uint8_t prio, bool on);
    void flush_pauses();
    void receive_pause(std::uint32_t link, const Packet& k);
    std::int64_t threshold(const Switch& s, const Ingress& in) const {
        const std::int64_t left = s.pool - s.shared_used;
        return left <= 0 ? 0 : left >> in.shift;
    }
    Ingress& ingress(std::uint32_t link, std::uint8_t prio) {
        return ingress_[static_cast<std::size_t>(link) * kClasses + prio];
    }
    std::int64_t headroom_for(const PfcConfig& pfc, std::uint32_t in_link) const;
    std::int64_t headroom_needed(const PfcConfig& pfc, std::uint32_t in_link) const;
    void plan_buffers();
    bool mark(Switch& s, std::uint32_t link, Port& p, const Packet& k, TimePs at,
              std::uint32_t left_bytes, std::uint32_t left_packets, bool& red);
    void trace_alpha(Switch& s, Marker& m, const Port& p, const Packet& k, TimePs at);

    // hosts
    void nic_advance(Host& h, TimePs now);
    void nic_settle(Host& h);
    void touch(Host& h) {
        Port& p = ports_[h.nic];
        if (p.busy_until <= now_) nic_advance(h, now_);
    }
    void kick(Host& h) {
        touch(h);
        nic_settle(h);
    }
    void send_data(Port& p, Host& h, Qp& q, std::uint32_t qp, TimePs at);
    std::uint32_t next_size(Qp& q);
    bool has_more(Qp& q);
    bool window_open(Qp& q, TimePs at);
    void activate(std::uint32_t qp);
    void host_receive(Host& h, std::uint32_t id, std::uint32_t link);
    void receive_data(Host& h, std::uint32_t id);
    void receive_ack(Host& h, std::uint32_t id);
    void reply(Host& h, std::uint32_t id, PacketKind kind, const Qp& q);
    void deactivate(Host& h, std::uint32_t qp);
    void complete(std::uint32_t qp);
    void note_flow(const Message& m, const Qp& q);
    void go_back(Qp& q, std::uint32_t qp, std::uint32_t psn);
    void take_nak(Qp& q, std::uint32_t qp, std::uint32_t psn, std::uint32_t came);
    bool hole(Qp& q, std::uint32_t& psn);
    void deliver(std::uint32_t qp);
    void free_qp(std::uint32_t qp);
    std::uint32_t message_of(const Qp& q, std::uint32_t psn) const;
    void on_rto(std::uint64_t arg);
    void arm_rto(std::uint32_t qp, Qp& q, TimePs from);
    void lay_paths(Message& m, const Qp& q);
    TimePs base_rtt(const Message& m, const Qp& q, double& slowest);
    void trace(std::uint32_t qp, Qp& q, TimePs at);
    std::uint8_t control_class(std::uint8_t prio) const { return ack_priority_ ? 0 : prio; }

    Network net_;
    TransportConfig tc_;
    StatsConfig sc_;
    std::uint32_t seed_;
    bool round_ns_ = false;
    bool selective_ = false;
    bool in_order_nic_ = false;
    bool ack_priority_ = false;
    bool has_int_ = false;
    bool started_ = false;
    bool stop_ = false;
    std::exception_ptr failure_;  // of a callback
    int window_mode_ = 0;         // 0 none, 1 BDP, 2 variable
    TimePs rto_ = 0;
    TimePs nak_interval_ = 0;
    std::uint32_t mtu_ = 1000;
    std::uint32_t full_size_ = 1048;

    TimePs now_ = 0;
    EventQueue events_;
    std::uint32_t links_ = 0;
    std::uint32_t timer_source_ = 0;
    std::vector<Timer> timers_;
    std::uint64_t timer_order_ = 0;

    PacketPool packets_;
    std::vector<IntRecord> int_;
    std::vector<Port> ports_;
    std::vector<ClassQueue> queues_;  // [link][class]
    std::vector<Ingress> ingress_;    // [link][class]
    std::vector<Switch> switches_;
    std::vector<Host> hosts_;
    std::vector<std::uint32_t> index_of_;  // by node
    std::vector<Message> messages_;
    std::vector<std::uint32_t> free_messages_;
    std::vector<Qp> qps_;
    std::vector<std::uint32_t> free_qps_;
    std::vector<Selective> selective_state_;
    std::vector<std::uint32_t> free_selective_;
    std::vector<Hpcc> hpcc_;
    std::vector<std::uint32_t> free_hpcc_;
    std::vector<CcKind> ccs_;
    std::uint64_t message_count_ = 0;

    Routes routes_;
    std::vector<char> up_;
    std::vector<std::uint32_t> scratch_;
    bool any_laggards_ = false;
    std::uint32_t current_link_ = kNone;  // its event is being carried out
    struct PauseOrder {
        std::uint32_t in_link;
        std::uint8_t prio;
        bool on;
    };
    std::vector<PauseOrder> pauses_;  // PFC frames to send at the end of this event
    bool dynamic_lb_ = false;
    bool least_loaded_ = false;                         // at some switch
    std::vector<std::array<Lane, kMaxHops>> lanes_;     // by message and hop
    std::vector<std::vector<std::uint32_t>> assigned_;  // by link: messages that leave by it
    std::map<std::array<std::uint32_t, 4>, std::vector<std::vector<std::uint32_t>>> planned_;
    std::set<int> unplanned_;  // ids of jobs that do not take them
    std::vector<DropRule> drops_;
    std::vector<Rng> red_rng_, mark_rng_, loss_rng_;
    std::uint8_t classes_ = 1 << 3;

    struct JobInfo {
        int id;
        std::optional<MarkerParams> marker;
        bool known;  // to the switches
    };
    std::vector<JobInfo> jobs_;
    MessageSink* sink_ = nullptr;
    RtoTarget rto_target_{*this};

    std::vector<std::vector<LinkSeries>> series_;  // by link
    SeriesColumns series_out_;
    std::vector<std::vector<std::uint64_t>> histogram_;
    AlphaColumns alpha_;
    RateColumns rates_;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> rate_pairs_;
};

}  // namespace ringstep
