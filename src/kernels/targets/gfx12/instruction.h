// The instruction itself, and the exchange of a wave's halves.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

typedef float Float8 __attribute__((ext_vector_type(8)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef short Short8 __attribute__((ext_vector_type(8)));
typedef int Codes2 __attribute__((ext_vector_type(2)));
typedef int Sums8 __attribute__((ext_vector_type(8)));

template <class T>
FULMEN_DEVICE void wmma_f32_16x16x16(float (&d)[8], const Words<4>& a, const Words<4>& b) {
  Float8 c = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
  if constexpr (kIsHalf<T>) {
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(Half8, a),
                                                         __builtin_bit_cast(Half8, b), c);
  } else {
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(Short8, a),
                                                          __builtin_bit_cast(Short8, b), c);
  }
  // LLVM before 23 does not know that the instruction is convergent either.
  c = keep_here(c);
#pragma unroll
  for (int e = 0; e < 8; ++e) d[e] = c[e];
}

// d: bits of sums of int8 codes.
FULMEN_DEVICE void wmma_i32_16x16x16(float (&d)[8], const Words<2>& a, const Words<2>& b) {
  const Float8 sums = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
  constexpr bool kSigned = true, kClamp = false;
  Float8 c = __builtin_bit_cast(
      Float8, __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(
                  kSigned, __builtin_bit_cast(Codes2, a), kSigned, __builtin_bit_cast(Codes2, b),
                  __builtin_bit_cast(Sums8, sums), kClamp));
  c = keep_here(c);
#pragma unroll
  for (int e = 0; e < 8; ++e) d[e] = c[e];
}

// Codes of E4M3.
FULMEN_DEVICE void wmma_f32_16x16x16_fp8(float (&d)[8], const Words<2>& a, const Words<2>& b) {
  Float8 c = {d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]};
  c = __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(__builtin_bit_cast(Codes2, a),
                                                           __builtin_bit_cast(Codes2, b), c);
  c = keep_here(c);
#pragma unroll
  for (int e = 0; e < 8; ++e) d[e] = c[e];
}

// The register of lane ^ 16. The first flag is fetch-inactive: the lane's register is read, whether
// the lane is on or not.
FULMEN_DEVICE unsigned permlanex16(unsigned x) {
  return keep_here(__builtin_amdgcn_permlanex16(x, x, 0x76543210U, 0xfedcba98U, true, true));
}

}  // namespace fulmen::kernels
