#include "perf/data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace perf {
namespace {

constexpr std::size_t kPeriod = 251;  // a prime
constexpr std::size_t kRankShift = 17, kTaskShift = 31;

bool is_float(re_type type) {
    return type == RE_FLOAT16 || type == RE_FLOAT32 || type == RE_FLOAT64 || type == RE_BFLOAT16;
}

// Round to nearest, ties to even; the patterns need neither infinities nor NaN.
std::uint16_t to_half(double value) {
    if (value == 0) return 0;
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
    const std::uint16_t sign = value < 0 ? 0x8000 : 0;
    if (exponent > 16) return static_cast<std::uint16_t>(sign | 0x7C00);
    if (exponent < -13) {
        return static_cast<std::uint16_t>(
            sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(std::fabs(value), 24))));
    }
    const auto mantissa = static_cast<std::uint16_t>(std::nearbyint(std::ldexp(fraction, 11)));
    // A mantissa that rounds up to 2048 carries into the exponent by itself.
    return static_cast<std::uint16_t>(sign | (((exponent + 13) << 10) + mantissa));
}

double from_half(std::uint16_t bits) {
    const int exponent = bits >> 10 & 0x1F;
    const int mantissa = bits & 0x3FF;
    double value = std::ldexp(exponent == 0 ? mantissa : mantissa + 1024,
                              (exponent == 0 ? 1 : exponent) - 25);
    if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
    return bits & 0x8000 ? -value : value;
}

std::uint16_t to_bfloat(double value) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

