// NCCL's log as plugins see it, on standard error: NCCL_DEBUG and NCCL_DEBUG_SUBSYS choose.
#pragma once

namespace ringstep {

inline constexpr unsigned long kInit = 0x1, kTuning = 0x40, kProfile = 0x4000;

// An rs_nccl_log: what plugins are given.
void nccl_log(int level, unsigned long subsystems, const char* file, int line, const char* format,
              ...) __attribute__((format(printf, 5, 6)));

}  // namespace ringstep
