// The instructions of block programs (cpu/block_ops.inc) on one lane of 32 bits, for code that is generated for the device: for
// each name a function of that name. A lane is a float32, an int32 or a bool, all ones or all zeros.
//
// Float functions are CUDA's, whose errors its programming guide lists and nobody here has measured; on the host they are the C
// library's, so that whatever surrounds them can be tested there.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "block.h"

namespace aspen::cuda::scalar {

ASPEN_DEVICE uint32_t mask(bool condition) { return condition ? ~0u : 0u; }
ASPEN_DEVICE bool is_nan(float a) { return a != a; }

// As XLA converts: towards zero, to the nearest bound, 0 for NaN.
ASPEN_DEVICE int32_t to_int(float a) {
  if (!(a >= -0x1p31f)) return is_nan(a) ? 0 : INT32_MIN;
  return a >= 0x1p31f ? INT32_MAX : static_cast<int32_t>(a);
}
ASPEN_DEVICE uint32_t to_uint(float a) {
  if (!(a > 0.0f)) return 0;
  return a >= 0x1p32f ? ~0u : static_cast<uint32_t>(a);
}

ASPEN_DEVICE float inverse_erf(float a) {
#ifdef __CUDACC__
  return erfinvf(a);
#else
  // Newton's method with Halley's correction, in double, from a first guess (Winitzki, 2008) that is right to a percent.
  const double x = std::fabs(a);
  if (!(x < 1)) return x == 1 ? std::copysign(INFINITY, a) : NAN;
  if (x < 1e-6) return static_cast<float>(a / M_2_SQRTPI);
  const double log = std::log1p(-x * x), half = 2 / (M_PI * 0.147) + log / 2;
  double y = std::sqrt(std::sqrt(half * half - log / 0.147) - half);
  for (int i = 0; i < 4; ++i) {
    const double over = x < 0.5 ? std::erf(y) - x : (1 - x) - std::erfc(y);
    const double step = over / (M_2_SQRTPI * std::exp(-y * y));
    y -= step / (1 + y * step);
  }
  return static_cast<float>(std::copysign(y, a));
#endif
}

ASPEN_DEVICE int32_t quotient(int32_t a, int32_t b) {
  return b == 0 ? -1 : b == -1 ? static_cast<int32_t>(0u - static_cast<uint32_t>(a)) : a / b;
}
ASPEN_DEVICE int32_t remainder(int32_t a, int32_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }

ASPEN_DEVICE uint32_t bits_set(uint32_t a) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__popc(a));
#else
  return static_cast<uint32_t>(__builtin_popcount(a));
#endif
}
ASPEN_DEVICE uint32_t leading_zeros(uint32_t a) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__clz(a));
#else
  return a == 0 ? 32u : static_cast<uint32_t>(__builtin_clz(a));
#endif
}

#define ASPEN_LANES_1 uint32_t lane_a
#define ASPEN_LANES_2 uint32_t lane_a, uint32_t lane_b
#define ASPEN_LANES_3 uint32_t lane_a, uint32_t lane_b, uint32_t lane_c
#define ASPEN_READ_1(type, read) [[maybe_unused]] const type a = read(lane_a)
#define ASPEN_READ_2(type, read) ASPEN_READ_1(type, read), b = read(lane_b)
#define ASPEN_READ_3(type, read) ASPEN_READ_2(type, read), c = read(lane_c)
#define ASPEN_SCALAR(name, count, type, read, result) \
  ASPEN_DEVICE uint32_t name(ASPEN_LANES_##count) {   \
    ASPEN_READ_##count(type, read);                   \
    return result;                                    \
  }
// From floats to a float; from floats, int32 and uint32 to any lane.
#define ASPEN_F(name, count, result) ASPEN_SCALAR(name, count, float, as_float, as_bits(result))
#define ASPEN_FROM_F(name, count, result) ASPEN_SCALAR(name, count, float, as_float, result)
#define ASPEN_I(name, count, result) ASPEN_SCALAR(name, count, int32_t, static_cast<int32_t>, static_cast<uint32_t>(result))
#define ASPEN_U(name, count, result) ASPEN_SCALAR(name, count, uint32_t, static_cast<uint32_t>, result)

