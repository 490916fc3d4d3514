// What may be chosen (NCCL_ALGO, NCCL_PROTO) and NCCL's classic choice among costs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ringstep_engine.h"

namespace ringstep {

inline constexpr int kAlgos = 7;  // NCCL's numbers; the engine has Tree and Ring
inline constexpr int kProtos = 3;
inline constexpr int kFunctions = 5;
inline constexpr float kIgnore = -1.0f;

// Microseconds, or kIgnore; one block of floats as NCCL hands it to a tuner.
struct CostTable {
    float us[kAlgos][kProtos];
};

// Bit sets per function of what the user left: NCCL's numbers of algorithms and protocols.
struct Allowed {
    std::array<std::uint8_t, kFunctions> algos;
    std::array<std::uint8_t, kFunctions> protos;
};

// Reads NCCL_ALGO and NCCL_PROTO ("ring", "^tree", "ring;allreduce:tree,ring").
// Throws Error(RE_BAD_ARGUMENT) for words that NCCL does not know.
Allowed read_allowed();
// What all ranks allow.
Allowed common(const Allowed& a, const Allowed& b);
// Whether the engine has it and the user allows it.
bool usable(const Allowed& allowed, re_coll coll, int algo, int proto);

struct Pick {
    re_algo algo;
    re_proto proto;
};

// The least cost, algorithms first, the first of equals; nothing where none is left. What a plugin
// wrote for an algorithm that the engine has not is passed over.
std::optional<Pick> cheapest(const CostTable& table, const Allowed& allowed, re_coll coll);

const char* name_of(re_coll coll);   // "AllReduce"
const char* name_of(re_algo algo);   // "RING"
const char* name_of(re_proto proto); // "SIMPLE"
const char* name_of(re_type type);   // "ncclFloat32"

}  // namespace ringstep
