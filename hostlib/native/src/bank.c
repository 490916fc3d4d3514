/* Tables of decisions: digest, copying under the sequence lock, what an entry may say. */
#include "core.h"

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash ^= word;
    hash = (hash << 29) | (hash >> 35);
    return hash * 0x9E3779B97F4A7C15ull;
}

uint64_t rs_bank_digest(const rs_bank* bank) {
    uint64_t hash = mix(0x52494E4753544550ull, bank->epoch);
    const char* bytes = (const char*)bank->entries;
    for (size_t at = 0; at < sizeof(bank->entries); at += 8) {
        uint64_t word;
        __builtin_memcpy(&word, bytes + at, 8);
        hash = mix(hash, word);
    }
    return hash == 0 ? 1 : hash; /* 0 says "none" */
}

bool rs_bank_copy(rs_bank* to, const rs_bank* from) {
    RS_STATIC_ASSERT(sizeof(rs_bank) % 8 == 0, "copied in words");
    for (int attempt = 0; attempt < 3; ++attempt) {
        const uint64_t before = rs_load_acquire(&from->version);
        if (before & 1) continue;
        const uint64_t* source = (const uint64_t*)(const void*)from;
        uint64_t* target = (uint64_t*)(void*)to;
        for (size_t i = 0; i < sizeof(rs_bank) / 8; ++i) target[i] = rs_load(&source[i]);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (rs_load(&from->version) == before) {
            to->version = before;
            return true;
        }
    }
    return false;
}

uint32_t rs_size_class(size_t n_bytes) {
    return n_bytes < 2 ? 0 : 63u - (uint32_t)__builtin_clzll((unsigned long long)n_bytes);
}

uint32_t rs_entry_problem(const rs_entry* entry, uint32_t coll) {
    if ((entry->flags & ~RS_ENTRY_VALID) != 0 || entry->reserved != 0) return 1 + RS_WHY_BAD_ENTRY;
    if (entry->algo < RS_ALGO_TREE || entry->algo > RS_ALGO_PAT) return 1 + RS_WHY_BAD_ENTRY;
    if (entry->proto < RS_PROTO_LL || entry->proto > RS_PROTO_SIMPLE) return 1 + RS_WHY_BAD_ENTRY;
    if (entry->algo == RS_ALGO_TREE && coll != RS_COLL_ALL_REDUCE) {
        return 1 + RS_WHY_NOT_FOR_COLLECTIVE;
    }
    return 0;
}
