// What the kernels of Winograd's filtering share: the patches that there are transforms for, and the panels of weights.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "aspen_jax/engine/kernel.h"
#include "panels.h"
#include "toom_cook.h"

namespace aspen::cpu::ASPEN_TARGET {

constexpr int64_t kWinogradPanel = 32;  // columns; part of the graph format

constexpr int64_t panels_of(int64_t columns) { return ceil_div(columns, kWinogradPanel); }

// The filters of both axes.
template <int kTileDown, int kTileAcross, int kTapsDown, int kTapsAcross>
struct Patch {
  using Down = Filter<kTileDown, kTapsDown>;
  using Across = Filter<kTileAcross, kTapsAcross>;
  static constexpr int kPoints = Down::kPatch * Across::kPatch;
};

// The filters of both axes as numbers.
struct PatchShape {
  int64_t tile[2], taps[2];

  int64_t extent(int axis) const { return tile[axis] + taps[axis] - 1; }
  int64_t points() const { return extent(0) * extent(1); }
  // The shape of weights of so many channels and columns, at each point, then at each tap.
  std::array<int64_t, 4> weights_shape(int64_t channels, int64_t columns) const {
    return {points() + taps[0] * taps[1], panels_of(columns), channels, kWinogradPanel};
  }
};

// What `use` returns for the filters of this shape. Throws GraphError where there are none.
template <class Result, class F>
Result visit_patch(const PatchShape& shape, F use) {
  Result result{};
  const auto matches = [&]<int... kShape>(Patch<kShape...> patch) {
    const int64_t wanted[] = {kShape...}, given[] = {shape.tile[0], shape.tile[1], shape.taps[0], shape.taps[1]};
    const bool is_it = std::equal(wanted, wanted + 4, given);
    if (is_it) result = use(patch);
    return is_it;
  };
  const auto any_of = [&](auto... patches) { return (matches(patches) || ...); };
  if (!any_of(Patch<2, 2, 2, 2>(), Patch<3, 3, 2, 2>(), Patch<4, 4, 2, 2>(), Patch<2, 2, 3, 3>(), Patch<3, 3, 3, 3>(),
              Patch<4, 4, 3, 3>(), Patch<2, 2, 4, 4>(), Patch<4, 4, 4, 4>(), Patch<2, 2, 5, 5>(), Patch<4, 4, 5, 5>(),
              Patch<1, 2, 1, 3>(), Patch<1, 4, 1, 3>(), Patch<1, 4, 1, 5>(), Patch<1, 4, 1, 7>(), Patch<1, 6, 1, 7>(),
              Patch<2, 1, 3, 1>(), Patch<4, 1, 3, 1>(), Patch<4, 1, 5, 1>(), Patch<4, 1, 7, 1>(), Patch<6, 1, 7, 1>())) {
    throw GraphError("there are no transforms for patches of " + std::to_string(shape.tile[0]) + "x" +
                     std::to_string(shape.tile[1]) + " outputs of " + std::to_string(shape.taps[0]) + "x" +
                     std::to_string(shape.taps[1]) + " weights; take one of TILES in aspen_jax/ops/winograd.py");
  }
  return result;
}

}  // namespace aspen::cpu::ASPEN_TARGET
