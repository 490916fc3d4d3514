#include "perf/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace perf {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 40;
constexpr int kMostRanks = 64;

template <class T>
struct Word {
    std::string_view name;
    T value;
};

constexpr std::array<Word<re_coll>, 4> kColls = {{{"all_reduce", RE_ALL_REDUCE},
                                                  {"all_gather", RE_ALL_GATHER},
                                                  {"reduce_scatter", RE_REDUCE_SCATTER},
                                                  {"broadcast", RE_BROADCAST}}};
// nccl-tests' names first, which are printed; then the full ones.
constexpr std::array<Word<re_type>, 14> kTypes = {
    {{"int8", RE_INT8}, {"uint8", RE_UINT8}, {"int32", RE_INT32}, {"uint32", RE_UINT32},
     {"int64", RE_INT64}, {"uint64", RE_UINT64}, {"half", RE_FLOAT16}, {"float", RE_FLOAT32},
     {"double", RE_FLOAT64}, {"bfloat16", RE_BFLOAT16}, {"float16", RE_FLOAT16},
     {"float32", RE_FLOAT32}, {"float64", RE_FLOAT64}, {"fp16", RE_FLOAT16}}};
constexpr std::size_t kPrintedTypes = 10;
constexpr std::array<Word<re_op>, 5> kOps = {
    {{"sum", RE_SUM}, {"prod", RE_PROD}, {"max", RE_MAX}, {"min", RE_MIN}, {"avg", RE_AVG}}};

constexpr const char* kHelp =
    R"(usage: ringstep-perf COLLECTIVE [options]

Runs and times collectives of the CPU engine; prints what nccl-tests prints, and what ran.
COLLECTIVE: all_reduce, all_gather, reduce_scatter, broadcast

  -N, --local-ranks N     fork N ranks on this machine (default 2)
  --rank R --ranks N --root HOST:PORT
                          this process is one rank; rank 0 listens there. Without these,
                          RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun), or
                          OMPI_COMM_WORLD_RANK/SIZE or PMI_RANK/SIZE with --root, say so
  --bind ADDR             own address that the others connect to
  -b, --minbytes SIZE     smallest size (default 8); SIZE takes K, M, G
  -e, --maxbytes SIZE     largest size (default 64M)
  -f, --stepfactor F      each size is F times the last (default 2)
  -i, --stepbytes SIZE    or: each size is SIZE more than the last
  --sizes A,B,C           or: these sizes
  -t, --datatype TYPE     int8 uint8 int32 uint32 int64 uint64 half float double bfloat16, or all
                          (default float)
  -o, --op OP             sum prod max min avg, or all (default sum)
  -r, --root-rank R       root of a broadcast (default 0)
  -n, --iters N           timed runs per size (default 20)
  -w, --warmup N          runs before (default 5)
  -c, --check 0|1         compare with what the result has to be (default 1)
  --comms K               run on K communicators at once, in one group
  --group TASKS           run TASKS of the size in one group; times are the group's
  --fence EVERY           a fence of the agreement every EVERY runs
  --algo ring|tree        as NCCL_ALGO
  --proto ll|simple       as NCCL_PROTO
  --channels C            exactly C channels unless the tuner plugin says fewer
  --bridge PATH           over the software RNIC whose socket is PATH
  --timeout SECONDS       give up after so long without progress (default 300)
  --duration SECONDS      go on with every size for so long
  --per-iteration         median, 99th percentile and every time (in --json)
  --json                  one JSON object in place of the table
  -h, --help              this

Plugins are loaded as NCCL loads them: NCCL_TUNER_PLUGIN, NCCL_PROFILER_PLUGIN.
Exit status: 0; 1 a wrong result or a failure; 2 wrong options; 130 interrupted.

example: ringstep-perf all_reduce -N 4 -b 1K -e 16M -f 4
)";

[[noreturn]] void refuse(std::string_view option, std::string_view value, std::string_view right) {
    throw UsageError(std::string(option) + " " + std::string(value) + ": " + std::string(right));
}

