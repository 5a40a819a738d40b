#include "registry.h"

#include <stdexcept>
#include <string>

namespace aspen {

void KernelRegistry::add(std::span<const Kernel> kernels) {
  for (const Kernel& kernel : kernels) {
    if (find(kernel.name) != nullptr) {
      throw std::invalid_argument(std::string("there is a kernel named '") + kernel.name +
                                  "' already; give one of them another name");
    }
    kernels_.push_back(kernel);
  }
}

const Kernel* KernelRegistry::find(std::string_view name) const {
  for (const Kernel& kernel : kernels_) {
    if (name == kernel.name) return &kernel;
  }
  return nullptr;
}

}  // namespace aspen
