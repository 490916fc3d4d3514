#include "enqueue/choose.h"

#include <strings.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "core.h"

namespace ringstep {
namespace {

constexpr std::array<const char*, kFunctions> kFunctionNames = {"Broadcast", "Reduce", "AllGather",
                                                                "ReduceScatter", "AllReduce"};
constexpr std::array<const char*, kAlgos> kAlgoNames = {
    "TREE", "RING", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT"};
constexpr std::array<const char*, kProtos> kProtoNames = {"LL", "LL128", "SIMPLE"};

std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> parts;
    for (;;) {
        const std::size_t end = text.find(at);
        parts.push_back(text.substr(0, end));
        if (end == std::string_view::npos) return parts;
        text.remove_prefix(end + 1);
    }
}

template <std::size_t N>
int index_of(std::string_view word, const std::array<const char*, N>& words) {
    for (std::size_t i = 0; i < N; ++i) {
        const std::string_view known = words[i];
        if (known.size() == word.size() &&
            strncasecmp(known.data(), word.data(), word.size()) == 0) {
            return static_cast<int>(i);
        }
    }
    return -1;
}

template <std::size_t N>
std::string listed(const std::array<const char*, N>& words) {
    std::string all;
    for (const char* word : words) all += (all.empty() ? "" : ", ") + std::string(word);
    return all;
}

[[noreturn]] void refuse(const char* variable, std::string_view word, const std::string& known) {
    throw Error(RE_BAD_ARGUMENT, std::string(variable) + ": unknown word \"" + std::string(word) +
                                     "\"; known are " + known);
}

// NCCL's grammar: parts separated by ';', each "[function:][^]word,word…".
template <std::size_t N>
std::array<std::uint8_t, kFunctions> read_list(const char* variable,
                                               const std::array<const char*, N>& words) {
    constexpr auto all = static_cast<std::uint8_t>((1u << N) - 1);
    std::array<std::uint8_t, kFunctions> found;
    found.fill(all);
    const char* text = std::getenv(variable);
    if (text == nullptr || *text == 0) return found;
    for (std::string_view part : split(text, ';')) {
        if (part.empty()) continue;
        int function = -1;
        if (const std::size_t colon = part.find(':'); colon != std::string_view::npos) {
            function = index_of(part.substr(0, colon), kFunctionNames);
            if (function < 0) refuse(variable, part.substr(0, colon), listed(kFunctionNames));
            part.remove_prefix(colon + 1);
        }
        const bool inverse = !part.empty() && part.front() == '^';
        if (inverse) part.remove_prefix(1);
        std::uint8_t mask = 0;
        for (const std::string_view word : split(part, ',')) {
            const int which = index_of(word, words);
            if (which < 0) refuse(variable, word, listed(words));
            mask = static_cast<std::uint8_t>(mask | 1u << which);
        }
        if (inverse) mask = static_cast<std::uint8_t>(all & ~mask);
        for (int f = 0; f < kFunctions; ++f) {
            if (function < 0 || function == f) found[static_cast<std::size_t>(f)] = mask;
        }
    }
    return found;
}

}  // namespace

Allowed read_allowed() {
    return {read_list("NCCL_ALGO", kAlgoNames), read_list("NCCL_PROTO", kProtoNames)};
}

Allowed common(const Allowed& a, const Allowed& b) {
    Allowed both = a;
    for (std::size_t f = 0; f < kFunctions; ++f) {
        both.algos[f] &= b.algos[f];
        both.protos[f] &= b.protos[f];
    }
    return both;
}

bool usable(const Allowed& allowed, re_coll coll, int algo, int proto) {
    const bool there = (algo == RE_RING || (algo == RE_TREE && coll == RE_ALL_REDUCE)) &&
                       (proto == RE_LL || proto == RE_SIMPLE);
    const auto f = static_cast<std::size_t>(coll);
    return there && (allowed.algos[f] >> algo & 1) && (allowed.protos[f] >> proto & 1);
}

std::optional<Pick> cheapest(const CostTable& table, const Allowed& allowed, re_coll coll) {
    std::optional<Pick> best;
    float least = 3600000000.0f;  // an hour, as in NCCL: also the end of infinities
    for (int a = 0; a < kAlgos; ++a) {
        for (int p = 0; p < kProtos; ++p) {
            const float cost = table.us[a][p];
            if (!(cost >= 0.0f) || !(cost < least) || !usable(allowed, coll, a, p)) continue;
            best = Pick{static_cast<re_algo>(a), static_cast<re_proto>(p)};
            least = cost;
        }
    }
    return best;
}

const char* name_of(re_coll coll) {
    return kFunctionNames[static_cast<std::size_t>(coll)];
}

const char* name_of(re_algo algo) {
    return kAlgoNames[static_cast<std::size_t>(algo)];
}

const char* name_of(re_proto proto) {
    return kProtoNames[static_cast<std::size_t>(proto)];
}

const char* name_of(re_type type) {
    switch (type) {
        case RE_INT8: return "ncclInt8";
        case RE_UINT8: return "ncclUint8";
        case RE_INT32: return "ncclInt32";
        case RE_UINT32: return "ncclUint32";
        case RE_INT64: return "ncclInt64";
        case RE_UINT64: return "ncclUint64";
        case RE_FLOAT16: return "ncclFloat16";
        case RE_FLOAT32: return "ncclFloat32";
        case RE_FLOAT64: return "ncclFloat64";
        case RE_BFLOAT16: return "ncclBfloat16";
    }
    return "unknown";
}

}  // namespace ringstep
