#include "target.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

#include "peak.h"
#include "processor.h"

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

// What there is for this kind of processor, in ascending order of preference, compiled in or not.
struct Known {
  Target target;
  std::string_view name;
  bool (*runs_here)();
};

constexpr Known kKnown[] = {
    {Target::kPortable, "portable", [] { return true; }},
#if defined(__x86_64__)
    {Target::kAvx2, "avx2", has_avx2},
    {Target::kAvx512, "avx512", has_avx512},
    {Target::kAmx, "amx", may_use_amx},
#endif
};

struct Build {
  Target target;
  std::span<const Kernel> (*kernels)();
  int (*few_rows)();
  double (*measure_peak)();
};

constexpr Build kBuilds[] = {
#if defined(ASPEN_HAS_portable)
    {Target::kPortable, portable::kernels, portable::few_rows, portable::measure_peak},
#endif
#if defined(ASPEN_HAS_avx2)
    {Target::kAvx2, avx2::kernels, avx2::few_rows, avx2::measure_peak},
#endif
#if defined(ASPEN_HAS_avx512)
    {Target::kAvx512, avx512::kernels, avx512::few_rows, avx512::measure_peak},
    {Target::kAmx, avx512::kernels_with_amx, avx512::few_rows, avx512::measure_peak},
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
  std::string otherwise;
  for (const Target target : runnable_targets()) {
    if (name(target) == wanted) otherwise = " Or compile its kernels: cmake's option ASPEN_CPU_TARGETS=all does.";
  }
  throw std::invalid_argument("ASPEN_CPU_TARGET is '" + std::string(wanted) + "', but this machine and build can run: " +
                              choices + ". Unset the variable or set it to one of these." + otherwise);
}

}  // namespace

std::string_view name(Target target) {
  for (const Known& known : kKnown) {
    if (known.target == target) return known.name;
  }
  throw std::invalid_argument("this kind of processor has no such CPU target; use one of runnable_targets()");
}

std::vector<Target> compiled_targets() {
  std::vector<Target> targets;
  for (const Build& build : kBuilds) targets.push_back(build.target);
  return targets;
}

std::vector<Target> runnable_targets() {
  std::vector<Target> targets;
  for (const Known& known : kKnown) {
    if (known.runs_here()) targets.push_back(known.target);
  }
  return targets;
}

std::vector<Target> available_targets() {
  std::vector<Target> targets = runnable_targets();
  std::erase_if(targets, [](Target target) {
    return std::none_of(std::begin(kBuilds), std::end(kBuilds), [&](const Build& build) { return build.target == target; });
  });
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
