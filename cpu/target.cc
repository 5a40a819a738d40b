#include "target.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "peak.h"

namespace aspen::cpu {

// Each target's objects define these (kernels.cc, gemm.cc, peak.cc). ASPEN_HAS_...: cmake says which targets are compiled.
#if defined(ASPEN_HAS_portable)
namespace portable {
std::span<const Kernel> kernels();
int few_rows();
double measure_peak();
}  // namespace portable
#endif
#if defined(ASPEN_HAS_avx2)
namespace avx2 {
std::span<const Kernel> kernels();
int few_rows();
double measure_peak();
}  // namespace avx2
#endif
#if defined(ASPEN_HAS_avx512)
namespace avx512 {
std::span<const Kernel> kernels();
std::span<const Kernel> kernels_with_amx();
int few_rows();
double measure_peak();
}  // namespace avx512
#endif

namespace {

struct Build {
  Target target;
  std::string_view name;
  bool (*runs_here)();
  std::span<const Kernel> (*kernels)();
  int (*few_rows)();
  double (*measure_peak)();
};

#if defined(ASPEN_HAS_avx2) || defined(ASPEN_HAS_avx512)
bool has_avx2() {
  // __builtin_cpu_supports also asks the operating system whether it saves the wider registers.
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
#endif

#if defined(ASPEN_HAS_avx512)
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

// Whether there are matrix units for bfloat16, and this process may use them: Linux gives their registers, 8 KiB a thread, to
// those processes alone that ask for them.
bool may_use_amx() {
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
#endif

constexpr Build kBuilds[] = {
#if defined(ASPEN_HAS_portable)
    {Target::kPortable, "portable", [] { return true; }, portable::kernels, portable::few_rows, portable::measure_peak},
#endif
#if defined(ASPEN_HAS_avx2)
    {Target::kAvx2, "avx2", has_avx2, avx2::kernels, avx2::few_rows, avx2::measure_peak},
#endif
#if defined(ASPEN_HAS_avx512)
    {Target::kAvx512, "avx512", has_avx512, avx512::kernels, avx512::few_rows, avx512::measure_peak},
    {Target::kAmx, "amx", may_use_amx, avx512::kernels_with_amx, avx512::few_rows, avx512::measure_peak},
#endif
};

const Build& build_of(Target target) {
  for (const Build& build : kBuilds) {
    if (build.target == target) return build;
  }
  throw std::invalid_argument(
      "the kernels for this CPU target were not compiled into this build; use one of available_targets()");
}

Target choose() {
  const auto targets = available_targets();
  const char* wanted = std::getenv("ASPEN_CPU_TARGET");
  if (wanted == nullptr || *wanted == '\0') return targets.back();
  std::string choices;
  for (const Target target : targets) {
    if (name(target) == wanted) return target;
    choices += (choices.empty() ? "" : ", ") + std::string(name(target));
  }
  throw std::invalid_argument("ASPEN_CPU_TARGET is '" + std::string(wanted) + "', but this machine and build can run: " +
                              choices + ". Unset the variable or set it to one of these.");
}

}  // namespace

std::string_view name(Target target) { return build_of(target).name; }

std::vector<Target> available_targets() {
  std::vector<Target> targets;
  for (const Build& build : kBuilds) {
    if (build.runs_here()) targets.push_back(build.target);
  }
  return targets;
}

Target chosen_target() {
  static const Target target = choose();  // if this throws, the next call tries again
  return target;
}

std::span<const Kernel> kernels(Target target) { return build_of(target).kernels(); }

int few_rows(Target target) { return build_of(target).few_rows(); }

double peak_flops(Target target) { return build_of(target).measure_peak(); }

}  // namespace aspen::cpu