ASPEN_U(copy, 1, a)

ASPEN_F(add_f, 2, a + b)
ASPEN_F(sub_f, 2, a - b)
ASPEN_F(mul_f, 2, a* b)
ASPEN_F(div_f, 2, a / b)
ASPEN_F(max_f, 2, is_nan(a) || a > b || (a == b && lane_a >> 31 == 0) ? a : b)
ASPEN_F(min_f, 2, is_nan(a) || a < b || (a == b && lane_a >> 31 != 0) ? a : b)
ASPEN_F(pow_f, 2, powf(a, b))
ASPEN_F(rem_f, 2, fmodf(a, b))
ASPEN_F(atan2_f, 2, atan2f(a, b))
ASPEN_F(fma_f, 3, fmaf(a, b, c))
ASPEN_F(neg_f, 1, -a)
ASPEN_F(abs_f, 1, fabsf(a))
ASPEN_F(sign_f, 1, fabsf(a) > 0.0f ? copysignf(1.0f, a) : a)
ASPEN_F(floor_f, 1, floorf(a))
ASPEN_F(ceil_f, 1, ceilf(a))
ASPEN_F(round_f, 1, roundf(a))
ASPEN_F(round_even_f, 1, rintf(a))
ASPEN_F(sqrt_f, 1, sqrtf(a))
ASPEN_F(rsqrt_f, 1, 1.0f / sqrtf(a))
ASPEN_F(cbrt_f, 1, cbrtf(a))
ASPEN_F(exp_f, 1, expf(a))
ASPEN_F(exp2_f, 1, exp2f(a))
ASPEN_F(expm1_f, 1, expm1f(a))
ASPEN_F(log_f, 1, logf(a))
ASPEN_F(log1p_f, 1, log1pf(a))
ASPEN_F(tanh_f, 1, tanhf(a))
ASPEN_F(logistic_f, 1, 1.0f / (1.0f + expf(-a)))
ASPEN_F(erf_f, 1, erff(a))
ASPEN_F(erfc_f, 1, erfcf(a))
ASPEN_F(sin_f, 1, sinf(a))
ASPEN_F(cos_f, 1, cosf(a))
ASPEN_F(tan_f, 1, tanf(a))
ASPEN_F(relu_f, 1, a <= 0.0f ? 0.0f : a)
ASPEN_F(square_f, 1, a* a)
ASPEN_F(as_bf16_f, 1, rounded_to_bf16(a))
ASPEN_F(as_f16_f, 1, widened_f16(narrowed_f16(a)))
ASPEN_F(sinh_f, 1, sinhf(a))
ASPEN_F(cosh_f, 1, coshf(a))
ASPEN_F(asin_f, 1, asinf(a))
ASPEN_F(acos_f, 1, acosf(a))
ASPEN_F(atan_f, 1, atanf(a))
ASPEN_F(asinh_f, 1, asinhf(a))
ASPEN_F(acosh_f, 1, acoshf(a))
ASPEN_F(atanh_f, 1, atanhf(a))
ASPEN_F(erf_inv_f, 1, inverse_erf(a))
ASPEN_F(nextafter_f, 2, nextafterf(a, b))
ASPEN_FROM_F(is_finite_f, 1, mask(fabsf(a) <= FLT_MAX))
ASPEN_FROM_F(eq_f, 2, mask(a == b))
ASPEN_FROM_F(ne_f, 2, mask(a != b))
ASPEN_FROM_F(lt_f, 2, mask(a < b))
ASPEN_FROM_F(le_f, 2, mask(a <= b))
ASPEN_FROM_F(gt_f, 2, mask(a > b))
ASPEN_FROM_F(ge_f, 2, mask(a >= b))

