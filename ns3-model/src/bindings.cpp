// The Python module ringstep_ns3._core; ringstep_ns3/_core.pyi is its documentation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/resource.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "core/config.h"
#include "core/dcqcn.h"
#include "core/marker.h"
#include "core/network.h"
#include "core/simulation.h"
#include "core/trial.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace ringstep;

namespace {

nb::dict to_python(Table table) {
    nb::dict out;
    for (auto& [name, column] : table) {
        std::visit(
            [&](auto& values) {
                using Values = std::decay_t<decltype(values)>;
                using T = typename Values::value_type;
                auto* owned = new Values(std::move(values));
                nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Values*>(p); });
                const std::size_t n = owned->size();
                out[nb::str(name.c_str())] =
                    nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {n}, owner);
            },
            column);
    }
    return out;
}

TimePs ns_grid(double us) {
    return std::llround(us * 1000) * kPsPerNs;
}

// The reaction point with its constants, for golden traces.
class TracedReactionPoint {
  public:
    TracedReactionPoint(const DcqcnParams& params, double line) : constants_(params, line) {
        rp_.start(constants_);
    }
    double advance(double us) {
        rp_.settle(constants_, time(us));
        return rp_.rate();
    }
    void on_cnp(double us) { rp_.on_cnp(constants_, time(us)); }
    double on_sent(std::int64_t bytes, double us) {
        return rp_.on_sent(constants_, bytes, time(us));
    }
    const ReactionPoint& rp() const { return rp_; }

  private:
    TimePs time(double us) {
        const TimePs t = ns_grid(us);
        if (t < last_)
            throw ConfigError("time went back: " + std::to_string(us) +
                              " us is before the last call");
        last_ = t;
        return t;
    }
    DcqcnConstants constants_;
    ReactionPoint rp_;
    TimePs last_ = 0;
};

// A struct of _core.pyi: each field is a keyword of the constructor and an attribute.
template <typename C>
class Struct {
  public:
    Struct(nb::module_& m, const char* name) : class_(m, name) {
        name_ = name;
        class_.def("__init__", [](C* self, nb::kwargs kwargs) {
            C value;
            for (auto [key, given] : kwargs) {
                const auto field = nb::cast<std::string>(key);
                const auto found = setters().find(field);
                if (found == setters().end())
                    throw nb::type_error(
                        (name_ + "() got an unexpected keyword argument \"" + field + "\"")
                            .c_str());
                try {
                    found->second(value, given);
                } catch (const nb::cast_error&) {
                    throw nb::type_error((name_ + ": " + field + " = " +
                                          nb::cast<std::string>(nb::repr(given)) +
                                          " has the wrong type")
                                             .c_str());
                }
            }
            for (const auto& required : required_)
                if (!kwargs.contains(required.c_str()))
                    throw nb::type_error(
                        (name_ + "() needs the keyword argument \"" + required + "\"").c_str());
            new (self) C(std::move(value));
        });
    }
    template <typename T>
    Struct& field(const char* name, T C::* member, bool required = false) {
        class_.def_rw(name, member, nb::arg().none());
        setters()[name] = [member](C& value, nb::handle given) {
            value.*member = nb::cast<T>(given);
        };
        if (required) required_.emplace_back(name);
        return *this;
    }

  private:
    using Setter = std::function<void(C&, nb::handle)>;
    static std::map<std::string, Setter>& setters() {
        static std::map<std::string, Setter> table;
        return table;
    }
    nb::class_<C> class_;
    static inline std::string name_;
    static inline std::vector<std::string> required_;
};

// A Python object that C++ may let go of without holding the interpreter's lock.
std::shared_ptr<nb::object> hold(nb::object object) {
    return {new nb::object(std::move(object)), [](nb::object* held) {
                nb::gil_scoped_acquire gil;
                delete held;
            }};
}

std::int64_t memory_peak_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

