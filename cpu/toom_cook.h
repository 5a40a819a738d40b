// Minimal filtering along one axis (Winograd, "Arithmetic complexity of computations", 1980), as Toom and Cook multiply
// polynomials: outputs and taps are evaluated at points, inputs are combined by the polynomials that are zero at all other
// points. outputs + taps - 1 products then do what outputs * taps do directly. The matrices are worked out from the points when
// this is compiled, and applied without their zeros and ones, and once for what two opposite points share.
#pragma once

#include <array>
#include <utility>

#include "vec.h"

namespace aspen::cpu::ASPEN_TARGET {

// The points in order, infinity after them; aspen_jax/ops/toom_cook.py has the same. Small fractions lose the fewest digits.
inline constexpr double kFilterPoints[] = {0, 1, -1, 2, -2, 1.0 / 2, -1.0 / 2, 3.0 / 2, -3.0 / 2, 2.0 / 3, -2.0 / 3};

template <int kRows, int kColumns>
using Matrix = std::array<std::array<double, kColumns>, kRows>;

// Row p: the product of x - q over the points q but p, or over all of them for infinity.
template <int kPoints>
constexpr Matrix<kPoints, kPoints> input_matrix() {
  Matrix<kPoints, kPoints> matrix = {};
  for (int p = 0; p < kPoints; ++p) {
    matrix[p][0] = 1;
    for (int q = 0; q < kPoints - 1; ++q) {
      if (q == p) continue;
      for (int j = kPoints - 1; j >= 0; --j) matrix[p][j] = (j > 0 ? matrix[p][j - 1] : 0) - kFilterPoints[q] * matrix[p][j];
    }
  }
  return matrix;
}

template <int kPoints, int kTaps>
constexpr Matrix<kPoints, kTaps> weight_matrix() {
  Matrix<kPoints, kTaps> matrix = {};
  for (int p = 0; p < kPoints - 1; ++p) {
    double value = 1;
    for (int q = 0; q < kPoints - 1; ++q) value /= q == p ? 1 : kFilterPoints[p] - kFilterPoints[q];
    for (int j = 0; j < kTaps; ++j, value *= kFilterPoints[p]) matrix[p][j] = value;
  }
  matrix[kPoints - 1][kTaps - 1] = 1;
  return matrix;
}

template <int kOutputs, int kPoints>
constexpr Matrix<kOutputs, kPoints> output_matrix() {
  Matrix<kOutputs, kPoints> matrix = {};
  for (int p = 0; p < kPoints - 1; ++p) {
    double value = 1;
    for (int i = 0; i < kOutputs; ++i, value *= kFilterPoints[p]) matrix[i][p] = value;
  }
  matrix[kOutputs - 1][kPoints - 1] = 1;
  return matrix;
}

template <int kPoints>
inline constexpr auto kInputMatrix = input_matrix<kPoints>();
template <int kPoints, int kTaps>
inline constexpr auto kWeightMatrix = weight_matrix<kPoints, kTaps>();
template <int kOutputs, int kPoints>
inline constexpr auto kOutputMatrix = output_matrix<kOutputs, kPoints>();

template <int kOutputs, int kTaps>
struct Filter {
  static constexpr int kTile = kOutputs;
  static constexpr int kWeights = kTaps;
  static constexpr int kPatch = kOutputs + kTaps - 1;  // inputs, and points

