// bf16x6_weights: w [KH,KW,C,O], float32, in parts as bf16x6 reads it (bf16x6.cc), with zeros beyond C and O.
#include <algorithm>
#include <cstring>
#include <memory>

#include "bf16x6.h"
#include "panels.h"
#include "shapes.h"
#include "spec_reader.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_bf16x6_weights(const OpSpec& spec);

namespace {

// Axes of w, and of the parts.
enum { kDown, kAcross, kIn, kOut };
enum { kPanel, kStep, kPart, kHalf, kPair, kColumn };
constexpr int64_t kInner[4] = {kParts, 2, kStepDepth / 2, kStepColumns};  // extents from kPart on

struct Weights final : OpState {
  int64_t across;  // taps in a row of the window
  int64_t channels, columns;
  int64_t blocks;  // of channels
  int64_t steps;
  int64_t strides[4];
};

// A step of a panel: `count` channels of a tap and `columns` columns, the first of both at `from`.
void part_step(const float* from, int64_t channel_stride, int64_t column_stride, int64_t count, int64_t columns,
               int32_t* to) noexcept {
  alignas(kVectorBytes) float block[kStepDepth][kStepColumns] = {};
  for (int64_t k = 0; k < count; ++k, from += channel_stride) {
    if (column_stride == 1) {
      std::copy_n(from, columns, block[k]);
    } else {
      for (int64_t c = 0; c < columns; ++c) block[k][c] = from[c * column_stride];
    }
  }
  constexpr int64_t kHalfColumns = kStepColumns / 2, kPartWords = kStepBytes / 4 / kParts;
  for (int64_t pair = 0; pair < kStepDepth / 2; ++pair) {
    for (int64_t column = 0; column < kStepColumns; column += kLanes) {
      const Parts first = parts_of(load(block[2 * pair] + column)), second = parts_of(load(block[2 * pair + 1] + column));
      int32_t* const at = to + column / kHalfColumns * (kPartWords / 2) + pair * kHalfColumns + column % kHalfColumns;
      const auto store_part = [&](int64_t part, Floats one, Floats other) {
        const Ints lower = reinterpret_cast<Ints>(reinterpret_cast<Uints>(one) >> 16);
        store(at + part * kPartWords, lower | (as_ints(other) & static_cast<int32_t>(0xffff0000)));
      };
      store_part(0, first.high, second.high);
      store_part(1, first.middle, second.middle);
      store_part(2, with_plain_nans(first.low), with_plain_nans(second.low));
    }
  }
}

const char* run(const TileArgs& args) noexcept {
  const auto& op = *static_cast<const Weights*>(args.state);
  const auto* const w = static_cast<const float*>(args.inputs[0]);
  auto* const out = static_cast<std::byte*>(args.output);
  bool whole = true;
  for (int axis = kPart; axis <= kColumn; ++axis) {
    whole &= args.lo[axis] == 0 && args.hi[axis] == kInner[axis - kPart];
    if (args.lo[axis] >= args.hi[axis]) return nullptr;
  }
  for (int64_t panel = args.lo[kPanel]; panel < args.hi[kPanel]; ++panel) {
    const int64_t column = panel * kStepColumns, columns = std::min(kStepColumns, op.columns - column);
    for (int64_t step = args.lo[kStep]; step < args.hi[kStep]; ++step) {
      const int64_t tap = step / op.blocks, channel = step % op.blocks * kStepDepth;
      const float* const from = w + tap / op.across * op.strides[kDown] + tap % op.across * op.strides[kAcross] +
                                channel * op.strides[kIn] + column * op.strides[kOut];
      std::byte* const to = out + (panel * op.steps + step) * kStepBytes;
      const int64_t count = std::min(kStepDepth, op.channels - channel);
      if (whole) {
        part_step(from, op.strides[kIn], op.strides[kOut], count, columns, reinterpret_cast<int32_t*>(to));
        continue;
      }
      alignas(kVectorBytes) std::byte parts[kStepBytes];
      part_step(from, op.strides[kIn], op.strides[kOut], count, columns, reinterpret_cast<int32_t*>(parts));
      for (int64_t part = args.lo[kPart]; part < args.hi[kPart]; ++part) {
        for (int64_t half = args.lo[kHalf]; half < args.hi[kHalf]; ++half) {
          for (int64_t pair = args.lo[kPair]; pair < args.hi[kPair]; ++pair) {
            const int64_t row = (part * kInner[1] + half) * kInner[2] + pair, first = row * kInner[3] + args.lo[kColumn];
            std::memcpy(to + 2 * first, parts + 2 * first, 2 * static_cast<size_t>(args.hi[kColumn] - args.lo[kColumn]));
          }
        }
      }
    }
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_bf16x6_weights(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& w = reader.input(0, "w", {.rank = 4, .dtypes = DType::kF32});
  reader.end_inputs(1);
  const TensorView& out = reader.output({.rank = 6, .dtypes = DType::kBF16, .dense = true});
  reader.end_without_program();
  auto op = std::make_unique<Weights>();
  op->across = w.shape[kAcross];
  op->channels = w.shape[kIn];
  op->columns = w.shape[kOut];
  op->blocks = ceil_div(op->channels, kStepDepth);
  const int64_t taps = w.shape[kDown] * op->across;
  op->steps = out.shape[kStep];
  check_shape(out, "the output", {ceil_div(op->columns, kStepColumns), op->steps, kParts, 2, kStepDepth / 2, kStepColumns});
  // Divided, as the product of three extents may be too large.
  const bool steps_fit =
      op->blocks == 0 || taps == 0 ? op->steps == 0 : op->steps % op->blocks == 0 && op->steps / op->blocks == taps;
  if (!steps_fit) throw GraphError("the output has shape " + describe(out) + ", which does not fit w, " + describe(w));
  for (int i = 0; i < 4; ++i) op->strides[i] = used_stride(w, i);
  return {std::move(op), run, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
