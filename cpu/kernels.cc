// The table of kernels, one for each target.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "aspen_jax/engine/kernel.h"
#include "aspen_jax/engine/words.h"
#include "parts.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_arg_reduce(const OpSpec& spec);
PreparedOp prepare_attention(const OpSpec& spec);
PreparedOp prepare_bf16x6(const OpSpec& spec);
PreparedOp prepare_bf16x6_weights(const OpSpec& spec);
PreparedOp prepare_block(const OpSpec& spec);
PreparedOp prepare_concatenate(const OpSpec& spec);
PreparedOp prepare_conv2d(const OpSpec& spec);
PreparedOp prepare_conv2d_panels(const OpSpec& spec);
PreparedOp prepare_cumulative(const OpSpec& spec);
PreparedOp prepare_gather(const OpSpec& spec);
PreparedOp prepare_loop(const OpSpec& spec);
PreparedOp prepare_matmul(const OpSpec& spec);
PreparedOp prepare_matmul_panels(const OpSpec& spec);
PreparedOp prepare_pad(const OpSpec& spec);
PreparedOp prepare_partial_reduce(const OpSpec& spec);
PreparedOp prepare_pool(const OpSpec& spec);
PreparedOp prepare_ragged_dot(const OpSpec& spec);
PreparedOp prepare_reduce(const OpSpec& spec);
PreparedOp prepare_rows(const OpSpec& spec);
PreparedOp prepare_scatter(const OpSpec& spec);
PreparedOp prepare_select_and_gather_add(const OpSpec& spec);
PreparedOp prepare_select_and_scatter_add(const OpSpec& spec);
PreparedOp prepare_sort(const OpSpec& spec);
PreparedOp prepare_stack(const OpSpec& spec);
PreparedOp prepare_strassen(const OpSpec& spec);
PreparedOp prepare_strassen_rows(const OpSpec& spec);
PreparedOp prepare_transposed(const OpSpec& spec);
PreparedOp prepare_winograd(const OpSpec& spec);
PreparedOp prepare_winograd_weights(const OpSpec& spec);

std::span<const Kernel> kernels();

std::span<const Kernel> kernels() {
  static constexpr Kernel kTable[] = {
      {"arg_reduce", prepare_arg_reduce},
      {"attention", prepare_attention},
      {"bf16x6", prepare_bf16x6},
      {"bf16x6_weights", prepare_bf16x6_weights},
      {"block", prepare_block, true},
      {"concatenate", prepare_concatenate},
      {"conv2d", prepare_conv2d},
      {"conv2d_panels", prepare_conv2d_panels},
      {"cumulative", prepare_cumulative},
      {"gather", prepare_gather},
      {"loop", prepare_loop, true},
      {"matmul", prepare_matmul},
      {"matmul_panels", prepare_matmul_panels},
      {"pad", prepare_pad},
      {"partial_reduce", prepare_partial_reduce, true},
      {"pool", prepare_pool},
      {"ragged_dot", prepare_ragged_dot},
      {"reduce", prepare_reduce},
      {"rows", prepare_rows, true},
      {"scatter", prepare_scatter},
      {"select_and_gather_add", prepare_select_and_gather_add},
      {"select_and_scatter_add", prepare_select_and_scatter_add},
      {"sort", prepare_sort},
      {"stack", prepare_stack},
      {"strassen", prepare_strassen},
      {"strassen_rows", prepare_strassen_rows},
      {"transposed", prepare_transposed},
      {"winograd", prepare_winograd},
      {"winograd_weights", prepare_winograd_weights},
  };
  return kTable;
}

const Kernel& part_kernel(std::span<const int64_t> letters) {
  std::string name;
  for (const int64_t letter : letters) {
    check_range(letter, 1, 127, "a letter of a part's kernel");
    name += static_cast<char>(letter);
  }
  const auto all = kernels();
  const auto found = std::ranges::find(all, std::string_view(name), &Kernel::name);
  if (found == all.end() || name == "loop" || name == "stack" || name == "transposed")
    throw GraphError("no kernel '" + name + "' can be a part of an op");
  return *found;
}

#if defined(__AVX512F__)

PreparedOp prepare_bf16x6_amx(const OpSpec& spec);
std::span<const Kernel> kernels_with_amx();

// Those of this target, but for the one that has another way there.
std::span<const Kernel> kernels_with_amx() {
  static const std::vector<Kernel> table = [] {
    std::vector<Kernel> all(kernels().begin(), kernels().end());
    for (Kernel& kernel : all) {
      if (kernel.prepare == prepare_bf16x6) kernel.prepare = prepare_bf16x6_amx;
    }
    return all;
  }();
  return table;
}

#endif

}  // namespace aspen::cpu::ASPEN_TARGET
