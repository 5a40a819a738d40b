// The table of kernels, one for each target.
#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_conv2d(const OpSpec& spec);
PreparedOp prepare_matmul(const OpSpec& spec);

std::span<const Kernel> kernels();

std::span<const Kernel> kernels() {
  static constexpr Kernel kTable[] = {
      {"conv2d", prepare_conv2d},
      {"matmul", prepare_matmul},
  };
  return kTable;
}

}  // namespace aspen::cpu::ASPEN_TARGET
