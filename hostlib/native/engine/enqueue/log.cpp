#include "enqueue/log.h"

#include <strings.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "nccl_abi.h"

namespace ringstep {
namespace {

struct Word {
    const char* name;
    unsigned long value;
};

constexpr Word kLevels[] = {{"VERSION", RS_LOG_VERSION},
                            {"WARN", RS_LOG_WARN},
                            {"INFO", RS_LOG_INFO},
                            {"ABORT", RS_LOG_ABORT},
                            {"TRACE", RS_LOG_TRACE}};
constexpr Word kSubsystems[] = {{"INIT", kInit},       {"COLL", 0x2},      {"P2P", 0x4},
                                {"SHM", 0x8},          {"NET", 0x10},      {"GRAPH", 0x20},
                                {"TUNING", kTuning},   {"ENV", 0x80},      {"ALLOC", 0x100},
                                {"CALL", 0x200},       {"PROXY", 0x400},   {"NVLS", 0x800},
                                {"BOOTSTRAP", 0x1000}, {"REG", 0x2000},    {"PROFILE", kProfile},
                                {"RAS", 0x8000},       {"ALL", ~0ul}};

template <std::size_t N>
unsigned long value_of(std::string_view word, const Word (&words)[N]) {
    for (const Word& one : words) {
        if (word.size() == std::string_view(one.name).size() &&
            strncasecmp(word.data(), one.name, word.size()) == 0) {
            return one.value;
        }
    }
    return 0;
}

struct Filter {
    unsigned long level = RS_LOG_NONE;
    unsigned long subsystems = kInit | 0x80 | 0x1000;

    Filter() {
        const char* wanted = std::getenv("NCCL_DEBUG");
        if (wanted == nullptr) return;
        level = value_of(wanted, kLevels);
        const char* parts = std::getenv("NCCL_DEBUG_SUBSYS");
        if (parts == nullptr || *parts == 0) return;
        std::string_view rest = parts;
        const bool inverse = rest.front() == '^';
        if (inverse) rest.remove_prefix(1);
        unsigned long mask = 0;
        while (!rest.empty()) {
            const std::size_t end = rest.find(',');
            mask |= value_of(rest.substr(0, end), kSubsystems);
            rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
        }
        subsystems = inverse ? ~mask : mask;
    }
};

}  // namespace

void nccl_log(int level, unsigned long subsystems, const char*, int, const char* format, ...) {
    static const Filter filter;
    if (level < RS_LOG_VERSION || static_cast<unsigned long>(level) > filter.level) return;
    // Warnings are shown whatever they are about.
    if (level > RS_LOG_WARN && (subsystems & filter.subsystems) == 0) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char* word = level == RS_LOG_WARN ? "WARN" : level == RS_LOG_TRACE ? "TRACE" : "INFO";
    std::fprintf(stderr, "ringstep-engine[%d] %s %s\n", static_cast<int>(getpid()), word, text);
}

}  // namespace ringstep
