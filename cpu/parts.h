// The kernels that ops made of several parts call.
#pragma once

#include <cstdint>
#include <span>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::ASPEN_TARGET {

// The kernel whose name these letters spell. Throws GraphError where none is called so, or it is made of parts itself.
const Kernel& part_kernel(std::span<const int64_t> letters);

}  // namespace aspen::cpu::ASPEN_TARGET
