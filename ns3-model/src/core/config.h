// What a user says about a simulation: plain structs, mirrored one to one by
// ringstep_ns3/_core.pyi, which documents every field and its unit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/types.h"

namespace ringstep {

struct DcqcnParams {
    double t_alpha_us = 1;
    double t_dec_us = 4;
    double t_rp_us = 300;
    double g = 1.0 / 256;
    int f = 1;
    double rate_ai_bps = 2e6;
    double rate_hai_bps = 20e6;
    double min_rate_bps = 1e9;
    std::optional<std::int64_t> byte_counter_bytes;
    bool clamp_target = false;
    bool clamp_after_time_inc = true;
    double gd = 2.0;
    double min_dec_fac = 0.0;
    double rate_on_first_cnp = 1.0;
    double initial_alpha = 1.0;
    std::string reaction = "periodic";
    bool hai_scaling = false;
    std::optional<double> cnp_interval_us;

    void check() const;
};

struct HpccParams {
    double eta = 0.95;
    int max_stage = 0;
    double rate_ai_bps = 20e6;
    double min_rate_bps = 100e6;
    bool multi_rate = false;

    void check() const;
};

struct CcConfig {
    std::string kind = "dcqcn";
    std::string preset = "hpcc_run";
    DcqcnParams dcqcn;
    HpccParams hpcc;
    double fixed_rate_bps = 0;
};

struct MarkerParams {
    std::uint32_t k = 655;
    std::uint32_t tau_num = 1;
    std::uint32_t tau_den = 4;
    std::uint32_t t_win_us = 100;
    std::uint32_t n_sample = 8;
    std::uint32_t n_warmup = 8;
    std::uint32_t alpha_max = 255;
    std::optional<std::uint32_t> q_gate_packets = 10;
    int step_bits = 14;
    bool anchored = false;
    std::uint32_t packets_per_step = 0;
    bool enabled = true;
    std::uint32_t generation = 1;

    void check() const;
};

struct TrialRules {  // marker rules under trial, see core/trial.h; all of them off
    std::int64_t hold_ns = 0;
    std::uint32_t min_lead = 1;
    std::int64_t mark_gap_ns = 0;
    double p_max = 1;
    std::string relief = "off";
    std::uint32_t transfer = 0;
    double last_lost = 0;

    void check() const;
};

struct TransportConfig {
    std::int64_t mtu_bytes = 1000;
    std::int64_t header_bytes = 48;
    std::int64_t ack_bytes = 60;
    std::int64_t cnp_bytes = 60;
    CcConfig cc;
    std::string window = "none";
    std::int64_t window_bytes = 0;
    int ack_interval = 1;
    std::string recovery = "gbn";
    std::int64_t rto_ns = 4'000'000;
    std::int64_t nak_interval_ns = 500'000;
    std::string nic = "round_robin";
    bool ack_priority = false;
    bool round_to_ns = false;
    std::uint32_t first_psn = 0;
    std::uint32_t sport_base = 0xC000;
    std::uint32_t dport = 4791;

    void check() const;
};

struct RedEntry {
    std::int64_t rate_bps = 0;
    std::int64_t k_min_bytes = 0;
    std::int64_t k_max_bytes = 0;
    double p_max = 0;
};

struct PfcConfig {
    bool enabled = false;
    int shift = 3;
    std::int64_t reserve_bytes = 4096;
    std::int64_t resume_offset_bytes = 3072;
    std::string headroom = "safe";
    std::int64_t headroom_bytes = 0;
    std::int64_t pause_bytes = 64;
};

struct SwitchConfig {
    std::int64_t buffer_bytes = 0;
    PfcConfig pfc;
    std::vector<RedEntry> red;
    std::int64_t mark_gap_us = 0;  // see core/spacing.h; 0 = off
    std::string lb = "ecmp";
    std::int64_t flowlet_gap_ns = 50'000;
    std::int64_t load_horizon_ns = 80'000;
    std::string ecmp_hash = "seeded";
    std::string marking = "none";
    std::string marker_scope = "port";
    std::optional<TrialRules> trial;
    std::string scheduler = "round_robin";

    void check() const;
};

struct Op {
    std::string kind;
    std::int64_t bytes = 0;
    std::string algorithm = "ring";
    std::vector<std::vector<int>> rings;
    std::vector<int> dims;
    int channels = 1;
    int passes = 1;
    int chunks = 1;
    int window = 0;
    int root = 0;
    int src = 0;
    int dst = 0;
    std::vector<std::int64_t> compute_ns;
    std::vector<int> after;
    std::string name;
};

struct JobSpec {
    int job_id = 0;
    std::vector<int> hosts;
    std::vector<Op> ops;
    std::int64_t start_ns = 0;
    std::string sender = "qp_per_step";
    int pool = 4;
    int messages_per_step = 1;
    std::string port = "per_step";
    std::string dependency = "in_order";
    std::string notify = "receiver";
    std::int64_t endpoint_delay_ns = 0;
    std::vector<std::int64_t> rank_delay_ns;
    std::vector<std::int64_t> step_delay_ns;
    std::vector<double> compute_scale;
    std::optional<MarkerParams> marker;
    bool known = true;  // to the switches: its packets count as a job's
    int priority = 3;
    std::optional<CcConfig> cc;
    std::string name;
};

struct FlowSpec {
    int src = 0;
    int dst = 0;
    std::int64_t bytes = 0;
    std::int64_t start_ns = 0;
    int priority = 3;
    std::optional<CcConfig> cc;
    std::uint32_t sport = 0;
};

struct StatsConfig {
    bool flows = true;
    bool steps = true;
    std::int64_t sample_ns = 1'000'000;
    std::string links = "fabric";
    std::int64_t alpha_ns = 0;
    std::int64_t queue_bin_bytes = 10'000;
};

// Raises ConfigError "what = value: rule" unless `ok`.
template <typename T>
void require(bool ok, const std::string& what, const T& value, const std::string& rule) {
    if (ok) return;
    if constexpr (std::is_convertible_v<T, std::string>) {
        throw ConfigError(what + " = \"" + std::string(value) + "\": " + rule);
    } else {
        throw ConfigError(what + " = " + std::to_string(value) + ": " + rule);
    }
}

}  // namespace ringstep
