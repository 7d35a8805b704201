// The instructions themselves.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

typedef float Float4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef __bf16 Bf8 __attribute__((ext_vector_type(8)));

template <class T>
FULMEN_DEVICE void mfma_f32_16x16x32(float (&d)[4], const Words<4>& a, const Words<4>& b) {
  Float4 c = {d[0], d[1], d[2], d[3]};
  if constexpr (kIsHalf<T>) {
    c = __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(Half8, a),
                                               __builtin_bit_cast(Half8, b), c, 0, 0, 0);
  } else {
    c = __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(Bf8, a),
                                                __builtin_bit_cast(Bf8, b), c, 0, 0, 0);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) d[e] = c[e];
}

FULMEN_DEVICE Words<2> lds_load_transposed(int offset) {
  return __builtin_bit_cast(Words<2>,
                            __builtin_amdgcn_ds_read_tr16_b64_v4i16(
                                (__attribute__((address_space(3))) Short4*)(lds_memory + offset)));
}

}  // namespace fulmen::kernels
