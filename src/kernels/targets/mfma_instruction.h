// The instruction itself: CDNA2 and CDNA3.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float16 __attribute__((ext_vector_type(16)));
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef short Short4 __attribute__((ext_vector_type(4)));

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x16(float (&d)[4], const Words<2>& a, const Words<2>& b) {
  Float4 c = {d[0], d[1], d[2], d[3]};
  if constexpr (kIsHalf<T>) {
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Half4, a),
                                              __builtin_bit_cast(Half4, b), c, 0, 0, 0);
  } else {
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(Short4, a),
                                                  __builtin_bit_cast(Short4, b), c, 0, 0, 0);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = c[e];
}

template <class T>
FULMEN_DEVICE void mfma_f32_32x32x8(float (&d)[16], const Words<2>& a, const Words<2>& b) {
  Float16 c;
#pragma unroll
  for (int e = 0; e < 16; ++e) c[e] = d[e];
  if constexpr (kIsHalf<T>) {
    c = __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(Half4, a),
                                             __builtin_bit_cast(Half4, b), c, 0, 0, 0);
  } else {
    c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Short4, a),
                                                 __builtin_bit_cast(Short4, b), c, 0, 0, 0);
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) d[e] = c[e];
}

}  // namespace fulmen::kernels
