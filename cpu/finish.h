// The first steps of an epilogue, done on a kernel's sums while they are still in registers: each adds, multiplies or bounds by
// an operand that lies as the output does, or is the same for all rows, or for all elements.
#pragma once

#include <cstdint>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

struct Finish {
  static constexpr int kMaxSteps = 8;

  // The last three keep a NaN; their operand is none. kBetween is kAtLeast its operand, then kAtMost the vector behind it.
  enum Kind : uint8_t { kAdd, kSubtract, kMultiply, kAtLeast, kAtMost, kBetween };

  struct Step {
    Kind kind;
    const float* operand;   // of the first row and column
    int64_t row_stride;     // 0: the same for all rows
    int64_t column_stride;  // 1, or 0: a vector of equal lanes serves all columns
  };

  int length = 0;
  bool completes = true;    // whether the epilogue has no further steps
  bool reads_rows = false;  // whether a step's operand has rows
  Step steps[kMaxSteps];
};

inline constexpr struct {
  alignas(kVectorBytes) float lanes[kLanes] = {};
} kZeros;

// What sum[r][v] begins with, as below: zero, or what the first step adds where that is the same for all rows, which saves the
// addition. Gives the number of steps that this has done. `finish` may be null.
template <int kRows, int kVectors, class Get>
ASPEN_INLINE int begin_in_registers(const Finish* finish, int64_t column, Floats (&sum)[kRows][kVectors], Get get) {
  const float* from = kZeros.lanes;
  int64_t across = 0;
  int done = 0;
  if (finish != nullptr && finish->length > 0 && finish->steps[0].kind == Finish::kAdd && finish->steps[0].row_stride == 0) {
    const int64_t step = finish->steps[0].column_stride;
    from = finish->steps[0].operand + column * step;
    across = step * kLanes;
    done = 1;
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const Floats first = get(from + v * across, v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r][v] = first;
  }
  return done;
}

// Takes sum[r][v] through the steps from `begin` on, which is row `row` + r and the vector of columns from `column` + v * kLanes
// on. `get` loads vector v of an operand from an address, or what exists of it.
template <int kRows, int kVectors, class Get>
ASPEN_INLINE void finish_in_registers(const Finish& finish, int begin, int64_t row, int64_t column,
                                      Floats (&sum)[kRows][kVectors], Get get) {
  for (const Finish::Step* step = finish.steps + begin; step != finish.steps + finish.length; ++step) {
    const float* const operand = step->operand + row * step->row_stride + column * step->column_stride;
    const int64_t down = step->row_stride, across = step->column_stride * kLanes;
    const auto each = [&](auto apply) __attribute__((always_inline)) {
      const float* from = operand;
      if (down == 0) {
        Floats same[kVectors];
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) same[v] = get(from + v * across, v);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) sum[r][v] = apply(sum[r][v], same[v]);
        }
        return;
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r, from += down) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) sum[r][v] = apply(sum[r][v], get(from + v * across, v));
      }
    };
    switch (step->kind) {
      case Finish::kAdd:
        each([](Floats x, Floats y) __attribute__((always_inline)) { return x + y; });
        break;
      case Finish::kSubtract:
        each([](Floats x, Floats y) __attribute__((always_inline)) { return x - y; });
        break;
      case Finish::kMultiply:
        each([](Floats x, Floats y) __attribute__((always_inline)) { return x * y; });
        break;
      case Finish::kAtLeast:
        each([](Floats x, Floats y) __attribute__((always_inline)) { return at_least(x, y); });
        break;
      case Finish::kAtMost:
        each([](Floats x, Floats y) __attribute__((always_inline)) { return at_most(x, y); });
        break;
      case Finish::kBetween: {
        const Floats least = load(step->operand), most = load(step->operand + kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
          for (int v = 0; v < kVectors; ++v) sum[r][v] = at_most(at_least(sum[r][v], least), most);
        }
        break;
      }
    }
  }
}

}  // namespace aspen::cpu::ASPEN_TARGET
