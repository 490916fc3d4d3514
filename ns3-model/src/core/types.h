// Units and small types that every part of the core shares.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace ringstep {

using TimePs = std::int64_t;  // picoseconds of simulated time
inline constexpr TimePs kNever = std::numeric_limits<TimePs>::max();
inline constexpr std::int64_t kPsPerNs = 1000;
inline constexpr std::int64_t kPsPerUs = 1000 * kPsPerNs;
inline constexpr std::uint32_t kNone = 0xFFFFFFFFU;
inline constexpr int kClasses = 8;       // queues per port; class 0 is control
inline constexpr int kLaggardClass = 1;  // strict before the other data classes
inline constexpr int kMaxHops = 8;       // links of a path that a packet carries along
inline constexpr std::uint32_t kPsnMask = 0xFFFFFF;

// Nanoseconds for people and tables; kNever stays what it is.
inline std::int64_t to_ns(TimePs t) {
    return t == kNever ? kNever : t / kPsPerNs;
}

// A value that a user gave and that cannot be; becomes ValueError in Python.
struct ConfigError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

}  // namespace ringstep