template <class T, std::size_t N>
std::string listed(const std::array<Word<T>, N>& words, std::size_t first = N) {
    std::string all;
    for (std::size_t i = 0; i < std::min(N, first); ++i) {
        all += (i == 0 ? "" : ", ") + std::string(words[i].name);
    }
    return all;
}

template <class T, std::size_t N>
std::vector<T> words_of(std::string_view option, std::string_view value,
                        const std::array<Word<T>, N>& words, std::size_t different) {
    std::vector<T> found;
    for (std::size_t i = 0; i < N; ++i) {
        const bool all = value == "all" && i < different;
        if (all || words[i].name == value) found.push_back(words[i].value);
    }
    if (found.empty()) refuse(option, value, listed(words, different) + ", or all");
    return found;
}

long whole(std::string_view option, std::string_view value, long least, long most) {
    long number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < least ||
        number > most) {
        refuse(option, value,
               "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return number;
}

double seconds(std::string_view option, const std::string& value) {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != 0 || !std::isfinite(number) || number <= 0) {
        refuse(option, value, "seconds above zero");
    }
    return number;
}

std::size_t size_in_bytes(std::string_view option, std::string_view value) {
    constexpr std::string_view kRight = "a size such as 8, 64K, 16M or 1G, at most 1024G";
    std::size_t number = 0;
    const char* last = value.data() + value.size();
    const auto [end, error] = std::from_chars(value.data(), last, number);
    if (error != std::errc()) refuse(option, value, kRight);
    std::size_t unit = 1;
    if (end != last) {
        const std::size_t at = std::string_view("KMG").find(static_cast<char>(*end & ~0x20));
        if (at == std::string_view::npos || end + 1 != last) refuse(option, value, kRight);
        unit <<= 10 * (at + 1);
    }
    if (number > kMostBytes / unit) refuse(option, value, kRight);
    return number * unit;
}

// Sizes as given, before they are a list.
struct Range {
    std::size_t least = 8;
    std::size_t most = std::size_t{64} << 20;
    double factor = 2;
    std::size_t step = 0;
    std::vector<std::size_t> list;

    std::vector<std::size_t> sizes() const {
        if (!list.empty()) return list;
        if (least > most) {
            throw UsageError("-b is above -e: -b " + std::to_string(least) + ", -e " +
                             std::to_string(most));
        }
        std::vector<std::size_t> all;
        for (std::size_t size = least; size <= most;) {
            all.push_back(size);
            if (all.size() > 100000) throw UsageError("more than 100000 sizes: take a larger step");
            // Beyond kMostBytes it need not be exact, and a size_t could not hold it.
            const auto next = static_cast<std::size_t>(
                std::min(static_cast<double>(size) * factor, 2.0 * kMostBytes));
            size = step != 0 ? size + step : std::max(next, size + 1);
        }
        return all;
    }
};

const char* environment(std::initializer_list<const char*> names) {
    for (const char* name : names) {
        const char* value = std::getenv(name);
        if (value != nullptr && *value != 0) return value;
    }
    return nullptr;
}

void set_variable(const char* name, std::string_view value) {
    setenv(name, std::string(value).c_str(), 1);
}

class Parser {
  public:
    Parser(int argc, char** argv) : arguments_(argv + 1, argv + argc) {}

    std::optional<Options> parse();

  private:
    std::string value_of(const std::string& option);
    void take(const std::string& option);
    void find_ranks();
    void check() const;

    std::vector<std::string> arguments_;
    std::size_t next_ = 0;
    std::optional<std::string> attached_;  // of --option=value
    Options options_;
    Range range_;
    bool has_rank_ = false, has_ranks_ = false, has_root_ = false;
};

std::string Parser::value_of(const std::string& option) {
    if (attached_) {
        std::string value = *attached_;
        attached_.reset();
        return value;
    }
    if (next_ >= arguments_.size()) throw UsageError(option + ": a value has to follow");
    return arguments_[next_++];
}

