#include "runtime/reduce.h"

#include <cstdint>

#include "runtime/reduce_kernels.h"
#include "runtime/reduce_sets.h"

namespace ringstep {
namespace {

template <typename T>
void divide_plain(void* data, std::size_t count, int by) {
    auto* at = static_cast<T*>(data);
    for (std::size_t i = 0; i < count; i++) at[i] = T(at[i] / T(by));
}

}  // namespace

std::size_t size_of(re_type type) {
    switch (type) {
        case RE_INT8:
        case RE_UINT8:
            return 1;
        case RE_FLOAT16:
        case RE_BFLOAT16:
            return 2;
        case RE_INT32:
        case RE_UINT32:
        case RE_FLOAT32:
            return 4;
        case RE_INT64:
        case RE_UINT64:
        case RE_FLOAT64:
            return 8;
    }
    throw Error(RE_BAD_ARGUMENT, "there is no data type " + std::to_string(int(type)));
}

ReduceFn reducer_portable(re_type type, re_op op) {
    return kernel(type, op);
}

ReduceFn reducer(re_type type, re_op op) {
    ReduceFn found = nullptr;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        found = reducer_avx2(type, op);
#endif
    if (found == nullptr) found = reducer_portable(type, op);
    if (found == nullptr)
        throw Error(RE_BAD_ARGUMENT, "there is no operation " + std::to_string(int(op)) +
                                         " on data type " + std::to_string(int(type)));
    return found;
}

void divide(void* data, re_type type, std::size_t count, int by) {
    switch (type) {
        // 64 ranks at most: `by` fits in every type.
        case RE_INT8:
            return divide_plain<i8>(data, count, by);
        case RE_UINT8:
            return divide_plain<u8>(data, count, by);
        case RE_INT32:
            return divide_plain<i32>(data, count, by);
        case RE_UINT32:
            return divide_plain<u32>(data, count, by);
        case RE_INT64:
            return divide_plain<i64>(data, count, by);
        case RE_UINT64:
            return divide_plain<u64>(data, count, by);
        case RE_FLOAT32:
            return divide_plain<f32>(data, count, by);
        case RE_FLOAT64:
            return divide_plain<f64>(data, count, by);
        case RE_FLOAT16:
            for (std::size_t i = 0; i < count; i++) {
                u16& at = static_cast<u16*>(data)[i];
                at = float_to_half(half_to_float(at) / float(by));
            }
            return;
        case RE_BFLOAT16:
            for (std::size_t i = 0; i < count; i++) {
                u16& at = static_cast<u16*>(data)[i];
                at = float_to_brain(brain_to_float(at) / float(by));
            }
            return;
    }
}

}  // namespace ringstep
