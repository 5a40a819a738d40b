// The instructions of block programs on one vector of lanes: for each name in block_ops.inc a function object of that name,
// whose argument types (Floats, or Ints for integers and masks) say how the lanes are read.
#pragma once

#include <cstdint>
#include <limits>

#include "elements.h"
#include "trigonometry.h"
#include "vec.h"
#include "vmath.h"
#include "vmath_f64.h"

namespace aspen::cpu::ASPEN_TARGET::lane_ops {

// Integer arithmetic wraps.
ASPEN_INLINE Uints wrapping(Ints a) { return reinterpret_cast<Uints>(a); }
ASPEN_INLINE Ints wrapped(Uints a) { return reinterpret_cast<Ints>(a); }

// The divisor, or 1 where the quotient is undefined in C++.
ASPEN_INLINE Ints safe_divisor(Ints a, Ints b) {
  const Ints overflows = (a == std::numeric_limits<int32_t>::min()) & (b == -1);
  return (b == 0) | overflows ? broadcast(int32_t{1}) : b;
}
// All ones where the shift by b keeps no bit of a.
ASPEN_INLINE Ints shifts_out(Ints b) { return (b < 0) | (b > 31); }

inline constexpr auto copy = [](Ints a) { return a; };

inline constexpr auto add_f = [](Floats a, Floats b) { return a + b; };
inline constexpr auto sub_f = [](Floats a, Floats b) { return a - b; };
inline constexpr auto mul_f = [](Floats a, Floats b) { return a * b; };
inline constexpr auto div_f = [](Floats a, Floats b) { return a / b; };
inline constexpr auto max_f = [](Floats a, Floats b) { return max(a, b); };
inline constexpr auto min_f = [](Floats a, Floats b) { return min(a, b); };
inline constexpr auto pow_f = [](Floats a, Floats b) { return pow(a, b); };
inline constexpr auto rem_f = [](Floats a, Floats b) { return rem(a, b); };
inline constexpr auto atan2_f = [](Floats a, Floats b) { return atan2(a, b); };
inline constexpr auto fma_f = [](Floats a, Floats b, Floats c) { return fma(a, b, c); };
inline constexpr auto neg_f = [](Floats a) { return as_floats(as_ints(a) ^ kSignBit); };
inline constexpr auto abs_f = [](Floats a) { return abs(a); };
inline constexpr auto sign_f = [](Floats a) { return abs(a) > 0.0f ? with_sign(broadcast(1.0f), sign_bit(a)) : a; };
inline constexpr auto floor_f = [](Floats a) { return floor(a); };
inline constexpr auto ceil_f = [](Floats a) { return ceil(a); };
inline constexpr auto round_f = [](Floats a) { return round_half_away(a); };
inline constexpr auto round_even_f = [](Floats a) { return round_half_even(a); };
inline constexpr auto sqrt_f = [](Floats a) { return sqrt(a); };
inline constexpr auto rsqrt_f = [](Floats a) { return 1.0f / sqrt(a); };
inline constexpr auto cbrt_f = [](Floats a) { return cbrt(a); };
inline constexpr auto exp_f = [](Floats a) { return exp(a); };
inline constexpr auto exp2_f = [](Floats a) { return exp2(a); };
inline constexpr auto expm1_f = [](Floats a) { return expm1(a); };
inline constexpr auto log_f = [](Floats a) { return log(a); };
inline constexpr auto log1p_f = [](Floats a) { return log1p(a); };
inline constexpr auto tanh_f = [](Floats a) { return tanh(a); };
inline constexpr auto logistic_f = [](Floats a) { return logistic(a); };
inline constexpr auto erf_f = [](Floats a) { return erf(a); };
inline constexpr auto erfc_f = [](Floats a) { return erfc(a); };
inline constexpr auto sin_f = [](Floats a) { return sin(a); };
inline constexpr auto cos_f = [](Floats a) { return cos(a); };
inline constexpr auto tan_f = [](Floats a) { return tan(a); };
inline constexpr auto is_finite_f = [](Floats a) { return Ints(abs(a) < kInfinity); };
inline constexpr auto eq_f = [](Floats a, Floats b) { return Ints(a == b); };
inline constexpr auto ne_f = [](Floats a, Floats b) { return Ints(a != b); };
inline constexpr auto lt_f = [](Floats a, Floats b) { return Ints(a < b); };
inline constexpr auto le_f = [](Floats a, Floats b) { return Ints(a <= b); };
inline constexpr auto gt_f = [](Floats a, Floats b) { return Ints(a > b); };
inline constexpr auto ge_f = [](Floats a, Floats b) { return Ints(a >= b); };
inline constexpr auto relu_f = [](Floats a) { return at_least(a, Floats{}); };
inline constexpr auto square_f = [](Floats a) { return a * a; };

inline constexpr auto as_bf16_f = [](Floats a) { return rounded<BF16>(a); };
inline constexpr auto as_f16_f = [](Floats a) { return rounded<F16>(a); };

inline constexpr auto sinh_f = [](Floats a) { return sinh(a); };
inline constexpr auto cosh_f = [](Floats a) { return cosh(a); };
inline constexpr auto asin_f = [](Floats a) { return asin(a); };
inline constexpr auto acos_f = [](Floats a) { return acos(a); };
inline constexpr auto atan_f = [](Floats a) { return atan(a); };
inline constexpr auto asinh_f = [](Floats a) { return asinh(a); };
inline constexpr auto acosh_f = [](Floats a) { return acosh(a); };
inline constexpr auto atanh_f = [](Floats a) { return atanh(a); };
inline constexpr auto erf_inv_f = [](Floats a) { return erf_inv(a); };
inline constexpr auto nextafter_f = [](Floats a, Floats b) {
  const Ints step = (Ints(a < b) ^ Ints(a > 0.0f)) | 1;  // away from zero, or -1 towards it
  const Ints bits = a == 0.0f ? sign_bit(b) | 1 : wrapped(wrapping(as_ints(a)) + wrapping(step));
  return (a != a) | (b != b) ? broadcast(kNaN) : a == b ? b : as_floats(bits);
};

inline constexpr auto add_i = [](Ints a, Ints b) { return wrapped(wrapping(a) + wrapping(b)); };
inline constexpr auto sub_i = [](Ints a, Ints b) { return wrapped(wrapping(a) - wrapping(b)); };
inline constexpr auto mul_i = [](Ints a, Ints b) { return wrapped(wrapping(a) * wrapping(b)); };
inline constexpr auto div_i = [](Ints a, Ints b) { return b == 0 ? broadcast(int32_t{-1}) : a / safe_divisor(a, b); };
inline constexpr auto rem_i = [](Ints a, Ints b) { return b == 0 ? a : a % safe_divisor(a, b); };
inline constexpr auto max_i = [](Ints a, Ints b) { return max(a, b); };
inline constexpr auto min_i = [](Ints a, Ints b) { return min(a, b); };
inline constexpr auto neg_i = [](Ints a) { return wrapped(0u - wrapping(a)); };
inline constexpr auto abs_i = [](Ints a) { return a < 0 ? wrapped(0u - wrapping(a)) : a; };
inline constexpr auto sign_i = [](Ints a) { return Ints(Ints(a < 0) - Ints(a > 0)); };
inline constexpr auto and_i = [](Ints a, Ints b) { return a & b; };
inline constexpr auto or_i = [](Ints a, Ints b) { return a | b; };
inline constexpr auto xor_i = [](Ints a, Ints b) { return a ^ b; };
inline constexpr auto not_i = [](Ints a) { return ~a; };
inline constexpr auto shl_i = [](Ints a, Ints b) { return ~shifts_out(b) & wrapped(wrapping(a) << wrapping(b & 31)); };
inline constexpr auto shra_i = [](Ints a, Ints b) { return shifts_out(b) ? a >> 31 : a >> (b & 31); };
inline constexpr auto shrl_i = [](Ints a, Ints b) { return ~shifts_out(b) & wrapped(wrapping(a) >> wrapping(b & 31)); };
inline constexpr auto eq_i = [](Ints a, Ints b) { return Ints(a == b); };
inline constexpr auto ne_i = [](Ints a, Ints b) { return Ints(a != b); };
inline constexpr auto lt_i = [](Ints a, Ints b) { return Ints(a < b); };
inline constexpr auto le_i = [](Ints a, Ints b) { return Ints(a <= b); };
inline constexpr auto gt_i = [](Ints a, Ints b) { return Ints(a > b); };
inline constexpr auto ge_i = [](Ints a, Ints b) { return Ints(a >= b); };

// How many bits are set: counted in pairs, in fours, in bytes, and the bytes added up by a product.
inline constexpr auto popcount_i = [](Ints a) {
  Uints count = wrapping(a);
  count = count - ((count >> 1) & 0x55555555u);
  count = (count & 0x33333333u) + ((count >> 2) & 0x33333333u);
  count = (count + (count >> 4)) & 0x0f0f0f0fu;
  return wrapped((count * 0x01010101u) >> 24);
};
// How many zeros stand before the highest set bit.
inline constexpr auto clz_i = [](Ints a) {
  Uints below = wrapping(a);
  for (int distance = 1; distance < 32; distance *= 2) below = below | (below >> distance);
  return popcount_i(~wrapped(below));
};

inline constexpr auto as_i8_i = [](Ints a) { return wrapped(wrapping(a) << 24) >> 24; };
inline constexpr auto as_i16_i = [](Ints a) { return wrapped(wrapping(a) << 16) >> 16; };
inline constexpr auto as_u8_i = [](Ints a) { return a & 0xff; };
inline constexpr auto as_u16_i = [](Ints a) { return a & 0xffff; };

inline constexpr auto div_u = [](Ints a, Ints b) {
  return b == 0 ? broadcast(int32_t{-1}) : wrapped(wrapping(a) / wrapping(b == 0 ? broadcast(int32_t{1}) : b));
};
inline constexpr auto rem_u = [](Ints a, Ints b) {
  return b == 0 ? a : wrapped(wrapping(a) % wrapping(b == 0 ? broadcast(int32_t{1}) : b));
};
inline constexpr auto max_u = [](Ints a, Ints b) { return wrapping(a) > wrapping(b) ? a : b; };
inline constexpr auto min_u = [](Ints a, Ints b) { return wrapping(a) < wrapping(b) ? a : b; };
inline constexpr auto lt_u = [](Ints a, Ints b) { return Ints(wrapping(a) < wrapping(b)); };
inline constexpr auto le_u = [](Ints a, Ints b) { return Ints(wrapping(a) <= wrapping(b)); };
inline constexpr auto gt_u = [](Ints a, Ints b) { return Ints(wrapping(a) > wrapping(b)); };
inline constexpr auto ge_u = [](Ints a, Ints b) { return Ints(wrapping(a) >= wrapping(b)); };

inline constexpr auto and_b = and_i;
inline constexpr auto or_b = or_i;
inline constexpr auto xor_b = xor_i;
inline constexpr auto not_b = not_i;
inline constexpr auto eq_b = [](Ints a, Ints b) { return ~(a ^ b); };
inline constexpr auto ne_b = xor_i;
inline constexpr auto select = [](Ints a, Ints b, Ints c) { return (a & b) | (~a & c); };

inline constexpr auto f_from_i = [](Ints a) { return to_floats(a); };
inline constexpr auto f_from_u = [](Ints a) { return __builtin_convertvector(wrapping(a), Floats); };
inline constexpr auto f_from_b = [](Ints a) { return as_floats(a & as_ints(broadcast(1.0f))); };
inline constexpr auto i_from_f = [](Floats a) {
  Ints result = truncate(a);
  result = a >= 0x1p31f ? broadcast(std::numeric_limits<int32_t>::max()) : result;
  result = a < -0x1p31f ? broadcast(std::numeric_limits<int32_t>::min()) : result;
  return result & Ints(a == a);
};
inline constexpr auto u_from_f = [](Floats a) {
  // From 2^31 on the lowest bits are zero, so that half of it has the same digits.
  Ints result = a >= 0x1p31f ? wrapped(wrapping(truncate(a * 0.5f)) << 1) : truncate(a);
  result = a >= 0x1p32f ? broadcast(int32_t{-1}) : result;
  return result & Ints(a > 0.0f);
};
inline constexpr auto i_from_b = [](Ints a) { return a & 1; };
inline constexpr auto b_from_f = [](Floats a) { return Ints(a != 0.0f); };
inline constexpr auto b_from_i = [](Ints a) { return Ints(a != 0); };
inline constexpr auto f_bits_i = [](Ints a) { return as_floats(a); };
inline constexpr auto i_bits_f = [](Floats a) { return as_ints(a); };

// What the parser makes of pairs of instructions; not part of the graph format. In clamps and caps c and d are constants, no NaN.
inline constexpr auto fused_add_relu = [](Floats a, Floats b) { return at_least(a + b, Floats{}); };
inline constexpr auto fused_fma_relu = [](Floats a, Floats b, Floats c) { return at_least(fma(a, b, c), Floats{}); };
inline constexpr auto fused_fma_add = [](Floats a, Floats b, Floats c, Floats d) { return fma(a, b, c) + d; };
inline constexpr auto fused_fma_add_relu = [](Floats a, Floats b, Floats c, Floats d) {
  return at_least(fused_fma_add(a, b, c, d), Floats{});
};
inline constexpr auto fused_relu_cap = [](Floats a, Floats c) { return at_most(relu_f(a), c); };
inline constexpr auto fused_add_relu_cap = [](Floats a, Floats b, Floats c) { return at_most(fused_add_relu(a, b), c); };
inline constexpr auto fused_fma_relu_cap = [](Floats a, Floats b, Floats c, Floats d) {
  return at_most(fused_fma_relu(a, b, c), d);
};
inline constexpr auto fused_clamp = [](Floats a, Floats c, Floats d) { return at_most(at_least(a, c), d); };
inline constexpr auto fused_silu = [](Floats a) { return a / (1.0f + exp(-a)); };
inline constexpr auto fused_gelu = [](Floats a, Floats b, Floats c) { return (a * b) * erfc(-a * c); };
inline constexpr auto fused_tanh_gate = [](Floats a, Floats b) { return a / (1.0f + exp(b * -2.0f)); };
inline constexpr auto fused_sub_mul = [](Floats a, Floats b, Floats c) { return (a - b) * c; };
inline constexpr auto fused_sub_fma = [](Floats a, Floats b, Floats c, Floats d) { return fma(a - b, c, d); };
inline constexpr auto fused_mul_mul = [](Floats a, Floats b, Floats c) { return (a * b) * c; };

}  // namespace aspen::cpu::ASPEN_TARGET::lane_ops
