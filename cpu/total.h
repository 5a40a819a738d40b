// Totals of long reductions: float sums are compensated.
#pragma once

#include <cstdint>
#include <type_traits>

#include "accumulate.h"

namespace aspen::cpu::ASPEN_TARGET {

// Long float sums are cut into pieces of this many additions an accumulator, and the pieces are added with Kahan's compensation:
// the relative error stays near that of one piece, however many there are.
constexpr int64_t kPiece = 64;

template <class Op>
struct Total {
  using Vector = typename Op::Vector;
  static constexpr bool kCompensated = std::is_same_v<Vector, Floats> && Op::kKind == Combination::kSum;
  Vector value = broadcast(Op::identity());
  Vector lost = {};

  ASPEN_INLINE void add(Vector piece) {
    if constexpr (kCompensated) {
      const Floats wanted = piece - lost;
      const Floats sum = value + wanted;
      // Beside infinities the difference would be NaN.
      lost = abs(sum) < kInfinity ? (sum - value) - wanted : Floats{};
      value = sum;
    } else {
      value = Op::apply(value, piece);
    }
  }
};

}  // namespace aspen::cpu::ASPEN_TARGET