ASPEN_U(add_i, 2, a + b)
ASPEN_U(sub_i, 2, a - b)
ASPEN_U(mul_i, 2, a* b)
ASPEN_I(div_i, 2, quotient(a, b))
ASPEN_I(rem_i, 2, remainder(a, b))
ASPEN_I(max_i, 2, a > b ? a : b)
ASPEN_I(min_i, 2, a < b ? a : b)
ASPEN_U(neg_i, 1, 0u - a)
ASPEN_I(abs_i, 1, a < 0 ? 0u - static_cast<uint32_t>(a) : static_cast<uint32_t>(a))
ASPEN_I(sign_i, 1, (a > 0) - (a < 0))
ASPEN_U(and_i, 2, a& b)
ASPEN_U(or_i, 2, a | b)
ASPEN_U(xor_i, 2, a ^ b)
ASPEN_U(not_i, 1, ~a)
ASPEN_U(shl_i, 2, b > 31 ? 0u : a << b)
ASPEN_I(shra_i, 2, a >> (static_cast<uint32_t>(b) > 31 ? 31 : b))
ASPEN_U(shrl_i, 2, b > 31 ? 0u : a >> b)
ASPEN_I(eq_i, 2, mask(a == b))
ASPEN_I(ne_i, 2, mask(a != b))
ASPEN_I(lt_i, 2, mask(a < b))
ASPEN_I(le_i, 2, mask(a <= b))
ASPEN_I(gt_i, 2, mask(a > b))
ASPEN_I(ge_i, 2, mask(a >= b))
ASPEN_U(as_i8_i, 1, static_cast<uint32_t>(static_cast<int8_t>(a)))
ASPEN_U(as_i16_i, 1, static_cast<uint32_t>(static_cast<int16_t>(a)))
ASPEN_U(as_u8_i, 1, a & 0xff)
ASPEN_U(as_u16_i, 1, a & 0xffff)
ASPEN_U(popcount_i, 1, bits_set(a))
ASPEN_U(clz_i, 1, leading_zeros(a))
ASPEN_U(div_u, 2, b == 0 ? ~0u : a / b)
ASPEN_U(rem_u, 2, b == 0 ? a : a % b)
ASPEN_U(max_u, 2, a > b ? a : b)
ASPEN_U(min_u, 2, a < b ? a : b)
ASPEN_U(lt_u, 2, mask(a < b))
ASPEN_U(le_u, 2, mask(a <= b))
ASPEN_U(gt_u, 2, mask(a > b))
ASPEN_U(ge_u, 2, mask(a >= b))

ASPEN_U(and_b, 2, a& b)
ASPEN_U(or_b, 2, a | b)
ASPEN_U(xor_b, 2, a ^ b)
ASPEN_U(not_b, 1, ~a)
ASPEN_U(eq_b, 2, ~(a ^ b))
ASPEN_U(ne_b, 2, a ^ b)
ASPEN_U(select, 3, (a & b) | (~a & c))

ASPEN_I(f_from_i, 1, as_bits(static_cast<float>(a)))
ASPEN_U(f_from_u, 1, as_bits(static_cast<float>(a)))
ASPEN_U(f_from_b, 1, as_bits(a != 0 ? 1.0f : 0.0f))
ASPEN_FROM_F(i_from_f, 1, static_cast<uint32_t>(to_int(a)))
ASPEN_FROM_F(u_from_f, 1, to_uint(a))
ASPEN_U(i_from_b, 1, a & 1)
ASPEN_FROM_F(b_from_f, 1, mask(a != 0.0f))
ASPEN_U(b_from_i, 1, mask(a != 0))
ASPEN_U(f_bits_i, 1, a)
ASPEN_U(i_bits_f, 1, a)

// log(e^a + e^b), for running results; infinities and NaN as they come.
ASPEN_DEVICE uint32_t add_of_exponentials(uint32_t lane_a, uint32_t lane_b) {
  const float a = as_float(lane_a), b = as_float(lane_b), most = as_float(max_f(lane_a, lane_b));
  if (is_nan(most) || fabsf(most) > FLT_MAX) return as_bits(most);
  return as_bits(most + log1pf(expf((a < b ? a : b) - most)));
}

#undef ASPEN_U
#undef ASPEN_I
#undef ASPEN_FROM_F
#undef ASPEN_F
#undef ASPEN_SCALAR
#undef ASPEN_READ_3
#undef ASPEN_READ_2
#undef ASPEN_READ_1
#undef ASPEN_LANES_3
#undef ASPEN_LANES_2
#undef ASPEN_LANES_1

}  // namespace aspen::cuda::scalar
