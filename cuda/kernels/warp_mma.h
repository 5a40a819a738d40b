// The matrix instructions of a warp (PTX ISA, "Matrix fragments for mma"), and what they do lane by lane on the host.
//
// Lane l of a fragment belongs to group g = l / 4 and is the t = l % 4 th in it. For C and D of m16n8, register 2 h + i of a lane
// is element (g + 8 h, 2 t + i). Of A [16, kDepth] register 2 s + h begins at element (g + 8 h, s kDepth / 2 + p t), of B
// [kDepth, 8] register s at element (s kDepth / 2 + p t, g). It has p = kDepth / 8 elements, neighbours along the depth.
#pragma once

#include "block.h"

namespace aspen::cuda {

// Float32 inputs, of which the tensor cores read sign, exponent and the first 10 bits: m16n8k8. Rounded to those first: cutting
// off the rest would make every product smaller.
struct Tf32 {
  using Element = float;
  static constexpr int kDepth = 8;
};
// Tf32 whose columns were rounded when they became known (targets/cuda/passes/tf32.py).
struct RoundedTf32 {
  using Element = float;
  static constexpr int kDepth = 8;
};
ASPEN_DEVICE uint32_t rounded_to_tf32(uint32_t bits) {
#ifdef __CUDACC__
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(as_float(bits)));
  return rounded;
#else
  // To the nearest, halves away from zero; infinity as it is. Of NaN there is one.
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fffffff;
  return (bits & 0x7f800000) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000u;
#endif
}
// Rounds where the rest is cut off by who reads it, which the assembler does not know of wgmma: two instructions, not three.
ASPEN_DEVICE uint32_t with_half_of_tf32(uint32_t bits) {
#ifdef __CUDACC__
  return fabsf(as_float(bits)) < as_float(0x7f800000) ? bits + 0x1000 : bits;
#else
  return (bits & 0x7f800000) == 0x7f800000 ? bits : bits + 0x1000;
#endif
}
// Inputs of 16 bits: m16n8k16.
struct Bf16 {
  using Element = uint16_t;
  static constexpr int kDepth = 16;
};
struct F16 {
  using Element = uint16_t;
  static constexpr int kDepth = 16;
};

using FragmentA = Fragment<4>;  // [16, Kind::kDepth]
using FragmentB = Fragment<2>;  // [Kind::kDepth, 8]
using FragmentC = Fragment<4>;  // [16, 8], float32

#ifndef __CUDACC__
inline float widened(Bf16, uint16_t bits) { return as_float(static_cast<uint32_t>(bits) << 16); }
inline float widened(F16, uint16_t bits) { return widened_f16(bits); }

// What tensor cores read of a float32.
inline float cut_off(uint32_t bits) { return as_float(bits & 0xffffe000u); }

// What a lane's register of A or B holds: one element, or the first or second half.
template <class Kind>
float element(Kind kind, const uint32_t* registers_of_lane, int register_of, int half) {
  if constexpr (sizeof(typename Kind::Element) == 4) {
    return cut_off(registers_of_lane[register_of]);
  } else {
    return widened(kind, static_cast<uint16_t>(registers_of_lane[register_of] >> (16 * half)));
  }
}
#endif

// Multiplies and adds, by one instruction. a: [16, Kind::kDepth], b: [Kind::kDepth, 8] -> c += a * b: [16, 8].
template <class Kind>
ASPEN_DEVICE void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b) {
#ifdef __CUDACC__
  const auto as = [](uint32_t& bits) -> float& { return reinterpret_cast<float&>(bits); };
#define ASPEN_MMA(shape_and_types)                                                                          \
  asm volatile("mma.sync.aligned." shape_and_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(as(c.own[0])), "+f"(as(c.own[1])), "+f"(as(c.own[2])), "+f"(as(c.own[3]))             \
               : "r"(a.own[0]), "r"(a.own[1]), "r"(a.own[2]), "r"(a.own[3]), "r"(b.own[0]), "r"(b.own[1]))
  if constexpr (sizeof(typename Kind::Element) == 4) {
    ASPEN_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
  } else if constexpr (kIsSame<Kind, Bf16>) {
    ASPEN_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  } else {
    ASPEN_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  }
#undef ASPEN_MMA
#else
  // Registers hold 1 or 2 neighbours along k; t counts them, and each further half of k is 4 t away.
  constexpr int kPack = Kind::kDepth / 8;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < Kind::kDepth; ++k) {
        const int lane = k / kPack % 4, half_of_k = k / (4 * kPack), in_register = k % kPack;
        sum += element(Kind(), a.all[row % 8 * 4 + lane], row / 8 + 2 * half_of_k, in_register) *
               element(Kind(), b.all[column * 4 + lane], half_of_k, in_register);
      }
      uint32_t& to = c.all[row % 8 * 4 + column / 2][row / 8 * 2 + column % 2];
      to = as_bits(as_float(to) + sum);
    }
  }
#endif
}

// Loads squares of 8 rows of 16 bytes from shared memory, register i from square i: four or two as they are (lane l gets the l %
// 4 th 4 bytes of row l / 4), or two of 16-bit elements whose rows change places with columns. Row r of square i is at row(8 i +
// r), aligned to 16 bytes. row(0 ... 8 kCount - 1): [16 bytes] each -> fragment: [kWarp lanes, kCount registers].
template <bool kTransposed, int kCount, class Row>
ASPEN_DEVICE void load_squares(Fragment<kCount>& fragment, const Row& row) {
  static_assert(kCount == 2 || (kCount == 4 && !kTransposed));
#ifdef __CUDACC__
  // The first 8 kCount lanes say where the rows are; the others must give valid addresses too.
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row(static_cast<int>(threadIdx.x) % (8 * kCount))));
  uint32_t (&to)[kCount] = fragment.own;
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  }
#else
  fragment.each([&](int lane, int i, uint32_t& to) {
    uint16_t halves[2];
    for (int half = 0; half < 2; ++half) {
      const int r = kTransposed ? lane % 4 * 2 + half : lane / 4, c = kTransposed ? lane / 4 : lane % 4 * 2 + half;
      const void* const from = row(8 * i + r);
      if (reinterpret_cast<uintptr_t>(from) % 16 != 0) __builtin_trap();
      std::memcpy(&halves[half], static_cast<const uint16_t*>(from) + c, 2);
    }
    std::memcpy(&to, halves, sizeof to);
  });
#endif
}

}  // namespace aspen::cuda
