// Random numbers: numbered streams seeded from ns-3's generator, drawn with xoshiro128++.
//
// A stream belongs to one purpose and one node or link, so the numbers that a decision sees do not
// depend on the order in which other parts of the model ran.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace ringstep {

inline std::uint64_t mix64(std::uint64_t x) {  // finaliser of SplitMix64
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

class Rng {
  public:
    Rng() : Rng(0) {}
    explicit Rng(std::uint64_t seed) {
        const std::uint64_t a = mix64(seed);
        const std::uint64_t b = mix64(a);
        s_[0] = static_cast<std::uint32_t>(a);
        s_[1] = static_cast<std::uint32_t>(a >> 32);
        s_[2] = static_cast<std::uint32_t>(b);
        s_[3] = static_cast<std::uint32_t>(b >> 32) | 1U;
    }

    std::uint32_t next() {
        const std::uint32_t result = rotl(s_[0] + s_[3], 7) + s_[0];
        const std::uint32_t t = s_[1] << 9;
        s_[2] ^= s_[0];
        s_[3] ^= s_[1];
        s_[1] ^= s_[2];
        s_[0] ^= s_[3];
        s_[2] ^= t;
        s_[3] = rotl(s_[3], 11);
        return result;
    }
    double uniform() { return next() * 0x1p-32; }  // [0, 1)

  private:
    static std::uint32_t rotl(std::uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }
    std::uint32_t s_[4];
};

// Purposes of streams; the number of a stream is purpose * 2^32 + index.
enum class Stream : std::uint64_t {
    kEcmp = 1,    // index: node
    kRed = 2,     // index: directed link
    kMarker = 3,  // index: directed link
    kLoss = 4,    // index: directed link
    kSpray = 5,   // index: node
    kPort = 6,    // source ports of sticky connections
    kTrial = 7,   // index: node
};

// MurmurHash3 (public domain), 32 bits, over three words.
inline std::uint32_t murmur3(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2,
                             std::uint32_t seed) {
    std::uint32_t h = seed;
    for (std::uint32_t k : {w0, w1, w2}) {
        k *= 0xCC9E2D51U;
        k = (k << 15) | (k >> 17);
        k *= 0x1B873593U;
        h ^= k;
        h = (h << 13) | (h >> 19);
        h = h * 5 + 0xE6546B64U;
    }
    h ^= 12;
    h ^= h >> 16;
    h *= 0x85EBCA6BU;
    h ^= h >> 13;
    h *= 0xC2B2AE35U;
    h ^= h >> 16;
    return h;
}

}  // namespace ringstep
