#include "kernel_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

namespace aspen {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::invalid_argument("no kernels were loaded from '" + path + "': " + why);
}

}  // namespace

std::span<const Kernel> load_kernels(const std::string& path) {
  // The system would look for a bare name in its own folders.
  const std::string whole = std::filesystem::absolute(path).string();
  void* const library = dlopen(whole.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    refuse(path, reason == nullptr ? "the system does not say why" : reason);
  }
  const auto* const shown = static_cast<const KernelLibrary*>(dlsym(library, "aspen_kernels"));
  if (shown == nullptr) refuse(path, "it shows none; end its source with ASPEN_KERNELS (aspen_jax/engine/kernel_library.h)");
  if (shown->version != KernelLibrary::kVersion) {
    refuse(path, "it was compiled against version " + std::to_string(shown->version) +
                     " of kernel_library.h, and this aspen_jax has version " + std::to_string(KernelLibrary::kVersion) +
                     "; compile it again");
  }
  if (shown->kernels == nullptr && shown->count > 0) refuse(path, "its list of kernels is null; make it by ASPEN_KERNELS");
  const std::span kernels(shown->kernels, shown->count);
  for (const Kernel& kernel : kernels) {
    if (kernel.name == nullptr || kernel.prepare == nullptr) refuse(path, "a kernel has no name or no `prepare`; write both");
  }
  return kernels;
}

}  // namespace aspen