NB_MODULE(_core, m) {
    // A callback that refers to its own simulation is a cycle that nobody collects; at exit that is
    // no news.
    nb::set_leak_warnings(false);
    m.attr("NO_VALUE") = nb::int_(kNever);
    m.def("version", [] {
        return "ringstep-ns3 0.1.0 (sources " RINGSTEP_CORE_SOURCES "), " + Ns3Bridge::version();
    });
    m.def("memory_peak_bytes", &memory_peak_bytes);
    m.def("dcqcn_preset_names", &dcqcn_preset_names);
    m.def("dcqcn_preset", &dcqcn_preset, "name"_a, "link_rate_bps"_a);

    Struct<DcqcnParams>(m, "DcqcnParams")
        .field("t_alpha_us", &DcqcnParams::t_alpha_us)
        .field("t_dec_us", &DcqcnParams::t_dec_us)
        .field("t_rp_us", &DcqcnParams::t_rp_us)
        .field("g", &DcqcnParams::g)
        .field("f", &DcqcnParams::f)
        .field("rate_ai_bps", &DcqcnParams::rate_ai_bps)
        .field("rate_hai_bps", &DcqcnParams::rate_hai_bps)
        .field("min_rate_bps", &DcqcnParams::min_rate_bps)
        .field("byte_counter_bytes", &DcqcnParams::byte_counter_bytes)
        .field("clamp_target", &DcqcnParams::clamp_target)
        .field("clamp_after_time_inc", &DcqcnParams::clamp_after_time_inc)
        .field("gd", &DcqcnParams::gd)
        .field("min_dec_fac", &DcqcnParams::min_dec_fac)
        .field("rate_on_first_cnp", &DcqcnParams::rate_on_first_cnp)
        .field("initial_alpha", &DcqcnParams::initial_alpha)
        .field("reaction", &DcqcnParams::reaction)
        .field("hai_scaling", &DcqcnParams::hai_scaling)
        .field("cnp_interval_us", &DcqcnParams::cnp_interval_us);

    nb::class_<TracedReactionPoint>(m, "ReactionPoint")
        .def(nb::init<const DcqcnParams&, double>(), "params"_a, "line_rate_bps"_a)
        .def("advance", &TracedReactionPoint::advance, "now_us"_a)
        .def("on_cnp", &TracedReactionPoint::on_cnp, "now_us"_a)
        .def("on_sent", &TracedReactionPoint::on_sent, "wire_bytes"_a, "now_us"_a)
        .def_prop_ro("rate_bps", [](const TracedReactionPoint& r) { return r.rp().rate(); })
        .def_prop_ro("target_bps", [](const TracedReactionPoint& r) { return r.rp().target(); })
        .def_prop_ro("alpha", [](const TracedReactionPoint& r) { return r.rp().alpha(); })
        .def_prop_ro("stages",
                     [](const TracedReactionPoint& r) {
                         return std::pair(r.rp().time_stage(), r.rp().byte_stage());
                     })
        .def_prop_ro("cuts", [](const TracedReactionPoint& r) { return r.rp().cuts(); });

    Struct<HpccParams>(m, "HpccParams")
        .field("eta", &HpccParams::eta)
        .field("max_stage", &HpccParams::max_stage)
        .field("rate_ai_bps", &HpccParams::rate_ai_bps)
        .field("min_rate_bps", &HpccParams::min_rate_bps)
        .field("multi_rate", &HpccParams::multi_rate);

    Struct<CcConfig>(m, "CcConfig")
        .field("kind", &CcConfig::kind)
        .field("preset", &CcConfig::preset)
        .field("dcqcn", &CcConfig::dcqcn)
        .field("hpcc", &CcConfig::hpcc)
        .field("fixed_rate_bps", &CcConfig::fixed_rate_bps);

    Struct<MarkerParams>(m, "MarkerParams")
        .field("k", &MarkerParams::k)
        .field("tau_num", &MarkerParams::tau_num)
        .field("tau_den", &MarkerParams::tau_den)
        .field("t_win_us", &MarkerParams::t_win_us)
        .field("n_sample", &MarkerParams::n_sample)
        .field("n_warmup", &MarkerParams::n_warmup)
        .field("alpha_max", &MarkerParams::alpha_max)
        .field("q_gate_packets", &MarkerParams::q_gate_packets)
        .field("step_bits", &MarkerParams::step_bits)
        .field("anchored", &MarkerParams::anchored)
        .field("packets_per_step", &MarkerParams::packets_per_step)
        .field("enabled", &MarkerParams::enabled)
        .field("generation", &MarkerParams::generation);

    nb::class_<Marker>(m, "Marker")
        .def(
            "__init__",
            [](Marker* self, const MarkerParams& params, const std::string& scope) {
                require(scope == "port" || scope == "switch", "scope", scope,
                        "must be \"port\" or \"switch\"");
                new (self) Marker(params, scope == "port");
            },
            "params"_a, "scope"_a = "port")
        .def(
            "on_packet",
            [](Marker& self, std::uint64_t now_us, std::uint32_t step, std::uint32_t psn, bool last,
               bool ect, std::uint32_t r, std::uint32_t qdepth, bool red, std::uint32_t port) {
                const auto d = self.on_packet(now_us, step, psn, last, ect, r, qdepth, red, port);
                return std::tuple(d.mark, d.ce, d.progress);
            },
            "now_us"_a, "step"_a, "psn"_a, "last"_a, "ect"_a, "r"_a, "qdepth_packets"_a = 0,
            "red"_a = false, "port"_a = 0)
        .def("update", &Marker::update, "params"_a)
        .def("set_block", &Marker::set_block, "port"_a, "block"_a)
        .def(
            "block",
            [](Marker& self, std::uint32_t port) {
                const MarkerBlock& b = self.block(port);
                nb::dict d;
                d["step_min"] = b.step_min;
                d["psn_rec"] = b.psn_rec;
                d["alpha"] = b.alpha;
                d["cnt_total"] = b.cnt_total;
                d["cnt_op"] = b.cnt_op;
                d["win_start"] = b.win_start;
                d["generation"] = b.generation;
                return d;
            },
            "port"_a = 0)
        .def("anchors",
             [](const Marker& self) {
                 std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> out;
                 for (const auto& a : self.anchors())
                     out.emplace_back(a.generation, a.step, a.base);
                 return out;
             })
        .def("counters", [](const Marker& self) {
            const MarkerCounters& c = self.counters();
            nb::dict d;
            d["data"] = c.data;
            d["marks"] = c.marks;
            d["red_marks"] = c.red_marks;
            d["corrections"] = c.corrections;
            d["advances"] = c.advances;
            return d;
        });

    nb::class_<MarkSpacing>(m, "MarkSpacing")
        .def(nb::init<>())
        .def("stands", &MarkSpacing::stands, nb::kw_only(), "now_us"_a, "gap_us"_a, "left"_a,
             "red_max"_a);

    Struct<TrialRules>(m, "TrialRules")
        .field("hold_ns", &TrialRules::hold_ns)
        .field("min_lead", &TrialRules::min_lead)
        .field("mark_gap_ns", &TrialRules::mark_gap_ns)
        .field("p_max", &TrialRules::p_max)
        .field("relief", &TrialRules::relief)
        .field("transfer", &TrialRules::transfer)
        .field("last_lost", &TrialRules::last_lost);

    nb::class_<Trial>(m, "Trial")
        .def(
            "__init__",
            [](Trial* self, const TrialRules& rules, const std::string& scope, std::uint64_t seed) {
                require(scope == "port" || scope == "switch", "scope", scope,
                        "must be \"port\" or \"switch\"");
                new (self) Trial(rules, scope == "port", seed);
            },
            "rules"_a, "scope"_a = "port", "seed"_a = 1)
        .def(
            "on_packet",
            [](Trial& self, Marker& marker, std::int64_t now_ns, std::uint32_t step,
               std::uint32_t psn, bool last, bool ect, std::uint32_t r, std::uint32_t packets,
               std::uint32_t bytes, bool red, std::uint32_t red_max, std::uint32_t port,
               std::uint32_t job) {
                require(now_ns >= 0, "now_ns", now_ns, "must not be negative");
                const auto v = self.on_packet(
                    marker, job,
                    {now_ns, step, psn, last, ect, r, packets, bytes, red, red_max, port});
                return std::pair(v.mark, v.red);
            },
            "marker"_a, nb::kw_only(), "now_ns"_a, "step"_a, "psn"_a, "last"_a = false,
            "ect"_a = true, "r"_a = 0, "qdepth_packets"_a = 0, "qdepth_bytes"_a = 0,
            "red"_a = false, "red_k_max_bytes"_a = 0, "port"_a = 0, "job"_a = 0);

    Struct<TransportConfig>(m, "TransportConfig")
        .field("mtu_bytes", &TransportConfig::mtu_bytes)
        .field("header_bytes", &TransportConfig::header_bytes)
        .field("ack_bytes", &TransportConfig::ack_bytes)
        .field("cnp_bytes", &TransportConfig::cnp_bytes)
        .field("cc", &TransportConfig::cc)
        .field("window", &TransportConfig::window)
        .field("window_bytes", &TransportConfig::window_bytes)
        .field("ack_interval", &TransportConfig::ack_interval)
        .field("recovery", &TransportConfig::recovery)
        .field("rto_ns", &TransportConfig::rto_ns)
        .field("nak_interval_ns", &TransportConfig::nak_interval_ns)
        .field("nic", &TransportConfig::nic)
        .field("ack_priority", &TransportConfig::ack_priority)
        .field("round_to_ns", &TransportConfig::round_to_ns)
        .field("first_psn", &TransportConfig::first_psn)
        .field("sport_base", &TransportConfig::sport_base)
        .field("dport", &TransportConfig::dport);

    Struct<RedEntry>(m, "RedEntry")
        .field("rate_bps", &RedEntry::rate_bps, true)
        .field("k_min_bytes", &RedEntry::k_min_bytes, true)
        .field("k_max_bytes", &RedEntry::k_max_bytes, true)
        .field("p_max", &RedEntry::p_max, true);

    Struct<PfcConfig>(m, "PfcConfig")
        .field("enabled", &PfcConfig::enabled)
        .field("shift", &PfcConfig::shift)
        .field("reserve_bytes", &PfcConfig::reserve_bytes)
        .field("resume_offset_bytes", &PfcConfig::resume_offset_bytes)
        .field("headroom", &PfcConfig::headroom)
        .field("headroom_bytes", &PfcConfig::headroom_bytes)
        .field("pause_bytes", &PfcConfig::pause_bytes);

    Struct<SwitchConfig>(m, "SwitchConfig")
        .field("buffer_bytes", &SwitchConfig::buffer_bytes)
        .field("pfc", &SwitchConfig::pfc)
        .field("red", &SwitchConfig::red)
        .field("mark_gap_us", &SwitchConfig::mark_gap_us)
        .field("lb", &SwitchConfig::lb)
        .field("flowlet_gap_ns", &SwitchConfig::flowlet_gap_ns)
        .field("load_horizon_ns", &SwitchConfig::load_horizon_ns)
        .field("ecmp_hash", &SwitchConfig::ecmp_hash)
        .field("marking", &SwitchConfig::marking)
        .field("marker_scope", &SwitchConfig::marker_scope)
        .field("trial", &SwitchConfig::trial)
        .field("scheduler", &SwitchConfig::scheduler);

    nb::class_<Network>(m, "Network")
        .def(nb::init<>())
        .def("add_host", &Network::add_host, "name"_a = "")
        .def("add_switch", &Network::add_switch, "config"_a, "name"_a = "", "tier"_a = 0)
        .def("add_link", &Network::add_link, "a"_a, "b"_a, "rate_bps"_a, "delay_ns"_a,
             nb::kw_only(), "rate_back_bps"_a = 0, "delay_back_ns"_a = -1, "loss"_a = 0.0)
        .def("add_event", &Network::add_event, "time_ns"_a, "cable"_a, "action"_a, "rate_bps"_a = 0)
        .def(
            "add_drop",
            [](Network& n, const std::string& kind, const std::string& which, std::int64_t nth,
               std::int64_t src, std::int64_t dst, std::int64_t step, std::int64_t link,
               std::int64_t times) { n.add_drop({kind, which, nth, src, dst, step, link, times}); },
            nb::kw_only(), "kind"_a = "data", "which"_a = "last", "n"_a = 1, "src"_a = -1,
            "dst"_a = -1, "step"_a = -1, "link"_a = -1, "times"_a = 1)
        .def(
            "set_planned_path",
            [](Network& n, int src, int dst, int channel, const std::vector<std::int64_t>& links,
               int job) { n.set_planned_path(src, dst, channel, links, job); },
            "src"_a, "dst"_a, "channel"_a, "links"_a, nb::kw_only(), "job"_a = 0)
        .def_prop_ro("hosts", &Network::hosts)
        .def_prop_ro("switches",
                     [](const Network& n) { return static_cast<int>(n.nodes.size()) - n.hosts(); })
        .def_prop_ro("cables", [](const Network& n) { return n.links.size() / 2; })
        .def(
            "link_ends",
            [](const Network& n, std::int64_t link) {
                require(link >= 0 && link < static_cast<std::int64_t>(n.links.size()), "link", link,
                        "no such directed link");
                const LinkSpec& l = n.links[static_cast<std::size_t>(link)];
                return std::pair(l.from, l.to);
            },
            "link"_a)
        .def(
            "next_hops",
            [](const Network& n, int node, int dst) {
                require(node >= 0 && static_cast<std::size_t>(node) < n.nodes.size(), "node", node,
                        "no such node");
                require(n.is_host(dst), "dst", dst, "not a host");
                Routes routes;
                routes.build(n, std::vector<char>(n.links.size(), 1));
                const auto hops = routes.next_hops(static_cast<std::uint32_t>(node),
                                                   static_cast<std::uint32_t>(dst));
                return std::vector<std::uint32_t>(hops.begin(), hops.end());
            },
            "node"_a, "dst"_a);

    Struct<Op>(m, "Op")
        .field("kind", &Op::kind, true)
        .field("bytes_", &Op::bytes)
        .field("algorithm", &Op::algorithm)
        .field("rings", &Op::rings)
        .field("dims", &Op::dims)
        .field("channels", &Op::channels)
        .field("passes", &Op::passes)
        .field("chunks", &Op::chunks)
        .field("window", &Op::window)
        .field("root", &Op::root)
        .field("src", &Op::src)
        .field("dst", &Op::dst)
        .field("compute_ns", &Op::compute_ns)
        .field("after", &Op::after)
        .field("name", &Op::name);

    Struct<JobSpec>(m, "JobSpec")
        .field("job_id", &JobSpec::job_id, true)
        .field("hosts", &JobSpec::hosts, true)
        .field("ops", &JobSpec::ops, true)
        .field("start_ns", &JobSpec::start_ns)
        .field("sender", &JobSpec::sender)
        .field("pool", &JobSpec::pool)
        .field("messages_per_step", &JobSpec::messages_per_step)
        .field("port", &JobSpec::port)
        .field("dependency", &JobSpec::dependency)
        .field("notify", &JobSpec::notify)
        .field("endpoint_delay_ns", &JobSpec::endpoint_delay_ns)
        .field("rank_delay_ns", &JobSpec::rank_delay_ns)
        .field("step_delay_ns", &JobSpec::step_delay_ns)
        .field("compute_scale", &JobSpec::compute_scale)
        .field("marker", &JobSpec::marker)
        .field("known", &JobSpec::known)
        .field("priority", &JobSpec::priority)
        .field("cc", &JobSpec::cc)
        .field("name", &JobSpec::name);

    Struct<FlowSpec>(m, "FlowSpec")
        .field("src", &FlowSpec::src, true)
        .field("dst", &FlowSpec::dst, true)
        .field("bytes_", &FlowSpec::bytes, true)
        .field("start_ns", &FlowSpec::start_ns)
        .field("priority", &FlowSpec::priority)
        .field("cc", &FlowSpec::cc)
        .field("sport", &FlowSpec::sport);

    Struct<StatsConfig>(m, "StatsConfig")
        .field("flows", &StatsConfig::flows)
        .field("steps", &StatsConfig::steps)
        .field("sample_ns", &StatsConfig::sample_ns)
        .field("links", &StatsConfig::links)
        .field("alpha_ns", &StatsConfig::alpha_ns)
        .field("queue_bin_bytes", &StatsConfig::queue_bin_bytes);

    nb::class_<PolicyPacket>(m, "MarkingPacket")
        .def_ro("now_ns", &PolicyPacket::now_ns)
        .def_ro("switch", &PolicyPacket::switch_node)
        .def_ro("port", &PolicyPacket::port)
        .def_ro("job", &PolicyPacket::job)
        .def_ro("step", &PolicyPacket::step)
        .def_ro("psn", &PolicyPacket::psn)
        .def_ro("first", &PolicyPacket::first)
        .def_ro("last", &PolicyPacket::last)
        .def_ro("ect", &PolicyPacket::ect)
        .def_ro("src", &PolicyPacket::src)
        .def_ro("dst", &PolicyPacket::dst)
        .def_ro("sport", &PolicyPacket::sport)
        .def_ro("dest_qp", &PolicyPacket::dest_qp)
        .def_ro("payload_bytes", &PolicyPacket::payload_bytes)
        .def_ro("qdepth_packets", &PolicyPacket::qdepth_packets)
        .def_ro("qdepth_bytes", &PolicyPacket::qdepth_bytes)
        .def_ro("red", &PolicyPacket::red)
        .def_ro("r", &PolicyPacket::r);

    nb::class_<RunTotals>(m, "RunStats")
        .def_ro("finished", &RunTotals::finished)
        .def_ro("stopped", &RunTotals::stopped)
        .def_prop_ro("sim_time_ns", [](const RunTotals& t) { return to_ns(t.sim_time); })
        .def_ro("hops", &RunTotals::hops)
        .def_ro("events", &RunTotals::events)
        .def_ro("ns3_events", &RunTotals::ns3_events)
        .def_ro("data_packets", &RunTotals::data_packets)
        .def_ro("acks", &RunTotals::acks)
        .def_ro("cnps", &RunTotals::cnps)
        .def_ro("naks", &RunTotals::naks)
        .def_ro("timeouts", &RunTotals::timeouts)
        .def_ro("retransmissions", &RunTotals::retransmissions)
        .def_ro("drops_buffer", &RunTotals::drops_buffer)
        .def_ro("drops_wire", &RunTotals::drops_wire)
        .def_ro("pauses", &RunTotals::pauses)
        .def_ro("marks_red", &RunTotals::marks_red)
        .def_ro("marks_marker", &RunTotals::marks_marker)
        .def_ro("peak_packets", &RunTotals::peak_packets);

    nb::class_<Simulation>(m, "Simulation")
        .def(
            "__init__",
            [](Simulation* self, const Network& network, const TransportConfig& transport,
               std::uint32_t seed, const StatsConfig& stats) {
                new (self) Simulation(network, transport, seed, stats);
            },
            "network"_a, "transport"_a, nb::kw_only(), "seed"_a = 1, "stats"_a = StatsConfig())
        .def("warnings", &Simulation::warnings)
        .def("drops_done", &Simulation::drops_done)
        .def("add_job", &Simulation::add_job, "job"_a)
        .def("add_flow", &Simulation::add_flow, "flow"_a)
        .def(
            "add_flows",
            [](Simulation& s, const std::vector<int>& src, const std::vector<int>& dst,
               const std::vector<std::int64_t>& bytes, const std::vector<std::int64_t>& start,
               int priority, std::optional<CcConfig> cc) {
                require(dst.size() == src.size() && bytes.size() == src.size() &&
                            start.size() == src.size(),
                        "src", src.size(), "src, dst, bytes_ and start_ns need the same length");
                for (std::size_t i = 0; i < src.size(); ++i)
                    s.add_flow({src[i], dst[i], bytes[i], start[i], priority, cc, 0});
            },
            "src"_a, "dst"_a, "bytes_"_a, "start_ns"_a, nb::kw_only(), "priority"_a = 3,
            "cc"_a = nb::none())
        .def(
            "set_marking_policy",
            [](Simulation& s, int node, nb::object policy) {
                if (policy.is_none()) {
                    s.set_marking_policy(node, {});
                    return;
                }
                s.set_marking_policy(node, [held = hold(policy)](const PolicyPacket& packet) {
                    nb::gil_scoped_acquire gil;
                    return nb::cast<bool>((*held)(packet));
                });
            },
            "switch"_a, "policy"_a.none())
        .def(
            "at",
            [](Simulation& s, std::int64_t time_ns, nb::callable action) {
                s.at(time_ns, [held = hold(action)] {
                    nb::gil_scoped_acquire gil;
                    (*held)();
                });
            },
            "time_ns"_a, "action"_a)
        .def(
            "on_operation",
            [](Simulation& s, nb::object action) {
                if (action.is_none()) {
                    s.on_operation({});
                    return;
                }
                s.on_operation(
                    [held = hold(action)](int job, std::uint32_t op, std::int64_t time_ns) {
                        nb::gil_scoped_acquire gil;
                        (*held)(job, op, time_ns);
                    });
            },
            "action"_a.none())
        .def("set_planned", &Simulation::set_planned, "job"_a, "on"_a)
        .def("set_marker", &Simulation::set_marker, "job"_a, "params"_a)
        .def("path", &Simulation::path, "src"_a, "dst"_a, "sport"_a, nb::kw_only(), "channel"_a = 0,
             "job"_a = 0)
        .def(
            "run",
            [](Simulation& s, std::int64_t until_ns, nb::object on_progress,
               std::uint64_t progress_events) {
                Simulation::Progress progress;
                if (!on_progress.is_none())
                    progress = [&](std::int64_t ns, double fraction, std::uint64_t events) {
                        nb::gil_scoped_acquire gil;
                        on_progress(ns, fraction, events);
                    };
                const Simulation::Poll poll = [] {
                    nb::gil_scoped_acquire gil;
                    if (PyErr_CheckSignals() != 0) throw nb::python_error();
                };
                nb::gil_scoped_release unlocked;
                return s.run(until_ns, progress, progress_events, poll);
            },
            "until_ns"_a = 0, "on_progress"_a = nb::none(), "progress_events"_a = 2'000'000)
        .def("stats", &Simulation::stats)
        .def("trace_rate", &Simulation::trace_rate, "src"_a, "dst"_a)
        .def("flows", [](Simulation& s) { return to_python(s.flows()); })
        .def("steps", [](Simulation& s) { return to_python(s.steps()); })
        .def("collectives", [](Simulation& s) { return to_python(s.collectives()); })
        .def("op_ranks", [](Simulation& s) { return to_python(s.op_ranks()); })
        .def("jobs", [](Simulation& s) { return to_python(s.jobs()); })
        .def("links", [](Simulation& s) { return to_python(s.links()); })
        .def("link_series", [](Simulation& s) { return to_python(s.link_series()); })
        .def("alpha_trace", [](Simulation& s) { return to_python(s.alpha_trace()); })
        .def("queue_histogram", [](Simulation& s) { return to_python(s.queue_histogram()); })
        .def("markers", [](Simulation& s) { return to_python(s.markers()); })
        .def("rate_trace", [](Simulation& s) { return to_python(s.rate_trace()); });
}
