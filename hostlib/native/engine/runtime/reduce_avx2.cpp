#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>

#include "runtime/reduce_sets.h"

#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#include "runtime/reduce_kernels.h"

// 16-bit floats by hand: compilers do not find these conversions in the loops that all hosts have.
namespace {

struct WideHalf {
    static __m256 load(const u16* from) {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from)));
    }
    static void store(u16* to, __m256 values) {
        _mm_storeu_si128(reinterpret_cast<__m128i_u*>(to),
                         _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    }
};

struct WideBrain {
    static __m256 load(const u16* from) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(from));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
    static void store(u16* to, __m256 values) {
        const __m256i bits = _mm256_castps_si256(values);
        const __m256i high = _mm256_srli_epi32(bits, 16);
        const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
        const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
        const __m256i words = _mm256_blendv_epi8(rounded, quiet, nan);
        _mm_storeu_si128(
            reinterpret_cast<__m128i_u*>(to),
            _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
};

template <typename Wide, typename Op, ReduceFn rest>
void wide(void* to, const void* own, const void* got, std::size_t count) {
    auto* out = static_cast<u16*>(to);
    const auto* a = static_cast<const u16*>(own);
    const auto* b = static_cast<const u16*>(got);
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8)
        Wide::store(out + i, Op::apply(Wide::load(a + i), Wide::load(b + i)));
    rest(out + i, a + i, b + i, count - i);
}

template <typename Op>
ReduceFn of_sixteen_bits(re_type type) {
    return type == RE_FLOAT16 ? wide<WideHalf, Op, half<Op>> : wide<WideBrain, Op, brain<Op>>;
}

ReduceFn wide_kernel(re_type type, re_op op) {
    switch (op) {
        case RE_SUM:
        case RE_AVG:
            return of_sixteen_bits<Sum>(type);
        case RE_PROD:
            return of_sixteen_bits<Prod>(type);
        case RE_MAX:
            return of_sixteen_bits<Max>(type);
        case RE_MIN:
            return of_sixteen_bits<Min>(type);
    }
    return nullptr;
}

}  // namespace
#pragma GCC pop_options

namespace ringstep {

ReduceFn reducer_avx2(re_type type, re_op op) {
    return type == RE_FLOAT16 || type == RE_BFLOAT16 ? wide_kernel(type, op) : kernel(type, op);
}

}  // namespace ringstep

#endif