double from_bfloat(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class T>
void put(char* at, T value) {
    std::memcpy(at, &value, sizeof value);
}

template <class T>
T get(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

void encode(re_type type, double value, char* at) {
    // Integers wrap around as the engine's do.
    const auto whole = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    switch (type) {
        case RE_FLOAT16: put(at, to_half(value)); break;
        case RE_BFLOAT16: put(at, to_bfloat(value)); break;
        case RE_FLOAT32: put(at, static_cast<float>(value)); break;
        case RE_FLOAT64: put(at, value); break;
        default: std::memcpy(at, &whole, size_of(type)); break;  // little-endian, as all of this
    }
}

double decode(re_type type, const char* at) {
    switch (type) {
        case RE_FLOAT16: return from_half(get<std::uint16_t>(at));
        case RE_BFLOAT16: return from_bfloat(get<std::uint16_t>(at));
        case RE_FLOAT32: return get<float>(at);
        default: return get<double>(at);
    }
}

}  // namespace

std::size_t size_of(re_type type) {
    switch (type) {
        case RE_INT8:
        case RE_UINT8: return 1;
        case RE_FLOAT16:
        case RE_BFLOAT16: return 2;
        case RE_INT32:
        case RE_UINT32:
        case RE_FLOAT32: return 4;
        default: return 8;
    }
}

Pattern::Pattern(re_coll coll, re_type type, re_op op, int n_ranks, int root)
    : coll_(coll), type_(type), op_(op), n_ranks_(n_ranks), root_(root) {
    std::vector<double> values(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) values[i] = value(i);
    period_ = encoded(values);
}

// Small enough that every partial result is exact in every type, whatever the order.
double Pattern::value(std::size_t at) const {
    const std::size_t mixed = at * at * 7 + at * 3 + at / 5;
    if (op_ == RE_PROD) {
        if (is_float(type_)) return mixed % 16 == 0 ? 2 : mixed % 16 == 3 ? 0.5 : 1;
        return static_cast<double>(mixed % 3 + 1);
    }
    if (op_ == RE_MAX || op_ == RE_MIN) {
        const bool negative = type_ != RE_UINT8 && type_ != RE_UINT32 && type_ != RE_UINT64;
        return static_cast<double>(mixed % 101) - (negative ? 50 : 0);
    }
    const int most = std::clamp(127 / n_ranks_, 1, 4);
    return static_cast<double>(mixed % (static_cast<std::size_t>(most) + 1));
}

std::vector<char> Pattern::encoded(const std::vector<double>& values) const {
    const std::size_t width = size_of(type_);
    std::vector<char> bytes(values.size() * width);
    for (std::size_t i = 0; i < values.size(); ++i) encode(type_, values[i], &bytes[i * width]);
    return bytes;
}

std::size_t Pattern::shift(int rank, int task) const {
    return (static_cast<std::size_t>(rank) * kRankShift +
            static_cast<std::size_t>(task) * kTaskShift) % kPeriod;
}

void Pattern::fill(void* buffer, std::size_t count, int rank, int task) const {
    const std::size_t width = size_of(type_);
    auto* at = static_cast<char*>(buffer);
    std::size_t first = shift(rank, task);
    while (count > 0) {
        const std::size_t part = std::min(count, kPeriod - first);
        std::memcpy(at, &period_[first * width], part * width);
        at += part * width;
        count -= part;
        first = 0;
    }
}

std::vector<char> Pattern::expected_period(int task) const {
    std::vector<double> values(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) {
        double sum = 0, most = -INFINITY, least = INFINITY, product = 1;
        for (int rank = 0; rank < n_ranks_; ++rank) {
            const double one = value((i + shift(rank, task)) % kPeriod);
            sum += one;
            product *= one;
            most = std::max(most, one);
            least = std::min(least, one);
        }
        double& result = values[i];
        switch (op_) {
            case RE_SUM: result = sum; break;
            case RE_PROD: result = is_float(type_) ? product : 0; break;
            case RE_MAX: result = most; break;
            case RE_MIN: result = least; break;
            case RE_AVG: result = is_float(type_) ? sum / n_ranks_ : std::floor(sum / n_ranks_);
        }
    }
    std::vector<char> bytes = encoded(values);
    if (op_ == RE_PROD && !is_float(type_)) {  // beyond what a double holds exactly
        const std::size_t width = size_of(type_);
        for (std::size_t i = 0; i < kPeriod; ++i) {
            std::uint64_t product = 1;
            for (int rank = 0; rank < n_ranks_; ++rank) {
                product *= static_cast<std::uint64_t>(value((i + shift(rank, task)) % kPeriod));
            }
            std::memcpy(&bytes[i * width], &product, width);
        }
    }
    return bytes;
}

// Averages may be rounded on the way: once for every rank, and once at the end.
bool Pattern::close(const char* got, const char* expected) const {
    if (std::memcmp(got, expected, size_of(type_)) == 0) return true;
    if (op_ != RE_AVG || !is_float(type_)) return false;
    const int digits = type_ == RE_BFLOAT16 ? 8 : type_ == RE_FLOAT16 ? 11
                     : type_ == RE_FLOAT32 ? 24 : 53;
    const double a = decode(type_, got), b = decode(type_, expected);
    return std::fabs(a - b) <= std::fabs(b) * std::ldexp(n_ranks_ + 1, -digits);
}

std::size_t Pattern::compare(const char* got, std::size_t count, const std::vector<char>& period,
                             std::size_t first) const {
    const std::size_t width = size_of(type_);
    std::size_t wrong_ones = 0;
    while (count > 0) {
        const std::size_t part = std::min(count, kPeriod - first);
        const char* expected = &period[first * width];
        if (std::memcmp(got, expected, part * width) != 0) {
            for (std::size_t i = 0; i < part; ++i) {
                wrong_ones += !close(got + i * width, expected + i * width);
            }
        }
        got += part * width;
        count -= part;
        first = 0;
    }
    return wrong_ones;
}

std::size_t Pattern::wrong(const void* output, std::size_t count, int rank, int task) const {
    const auto* got = static_cast<const char*>(output);
    if (coll_ == RE_BROADCAST) return compare(got, count, period_, shift(root_, task));
    if (coll_ == RE_ALL_GATHER) {
        std::size_t all = 0;
        for (int r = 0; r < n_ranks_; ++r) {
            const std::size_t before = static_cast<std::size_t>(r) * count * size_of(type_);
            all += compare(got + before, count, period_, shift(r, task));
        }
        return all;
    }
    const std::size_t first =
        coll_ == RE_REDUCE_SCATTER ? static_cast<std::size_t>(rank) * count % kPeriod : 0;
    return compare(got, count, expected_period(task), first);
}

}  // namespace perf