void Parser::take(const std::string& option) {
    const auto is = [&](std::string_view a, std::string_view b = {}) {
        return option == a || (!b.empty() && option == b);
    };
    const auto number = [&](long least, long most) {
        return static_cast<int>(whole(option, value_of(option), least, most));
    };
    if (is("-N", "--local-ranks")) {
        options_.local_ranks = number(1, kMostRanks);
    } else if (is("--rank")) {
        options_.rank = number(0, kMostRanks - 1);
        has_rank_ = true;
    } else if (is("--ranks")) {
        options_.n_ranks = number(1, kMostRanks);
        has_ranks_ = true;
    } else if (is("--root")) {
        options_.root_address = value_of(option);
        has_root_ = true;
    } else if (is("--bind")) {
        options_.bind = value_of(option);
    } else if (is("-b", "--minbytes")) {
        range_.least = size_in_bytes(option, value_of(option));
    } else if (is("-e", "--maxbytes")) {
        range_.most = size_in_bytes(option, value_of(option));
    } else if (is("-i", "--stepbytes")) {
        range_.step = size_in_bytes(option, value_of(option));
        if (range_.step == 0) refuse(option, "0", "at least 1");
    } else if (is("-f", "--stepfactor")) {
        const std::string value = value_of(option);
        char* end = nullptr;
        range_.factor = std::strtod(value.c_str(), &end);
        if (*end != 0 || !(range_.factor > 1)) refuse(option, value, "a factor above 1");
    } else if (is("--sizes")) {
        std::string rest = value_of(option);
        for (std::size_t at = 0; at != std::string::npos;) {
            const std::size_t end = rest.find(',', at);
            range_.list.push_back(size_in_bytes(option, rest.substr(at, end - at)));
            at = end == std::string::npos ? end : end + 1;
        }
    } else if (is("-t", "--datatype")) {
        options_.types = words_of(option, value_of(option), kTypes, kPrintedTypes);
    } else if (is("-o", "--op")) {
        options_.ops = words_of(option, value_of(option), kOps, kOps.size());
    } else if (is("-r", "--root-rank")) {
        options_.root = number(0, kMostRanks - 1);
    } else if (is("-n", "--iters")) {
        options_.iterations = number(1, 1000000);
    } else if (is("-w", "--warmup")) {
        options_.warmup = number(0, 1000000);
    } else if (is("-c", "--check")) {
        options_.check = number(0, 1) != 0;
    } else if (is("--comms")) {
        options_.comms = number(1, 64);
    } else if (is("--group")) {
        options_.group = number(1, 4096);
    } else if (is("--fence")) {
        options_.fence_every = number(1, 1000000);
    } else if (is("--channels")) {
        options_.channels = number(1, 8);
    } else if (is("--algo")) {
        const std::string value = value_of(option);
        if (value != "ring" && value != "tree") refuse(option, value, "ring or tree");
        set_variable("NCCL_ALGO", value);
    } else if (is("--proto")) {
        const std::string value = value_of(option);
        if (value != "ll" && value != "simple") refuse(option, value, "ll or simple");
        set_variable("NCCL_PROTO", value);
    } else if (is("--bridge")) {
        options_.bridge = value_of(option);
    } else if (is("--timeout")) {
        options_.timeout_s = seconds(option, value_of(option));
    } else if (is("--duration")) {
        options_.duration_s = seconds(option, value_of(option));
    } else if (is("--per-iteration")) {
        options_.per_iteration = true;
    } else if (is("--json")) {
        options_.json = true;
    } else {
        throw UsageError(option + ": no such option; see --help");
    }
    if (attached_) throw UsageError(option + " takes no value");
}

