// winograd_weights: w [KH,KW,C,O] as winograd reads it (winograd.cc), [points + KH * KW, ceil(O/32), C, 32]: at each point, then
// as it is. A column of outputs whose taps are not finite, or lie so far apart that the smallest would be lost, is NaN at all
// points.
#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include "shapes.h"
#include "spec_reader.h"
#include "winograd.h"

namespace aspen::cpu::ASPEN_TARGET {

PreparedOp prepare_winograd_weights(const OpSpec& spec);

namespace {

enum { kKernelHeight, kKernelWidth, kKernelIn, kKernelOut };

struct Weights final : OpState {
  int64_t channels, columns;
  int64_t strides[4];
};

// Binary exponents that the taps of a column may lie apart, and what taps of zeros count as; as in aspen_jax/ops/winograd.py.
constexpr int32_t kMostApart = 12 << 23, kOfZeros = (127 + 16) << 23;
constexpr int32_t kMagnitude = std::numeric_limits<int32_t>::max(), kInfinite = 0x7f800000;  // bits of a float

// For each column of a panel NaN where the transforms would spoil it, else zero: by the largest weight of each tap.
void find_spoilt(const Weights& op, const float* w, int64_t taps_down, int64_t taps_across, int64_t first, int64_t count,
                 float* spoilt) {
  int32_t most[kWinogradPanel] = {}, least[kWinogradPanel];
  std::fill_n(least, kWinogradPanel, kInfinite);
  for (int64_t tap = 0; tap < taps_down * taps_across; ++tap) {
    int32_t largest[kWinogradPanel] = {};
    const float* from = w + tap / taps_across * op.strides[kKernelHeight] + tap % taps_across * op.strides[kKernelWidth] +
                        first * op.strides[kKernelOut];
    for (int64_t channel = 0; channel < op.channels; ++channel, from += op.strides[kKernelIn]) {
      for (int64_t k = 0; k < count; ++k) {
        largest[k] = std::max(largest[k], std::bit_cast<int32_t>(from[k * op.strides[kKernelOut]]) & kMagnitude);
      }
    }
    for (int64_t k = 0; k < count; ++k) {
      most[k] = std::max(most[k], largest[k]);
      least[k] = std::min(least[k], largest[k] > 0 ? largest[k] : kOfZeros);
    }
  }
  for (int64_t k = 0; k < kWinogradPanel; ++k) {
    const bool is_spoilt = most[k] >= kInfinite || most[k] - least[k] > kMostApart;
    spoilt[k] = is_spoilt ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
}

template <class P>
const char* run(const TileArgs& args) noexcept {
  using Down = typename P::Down;
  using Across = typename P::Across;
  constexpr int kTapsDown = Down::kWeights, kTapsAcross = Across::kWeights;
  const auto& op = *static_cast<const Weights*>(args.state);
  const auto* w = static_cast<const float*>(args.inputs[0]);
  auto* out = static_cast<float*>(args.output);
  const int64_t plane = panels_of(op.columns) * op.channels * kWinogradPanel;
  for (int64_t panel = args.lo[1]; panel < args.hi[1]; ++panel) {
    float spoilt[kWinogradPanel];
    find_spoilt(op, w, kTapsDown, kTapsAcross, panel * kWinogradPanel,
                std::min(kWinogradPanel, op.columns - panel * kWinogradPanel), spoilt);
    for (int64_t channel = args.lo[2]; channel < args.hi[2]; ++channel) {
      float columns[kTapsDown][kTapsAcross][kWinogradPanel] = {};
      const int64_t first = panel * kWinogradPanel, count = std::min(kWinogradPanel, op.columns - first);
      for (int down = 0; down < kTapsDown; ++down) {
        for (int across = 0; across < kTapsAcross; ++across) {
          const float* from = w + down * op.strides[kKernelHeight] + across * op.strides[kKernelWidth] +
                              channel * op.strides[kKernelIn] + first * op.strides[kKernelOut];
          if (op.strides[kKernelOut] == 1) {
            std::copy_n(from, count, columns[down][across]);
          } else {
            for (int64_t k = 0; k < count; ++k) columns[down][across][k] = from[k * op.strides[kKernelOut]];
          }
        }
      }
      float* const to = out + (panel * op.channels + channel) * kWinogradPanel;
      for (int64_t tap = std::max<int64_t>(args.lo[0] - P::kPoints, 0); tap < args.hi[0] - P::kPoints; ++tap) {
        std::copy(columns[tap / kTapsAcross][tap % kTapsAcross] + args.lo[3],
                  columns[tap / kTapsAcross][tap % kTapsAcross] + args.hi[3], to + (P::kPoints + tap) * plane + args.lo[3]);
      }
      // The tile's box may hold some of the points and some of the columns only.
      for (int64_t k = args.lo[3] / kLanes * kLanes; k < args.hi[3]; k += kLanes) {
        Floats across[Across::kPatch][kTapsDown];
        for (int row = 0; row < kTapsDown; ++row) {
          Floats g[kTapsAcross], points[Across::kPatch];
          for (int column = 0; column < kTapsAcross; ++column) g[column] = load(columns[row][column] + k) + load(spoilt + k);
          Across::weights(g, points);
          for (int column = 0; column < Across::kPatch; ++column) across[column][row] = points[column];
        }
        for (int column = 0; column < Across::kPatch; ++column) {
          Floats down[Down::kPatch];
          Down::weights(across[column], down);
          for (int row = 0; row < Down::kPatch; ++row) {
            const int64_t point = row * Across::kPatch + column;
            if (point < args.lo[0] || point >= args.hi[0]) continue;
            float* const lanes = to + point * plane + k;
            if (k >= args.lo[3] && k + kLanes <= args.hi[3]) {
              store(lanes, down[row]);
              continue;
            }
            for (int64_t lane = std::max<int64_t>(k, args.lo[3]); lane < std::min<int64_t>(k + kLanes, args.hi[3]); ++lane) {
              lanes[lane - k] = down[row][lane - k];
            }
          }
        }
      }
    }
  }
  return nullptr;
}

}  // namespace

PreparedOp prepare_winograd_weights(const OpSpec& spec) {
  SpecReader reader(spec);
  const TensorView& w = reader.input(0, "w", {.rank = 4, .dtypes = DType::kF32});
  reader.end_inputs(1);
  const TensorView& out = reader.output({.rank = 4, .dtypes = DType::kF32, .dense = true});
  const auto tile = reader.list(2, "the outputs of a patch");
  reader.end_without_program();
  const PatchShape shape{{tile[0], tile[1]}, {w.shape[kKernelHeight], w.shape[kKernelWidth]}};
  const auto run_tile = visit_patch<RunTile>(shape, []<class P>(P) -> RunTile { return run<P>; });
  check_shape(out, "the output", shape.weights_shape(w.shape[kKernelIn], w.shape[kKernelOut]));
  auto op = std::make_unique<Weights>();
  op->channels = w.shape[kKernelIn];
  op->columns = w.shape[kKernelOut];
  for (int i = 0; i < 4; ++i) op->strides[i] = used_stride(w, i);
  return {std::move(op), run_tile, 0};
}

}  // namespace aspen::cpu::ASPEN_TARGET
