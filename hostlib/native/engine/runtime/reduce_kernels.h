// The loops behind reduce.h. Included by one source per instruction set, after its
// `#pragma GCC target`; everything is in an unnamed namespace, so that no two sets are mixed up.
// No fused multiply-add: all hosts of a job have to round alike.

namespace {

using ringstep::ReduceFn;

// Element types that may lie anywhere.
typedef std::int8_t i8 __attribute__((may_alias));
typedef std::uint8_t u8 __attribute__((may_alias));
typedef std::uint32_t u32 __attribute__((aligned(1), may_alias));
typedef std::int32_t i32 __attribute__((aligned(1), may_alias));
typedef std::uint64_t u64 __attribute__((aligned(1), may_alias));
typedef std::int64_t i64 __attribute__((aligned(1), may_alias));
typedef float f32 __attribute__((aligned(1), may_alias));
typedef double f64 __attribute__((aligned(1), may_alias));
typedef std::uint16_t u16 __attribute__((aligned(1), may_alias));

inline float from_bits(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}
inline std::uint32_t to_bits(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}

inline float brain_to_float(std::uint16_t bits) {
    return from_bits(std::uint32_t(bits) << 16);
}

inline std::uint16_t float_to_brain(float value) {
    const std::uint32_t bits = to_bits(value);
    const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const std::uint32_t quiet = (bits >> 16) | 0x40;
    return std::uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

// Branch-free, so that it vectorises without conversion instructions.
inline float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t(half & 0x8000) << 16;
    const std::uint32_t shifted = std::uint32_t(half & 0x7fff) << 13;
    const std::uint32_t normal = shifted + (112u << 23);
    const std::uint32_t special = shifted + (224u << 23);
    const float small = from_bits(shifted + (113u << 23)) - from_bits(113u << 23);
    const std::uint32_t magnitude = (half & 0x7c00) == 0x7c00 ? special
                                    : (half & 0x7c00) == 0    ? to_bits(small)
                                                              : normal;
    return from_bits(magnitude | sign);
}

inline std::uint16_t float_to_half(float value) {
    const std::uint32_t bits = to_bits(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000;
    const std::uint32_t magnitude = bits & 0x7fffffff;
    const std::uint32_t special =
        magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : 0x7c00;
    // Adding 0.5 lines the mantissa up with the bits of a subnormal half; the addition rounds.
    const std::uint32_t small = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const std::uint32_t found = magnitude >= 0x47800000  ? special
                                : magnitude < 0x38800000 ? small
                                                         : normal;
    return std::uint16_t(found | sign);
}

struct Sum {
    template <typename T>
    static T apply(T a, T b) {
        return T(a + b);
    }
};
struct Prod {
    template <typename T>
    static T apply(T a, T b) {
        return T(a * b);
    }
};
struct Max {
    template <typename T>
    static T apply(T a, T b) {
        return (a > b || a != a) ? a : b;
    }
};
struct Min {
    template <typename T>
    static T apply(T a, T b) {
        return (a < b || a != a) ? a : b;
    }
};

template <typename T, typename Op>
void plain(void* to, const void* own, const void* got, std::size_t count) {
    auto* out = static_cast<T*>(to);
    const auto* a = static_cast<const T*>(own);
    const auto* b = static_cast<const T*>(got);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; i++) out[i] = Op::apply(a[i], b[i]);
}

template <typename Op>
void brain(void* to, const void* own, const void* got, std::size_t count) {
    auto* out = static_cast<u16*>(to);
    const auto* a = static_cast<const u16*>(own);
    const auto* b = static_cast<const u16*>(got);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; i++)
        out[i] = float_to_brain(Op::apply(brain_to_float(a[i]), brain_to_float(b[i])));
}

template <typename Op>
void half(void* to, const void* own, const void* got, std::size_t count) {
    auto* out = static_cast<u16*>(to);
    const auto* a = static_cast<const u16*>(own);
    const auto* b = static_cast<const u16*>(got);
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; i++)
        out[i] = float_to_half(Op::apply(half_to_float(a[i]), half_to_float(b[i])));
}

template <typename Op, bool wraps>
ReduceFn of_type(re_type type) {
    // Signed sums and products as unsigned: they wrap, and that is defined.
    switch (type) {
        case RE_INT8:
            return wraps ? plain<u8, Op> : plain<i8, Op>;
        case RE_UINT8:
            return plain<u8, Op>;
        case RE_INT32:
            return wraps ? plain<u32, Op> : plain<i32, Op>;
        case RE_UINT32:
            return plain<u32, Op>;
        case RE_INT64:
            return wraps ? plain<u64, Op> : plain<i64, Op>;
        case RE_UINT64:
            return plain<u64, Op>;
        case RE_FLOAT16:
            return half<Op>;
        case RE_FLOAT32:
            return plain<f32, Op>;
        case RE_FLOAT64:
            return plain<f64, Op>;
        case RE_BFLOAT16:
            return brain<Op>;
    }
    return nullptr;
}

ReduceFn kernel(re_type type, re_op op) {
    switch (op) {
        case RE_SUM:
        case RE_AVG:
            return of_type<Sum, true>(type);
        case RE_PROD:
            return of_type<Prod, true>(type);
        case RE_MAX:
            return of_type<Max, false>(type);
        case RE_MIN:
            return of_type<Min, false>(type);
    }
    return nullptr;
}

}  // namespace
