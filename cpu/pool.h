// Pools whose x lies in a ring of rows, as a stack keeps it.
#pragma once

#include <cstdint>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::ASPEN_TARGET {

// Prepares the kernel "pool" where index i of an axis of x lies at i modulo `ring`, which is at least what a window spans.
// Nothing can be run where the kernel cannot read x so. Throws GraphError.
PreparedOp prepare_pool_of_ring(const OpSpec& spec, int axis, int64_t ring);

}  // namespace aspen::cpu::ASPEN_TARGET
