#include "enqueue/cost.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core.h"

namespace ringstep {
namespace {

// Measured with ringstep-perf on two cores, over loopback and over veth between namespaces, which
// hardly differ: an all-reduce of 64 bytes takes two ranks 16 us by LL and 19 us by Simple, and
// Simple is ahead from some 10 KiB on. More connections on one core only cost messages.
constexpr double kAlphaUs = 10.0;
constexpr double kBetaGbps = 2.0;
constexpr double kLlAlpha = 0.75;   // of alpha: no credit to wait for
constexpr double kLlBeta = 0.5;     // of beta: a flag beside every word
constexpr double kTreeBeta = 0.95;  // of beta: three connections where a ring has two
constexpr std::size_t kBytesPerChannel = 4 << 20;

double number_setting(const char* name, double standard) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == 0) return standard;
    double value = 0;  // strtod would read a decimal comma where the application's locale has one
    const char* last = text + std::strlen(text);
    const auto [end, error] = std::from_chars(text, last, value);
    if (error != std::errc() || end != last || !std::isfinite(value) || value <= 0) {
        throw Error(RE_BAD_ARGUMENT,
                    std::string(name) + "=" + text + ": a number above zero, such as 20");
    }
    return value;
}

}  // namespace

CostModel CostModel::from_environment() {
    CostModel model;
    model.alpha_us = number_setting("RINGSTEP_ENGINE_ALPHA_US", kAlphaUs);
    model.beta_gbps = number_setting("RINGSTEP_ENGINE_BETA_GBPS", kBetaGbps);
    const double least = number_setting("NCCL_MIN_NCHANNELS", 1);
    model.min_channels = static_cast<int>(std::clamp(least, 1.0, 64.0));
    return model;
}

CostTable costs_of(const CostModel& model, const Allowed& allowed, re_coll coll, std::size_t bytes,
                   int pipe_ops) {
    CostTable table;
    const double n = model.n_ranks;
    for (int a = 0; a < kAlgos; ++a) {
        for (int p = 0; p < kProtos; ++p) {
            table.us[a][p] = kIgnore;
            if (!usable(allowed, coll, a, p)) continue;
            // Messages one after another, and bytes that every rank sends, in parts of `bytes`.
            double messages = n - 1, share = (n - 1) / n;
            if (coll == RE_BROADCAST) share = 1;
            if (coll == RE_ALL_REDUCE) {
                messages *= 2;
                share *= 2;
            }
            double beta = model.beta_gbps * (p == RE_LL ? kLlBeta : 1);
            if (a == RE_TREE) {
                messages = 2 * std::bit_width(static_cast<unsigned>(model.n_ranks - 1));
                beta *= kTreeBeta;
            }
            const double latency = messages * model.alpha_us * (p == RE_LL ? kLlAlpha : 1);
            table.us[a][p] = static_cast<float>(latency * pipe_ops + static_cast<double>(bytes) *
                                                                         share / (1e3 * beta));
        }
    }
    return table;
}

int default_channels(const CostModel& model, std::size_t bytes) {
    const auto wanted = static_cast<int>(
        std::min<std::size_t>(bytes / kBytesPerChannel, static_cast<std::size_t>(64)));
    const int least = std::min(model.min_channels, model.max_channels);
    return std::clamp(wanted, std::max(least, 1), model.max_channels);
}

std::size_t clamp_chunk(re_proto proto, std::size_t chunk) {
    const std::size_t most = proto == RE_LL ? std::size_t{256} << 10 : std::size_t{8} << 20;
    return std::clamp(chunk, std::size_t{4} << 10, most) & ~std::size_t{63};
}

}  // namespace ringstep