// One rank by options, or as a launcher says, or all of them forked here.
void Parser::find_ranks() {
    if (options_.local_ranks != 0) {
        if (has_rank_ || has_ranks_ || has_root_) {
            throw UsageError("-N forks all ranks: leave out --rank, --ranks and --root");
        }
        options_.n_ranks = options_.local_ranks;
        return;
    }
    const char* rank = environment({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
    const char* ranks = environment({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
    if (!has_rank_ && !has_ranks_ && !has_root_ && (rank == nullptr || ranks == nullptr)) {
        options_.local_ranks = options_.n_ranks = 2;
        return;
    }
    if (!has_rank_ && rank != nullptr) {
        options_.rank = static_cast<int>(whole("RANK", rank, 0, kMostRanks - 1));
        has_rank_ = true;
    }
    if (!has_ranks_ && ranks != nullptr) {
        options_.n_ranks = static_cast<int>(whole("WORLD_SIZE", ranks, 1, kMostRanks));
        has_ranks_ = true;
    }
    if (!has_root_) {
        const char* host = environment({"MASTER_ADDR"});
        const char* port = environment({"MASTER_PORT"});
        if (host != nullptr && port != nullptr) {
            // The launcher's own store listens on MASTER_PORT.
            const long own = whole("MASTER_PORT", port, 1, 65534) + 1;
            options_.root_address = std::string(host) + ":" + std::to_string(own);
            has_root_ = true;
        }
    }
    if (!has_rank_ || !has_ranks_ || !has_root_) {
        throw UsageError("one rank needs --rank, --ranks and --root HOST:PORT; -N forks all ranks");
    }
}

void Parser::check() const {
    if (options_.rank >= options_.n_ranks) {
        throw UsageError("--rank " + std::to_string(options_.rank) + ": 0 to " +
                         std::to_string(options_.n_ranks - 1));
    }
    if (options_.root >= options_.n_ranks) {
        throw UsageError("--root-rank " + std::to_string(options_.root) + ": 0 to " +
                         std::to_string(options_.n_ranks - 1));
    }
    if (options_.local_ranks != 0) return;
    const std::size_t colon = options_.root_address.rfind(':');
    const std::string port =
        colon == std::string::npos ? "" : options_.root_address.substr(colon + 1);
    if (colon == 0 || port.empty()) {
        throw UsageError("--root " + options_.root_address + ": HOST:PORT, such as 10.0.0.1:29500");
    }
    // Each communicator has a port of its own, and so have the tool's own messages.
    whole("--root's port", port, 1, 65535 - options_.comms);
}

std::optional<Options> Parser::parse() {
    for (const std::string& one : arguments_) {
        if (one != "-h" && one != "--help") continue;
        std::fputs(kHelp, stdout);
        return std::nullopt;
    }
    if (arguments_.empty()) throw UsageError("which collective? " + listed(kColls));
    const std::string& named = arguments_[next_++];
    const auto* found = std::find_if(kColls.begin(), kColls.end(),
                                     [&](const auto& one) { return one.name == named; });
    if (found == kColls.end()) refuse("collective", named, listed(kColls));
    options_.coll = found->value;
    while (next_ < arguments_.size()) {
        std::string option = arguments_[next_++];
        if (const std::size_t at = option.find('=');
            option.starts_with("--") && at != std::string::npos) {
            attached_ = option.substr(at + 1);
            option.resize(at);
        }
        take(option);
    }
    find_ranks();
    check();
    options_.sizes = range_.sizes();
    if (!has_op(options_.coll)) options_.ops = {RE_SUM};
    if (options_.channels != 0) {
        set_variable("NCCL_MIN_NCHANNELS", std::to_string(options_.channels));
    }
    return options_;
}

}  // namespace

std::optional<Options> parse(int argc, char** argv) {
    return Parser(argc, argv).parse();
}

bool has_op(re_coll coll) {
    return coll == RE_ALL_REDUCE || coll == RE_REDUCE_SCATTER;
}

const char* name_of(re_coll coll) {
    for (const auto& one : kColls) {
        if (one.value == coll) return one.name.data();
    }
    return "?";
}

const char* name_of(re_type type) {
    for (const auto& one : kTypes) {
        if (one.value == type) return one.name.data();
    }
    return "?";
}

const char* name_of(re_op op) {
    for (const auto& one : kOps) {
        if (one.value == op) return one.name.data();
    }
    return "?";
}

}  // namespace perf
