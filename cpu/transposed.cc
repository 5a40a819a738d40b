// transposed: an op of images whose result is written in another order of axes (Bolt, section 3.2.3). A tile computes some rows
// of an image in scratch, in the op's own order, and stores them while they lie in the L2 cache.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "cache.h"
#include "parts.h"
#include "planes.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_transposed(const OpSpec& spec);

namespace {

constexpr int kImage = 0, kRow = 1, kPixel = 2, kChannel = 3, kRank = 4;
// More than any cache; it bounds what a graph can ask for.
constexpr int64_t kMostScratch = int64_t{1} << 30;
constexpr int64_t kRowsOfPatches = 12;  // whole patches of Winograd's algorithm of 2, 3, 4 or 6 rows

struct Transposed final : OpState {
  PreparedOp part;
  int axis[kRank];         // of the output, for each of the result's
  int64_t strides[kRank];  // of the result, in elements
  int64_t targets[kRank];  // of the output along the same axes
  int64_t extents[kRank];  // of the result
  DType dtype = DType::kF32;
  int64_t item_bytes = 0;
  int64_t strip = 0;  // rows at a time
  size_t part_scratch = 0;
};

const char* run(const TileArgs& args) noexcept {
  const auto& state = *static_cast<const Transposed*>(args.state);
  Box whole, box;
  for (int d = 0; d < kRank; ++d) {
    box.lo[d] = whole.lo[d] = args.lo[state.axis[d]];
    box.hi[d] = whole.hi[d] = args.hi[state.axis[d]];
    if (box.lo[d] >= box.hi[d]) return nullptr;
  }
  std::byte* const scratch = args.scratch + state.part_scratch;
  const int64_t pixels = whole.hi[kPixel] - whole.lo[kPixel], channels = whole.hi[kChannel] - whole.lo[kChannel];
  const bool is_plane = pixels == state.extents[kPixel] && state.targets[kRow] == pixels * state.targets[kPixel];
  for (int32_t image = whole.lo[kImage]; image < whole.hi[kImage]; ++image) {
    box.lo[kImage] = image;
    box.hi[kImage] = image + 1;
    for (int64_t row = whole.lo[kRow]; row < whole.hi[kRow]; row += state.strip) {
      box.lo[kRow] = static_cast<int32_t>(row);
      box.hi[kRow] = static_cast<int32_t>(std::min<int64_t>(row + state.strip, whole.hi[kRow]));
      // Where element 0 of the result would be.
      const int64_t before = image * state.strides[kImage] + row * state.strides[kRow];
      void* const origin =
          reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(scratch) - static_cast<uintptr_t>(before * state.item_bytes));
      if (const char* const error = state.part.run({state.part.state.get(), args.inputs, origin, box.lo, box.hi, args.scratch})) {
        return error;
      }
      const int64_t rows = box.hi[kRow] - row;
      for (int64_t r = 0; r < (is_plane ? 1 : rows); ++r) {
        const int64_t from = r * state.strides[kRow] + box.lo[kPixel] * state.strides[kPixel] + box.lo[kChannel];
        const int64_t to = image * state.targets[kImage] + (row + r) * state.targets[kRow] +
                           box.lo[kPixel] * state.targets[kPixel] + box.lo[kChannel] * state.targets[kChannel];
        const int64_t count = is_plane ? rows * pixels : pixels;
        const std::byte* const source = scratch + from * state.item_bytes;
        std::byte* const target = static_cast<std::byte*>(args.output) + to * state.item_bytes;
        if (state.dtype == DType::kF32 && state.targets[kPixel] == 1) {  // lanes are transposed in registers
          load_lanes(state.dtype, source, 1, state.strides[kPixel], channels, count, reinterpret_cast<int32_t*>(target),
                     state.targets[kChannel]);
        } else {
          copy_elements(state.item_bytes, source, state.strides[kPixel], 1, target, state.targets[kPixel],
                        state.targets[kChannel], count, channels);
        }
      }
    }
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_transposed(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& output = reader.output({.rank = kRank});
  auto state = std::make_unique<Transposed>();
  const Kernel& kernel = part_kernel(reader.list());
  const auto permutation = reader.list(kRank, 0, kRank - 1, "the permutation");
  TensorView result;
  result.dtype = output.dtype;
  result.rank = kRank;
  bool is_taken[kRank] = {};
  for (int i = 0; i < kRank; ++i) {
    const auto d = static_cast<int>(permutation[static_cast<size_t>(i)]);
    if (is_taken[d]) throw GraphError("axis " + std::to_string(d) + " is twice in a permutation");
    is_taken[d] = true;
    state->axis[d] = i;
    state->targets[d] = used_stride(output, i);
    state->extents[d] = result.shape[d] = output.shape[i];
  }
  int64_t elements = 1;
  for (int d = kRank - 1; d >= 0; --d) {
    state->strides[d] = result.strides[d] = elements;
    elements *= result.shape[d];
  }
  state->dtype = output.dtype;
  state->item_bytes = size_of(output.dtype);
  const int64_t row_bytes = std::max<int64_t>(state->strides[kRow] * state->item_bytes, 1);
  state->strip = std::max<int64_t>(l2_cache_bytes() / 4 / row_bytes, 1);
  if (state->strip > kRowsOfPatches) state->strip -= state->strip % kRowsOfPatches;
  state->strip = std::min(state->strip, std::max<int64_t>(result.shape[kRow], 1));
  if (row_bytes > kMostScratch / state->strip) throw GraphError("a row of " + describe(result) + " is too long to be transposed");
  const std::string what = std::string("the op that is transposed (") + kernel.name + ")";
  const auto behind = spec.params.subspan(static_cast<size_t>(permutation.data() + kRank - spec.params.data()));
  state->part = prepare_part(what.c_str(), kernel.prepare, {spec.inputs, result, behind});
  state->part_scratch = (state->part.scratch_bytes + 63) / 64 * 64;
  const size_t scratch_bytes = state->part_scratch + static_cast<size_t>(state->strip * row_bytes);
  return {std::move(state), run, scratch_bytes};
}

}  // namespace aspen::cpu::ASPEN_TARGET
