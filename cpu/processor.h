// Which instruction sets this machine can run, so which targets: for target.cc, and for processor_targets.cc, which cmake runs.
#pragma once

#if defined(__x86_64__)

#if defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aspen::cpu {

inline bool has_avx2() {
  // __builtin_cpu_supports also asks the operating system whether it saves the wider registers.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// Whether there are matrix units for bfloat16, and this process may use them: Linux gives their registers, 8 KiB a thread, to
// those processes alone that ask for them.
inline bool may_use_amx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & (kAmxBf16 | kAmxTile)) != (kAmxBf16 | kAmxTile)) return false;
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & kAvx512Bf16) == 0) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl(2)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace aspen::cpu

#endif
