// The table of kernels, one for each target.
#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_arg_reduce(const OpSpec& spec);
PreparedOp prepare_attention(const OpSpec& spec);
PreparedOp prepare_block(const OpSpec& spec);
PreparedOp prepare_concatenate(const OpSpec& spec);
PreparedOp prepare_conv2d(const OpSpec& spec);
PreparedOp prepare_conv2d_pair(const OpSpec& spec);
PreparedOp prepare_conv2d_panels(const OpSpec& spec);
PreparedOp prepare_cumulative(const OpSpec& spec);
PreparedOp prepare_gather(const OpSpec& spec);
PreparedOp prepare_matmul(const OpSpec& spec);
PreparedOp prepare_matmul_panels(const OpSpec& spec);
PreparedOp prepare_pad(const OpSpec& spec);
PreparedOp prepare_pool(const OpSpec& spec);
PreparedOp prepare_reduce(const OpSpec& spec);
PreparedOp prepare_rows(const OpSpec& spec);
PreparedOp prepare_scatter(const OpSpec& spec);
PreparedOp prepare_strassen(const OpSpec& spec);
PreparedOp prepare_strassen_rows(const OpSpec& spec);
PreparedOp prepare_winograd(const OpSpec& spec);
PreparedOp prepare_winograd_weights(const OpSpec& spec);

std::span<const Kernel> kernels();

std::span<const Kernel> kernels() {
  static constexpr Kernel kTable[] = {
      {"arg_reduce", prepare_arg_reduce},
      {"attention", prepare_attention},
      {"block", prepare_block},
      {"concatenate", prepare_concatenate},
      {"conv2d", prepare_conv2d},
      {"conv2d_pair", prepare_conv2d_pair},
      {"conv2d_panels", prepare_conv2d_panels},
      {"cumulative", prepare_cumulative},
      {"gather", prepare_gather},
      {"matmul", prepare_matmul},
      {"matmul_panels", prepare_matmul_panels},
      {"pad", prepare_pad},
      {"pool", prepare_pool},
      {"reduce", prepare_reduce},
      {"rows", prepare_rows},
      {"scatter", prepare_scatter},
      {"strassen", prepare_strassen},
      {"strassen_rows", prepare_strassen_rows},
      {"winograd", prepare_winograd},
      {"winograd_weights", prepare_winograd_weights},
  };
  return kTable;
}

}  // namespace aspen::cpu::ASPEN_TARGET
