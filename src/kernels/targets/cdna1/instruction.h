// The instructions themselves.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

typedef float Float4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef short Short2 __attribute__((ext_vector_type(2)));

// bf16: by 8 of the 16 k at a time, those of each lane's first two elements and then the others.
template <class T>
FULMEN_DEVICE void mfma_f32_16x16x16(float (&d)[4], const Words<2>& a, const Words<2>& b) {
  Float4 c = {d[0], d[1], d[2], d[3]};
  if constexpr (kIsHalf<T>) {
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Half4, a),
                                              __builtin_bit_cast(Half4, b), c, 0, 0, 0);
  } else {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      c = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(Short2, a.word[w]),
                                                __builtin_bit_cast(Short2, b.word[w]), c, 0, 0, 0);
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = c[e];
}

}  // namespace fulmen::kernels
