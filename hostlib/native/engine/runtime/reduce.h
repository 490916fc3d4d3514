// Element-wise reductions of all types and operations.
#pragma once

#include <cstddef>

#include "core.h"

namespace ringstep {

// to[i] = own[i] op got[i]; to may be own or got. No alignment is asked for. Sums and products of
// integers wrap; 16-bit floats are computed in 32 bits and rounded to nearest even; a NaN in
// either operand makes maximum and minimum NaN (as numpy's). RE_AVG adds: see divide().
using ReduceFn = void (*)(void* to, const void* own, const void* got, std::size_t count);
ReduceFn reducer(re_type type, re_op op);

// data[i] /= by, towards zero for integers: what ends RE_AVG.
void divide(void* data, re_type type, std::size_t count, int by);

}  // namespace ringstep
