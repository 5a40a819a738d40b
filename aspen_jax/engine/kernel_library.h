// Kernels of shared libraries that users have written (docs/how-to/extend.md). A source includes this, and words.h to read
// parameters, and ends in
//
//   ASPEN_KERNELS({"nearest", prepare_nearest});
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "kernel.h"

namespace aspen {

// What a library shows, as the symbol `aspen_kernels`. Engine and library lay out what is in kernel.h alike where they agree on
// the version, which grows with each change of it.
struct KernelLibrary {
  static constexpr uint64_t kVersion = 4;
  uint64_t version;
  const Kernel* kernels;
  size_t count;
};

// Loads a library; it stays until the process ends. It is code, and is trusted as such. Throws std::invalid_argument where it
// cannot be loaded, shows no kernels, or was compiled against another version.
std::span<const Kernel> load_kernels(const std::string& path);

}  // namespace aspen

#define ASPEN_KERNELS(...)                                                                    \
  namespace {                                                                                 \
  const aspen::Kernel kShownKernels[] = {__VA_ARGS__};                                        \
  }                                                                                           \
  extern "C" __attribute__((visibility("default"))) const aspen::KernelLibrary aspen_kernels; \
  const aspen::KernelLibrary aspen_kernels = {aspen::KernelLibrary::kVersion, kShownKernels, std::size(kShownKernels)}
