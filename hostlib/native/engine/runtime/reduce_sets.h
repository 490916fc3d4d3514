// Reductions compiled for instruction sets that not every host has.
#pragma once

#include "runtime/reduce.h"

namespace ringstep {

ReduceFn reducer_portable(re_type type, re_op op);
#if defined(__x86_64__)
ReduceFn reducer_avx2(re_type type, re_op op);  // and F16C
#endif

}  // namespace ringstep