  static ASPEN_INLINE void input(const Floats (&d)[kPatch], Floats (&to)[kPatch]) { by_rows<kInputMatrix<kPatch>>(d, to); }
  static ASPEN_INLINE void weights(const Floats (&g)[kTaps], Floats (&to)[kPatch]) {
    by_rows<kWeightMatrix<kPatch, kTaps>>(g, to);
  }
  static ASPEN_INLINE void output(const Floats (&m)[kPatch], Floats (&to)[kTile]) {
    // Opposite points have equal even powers and opposite odd ones.
    Floats sum[kPatch], difference[kPatch];
    unrolled<kPatch>([&](auto p) __attribute__((always_inline)) {
      if constexpr (is_opposite(p)) sum[p] = m[p] + m[p + 1], difference[p] = m[p] - m[p + 1];
    });
    unrolled<kTile>([&](auto i) __attribute__((always_inline)) {
      constexpr auto& kRow = kOutputMatrix<kTile, kPatch>[i];
      unrolled<kPatch>([&](auto p) __attribute__((always_inline)) {
        if constexpr (kRow[p] != 0 && !is_opposite(p - 1)) {
          add<kRow[p], is_first(kRow, p)>(to[i], !is_opposite(p) ? m[p] : i % 2 == 0 ? sum[p] : difference[p]);
        }
      });
    });
  }

 private:
  static constexpr int kFinite = kPatch - 1;

  // Whether points p and p + 1 are opposite.
  static constexpr bool is_opposite(int p) { return p > 0 && p + 1 < kFinite && kFilterPoints[p] == -kFilterPoints[p + 1]; }

  // Whether all of them are zero or opposite to another: then every other element of the rows of opposite points is equal, the
  // rest opposite.
  static constexpr bool kSymmetric = kFinite % 2 == 1;

  template <int kCount, class F>
  static ASPEN_INLINE void unrolled(F&& body) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) __attribute__((always_inline)) {
      (body(std::integral_constant<int, kIndex>{}), ...);
    }(std::make_integer_sequence<int, kCount>());
  }

  // Whether all elements before this one (behind it, with a step of -1 or -2) are zero.
  template <size_t kSize>
  static constexpr bool is_first(const std::array<double, kSize>& row, int column, int step = 1) {
    for (int j = column - step; j >= 0 && j < static_cast<int>(kSize); j -= step) {
      if (row[j] != 0) return false;
    }
    return true;
  }

  // `sum` + kFactor * x; kIsFirst: there is no sum yet.
  template <double kFactor, bool kIsFirst>
  static ASPEN_INLINE void add(Floats& sum, Floats x) {
    constexpr auto kFloat = static_cast<float>(kFactor);
    if constexpr (kFactor == 1) {
      sum = kIsFirst ? x : sum + x;
    } else if constexpr (kFactor == -1) {
      sum = kIsFirst ? -x : sum - x;
    } else {
      sum = kIsFirst ? kFloat * x : fma(broadcast(kFloat), x, sum);
    }
  }

  // A row of the matrix times the vector, from element kFirst on in steps of kStep. Polynomials of inputs have a last factor of
  // one, so the sum begins with that, and no product.
  template <const auto& kMatrix, int kRow, int kFirst, int kStep>
  static ASPEN_INLINE Floats times(const Floats* from) {
    Floats sum = {};
    constexpr int kSize = static_cast<int>(kMatrix[kRow].size());
    unrolled<kSize>([&](auto behind) __attribute__((always_inline)) {
      constexpr int j = kSize - 1 - behind;
      constexpr double kFactor = kMatrix[kRow][j];
      if constexpr (kFactor != 0 && j % kStep == kFirst) add<kFactor, is_first(kMatrix[kRow], j, -kStep)>(sum, from[j]);
    });
    return sum;
  }

  template <const auto& kMatrix>
  static ASPEN_INLINE void by_rows(const Floats* from, Floats* to) {
    unrolled<kPatch>([&](auto p) __attribute__((always_inline)) {
      if constexpr (!kSymmetric || !(is_opposite(p) || is_opposite(p - 1))) {
        to[p] = times<kMatrix, p, 0, 1>(from);
      } else if constexpr (is_opposite(p)) {
        const Floats even = times<kMatrix, p, 0, 2>(from), odd = times<kMatrix, p, 1, 2>(from);
        to[p] = even + odd;
        to[p + 1] = even - odd;
      }
    });
  }
};

}  // namespace aspen::cpu::ASPEN_TARGET
