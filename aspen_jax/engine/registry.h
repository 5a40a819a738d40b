// The kernels that back-ends have registered, by name.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "kernel.h"

namespace aspen {

class KernelRegistry {
 public:
  // The kernels must outlive the registry. Throws std::invalid_argument where a name is already taken.
  void add(std::span<const Kernel> kernels);

  // nullptr if no back-end registered the name.
  const Kernel* find(std::string_view name) const;

  std::span<const Kernel> kernels() const { return kernels_; }

 private:
  std::vector<Kernel> kernels_;  // a dozen: looked up once per graph, so a list will do
};

}  // namespace aspen
