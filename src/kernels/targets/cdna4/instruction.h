// The instructions themselves.
#pragma once

#include "core/base.h"

namespace fulmen::kernels {

typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float16 __attribute__((ext_vector_type(16)));
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

template <class T>
FULMEN_DEVICE void mfma_f32_32x32x16(float (&d)[16], const Words<4>& a, const Words<4>& b) {
  Float16 c;
#pragma unroll
  for (int e = 0; e < 16; ++e) c[e] = d[e];
  if constexpr (kIsHalf<T>) {
    c = __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(Half8, a),
                                               __builtin_bit_cast(Half8, b), c, 0, 0, 0);
  } else {
    c = __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(Bf8, a),
                                                __builtin_bit_cast(Bf8, b), c, 0, 0, 0);
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) d[e] = c[e];
}

// clang 22's bit_cast of an element of a vector takes the first one.
template <class Both>
FULMEN_DEVICE void set_both(float& a, float& b, const Both& both) {
  const unsigned first = both[0], second = both[1];
  a = __builtin_bit_cast(float, first);
  b = __builtin_bit_cast(float, second);
}
// Lanes 16 to 31 and 48 to 63 of a for 0 to 15 and 32 to 47 of b.
FULMEN_DEVICE void swap_rows_of_16(float& a, float& b) {
  set_both(a, b,
           __builtin_amdgcn_permlane16_swap(__builtin_bit_cast(unsigned, a),
                                            __builtin_bit_cast(unsigned, b), false, false));
}
// The upper half of a for the lower one of b.
FULMEN_DEVICE void swap_halves(float& a, float& b) {
  set_both(a, b,
           __builtin_amdgcn_permlane32_swap(__builtin_bit_cast(unsigned, a),
                                            __builtin_bit_cast(unsigned, b), false, false));
}

// The larger one by one instruction: clang makes quiet what comes out of a swap, by two more.
FULMEN_DEVICE float larger_after_swap(float a, float b) {
  float larger_one;
  asm("v_max_f32 %0, %1, %2" : "=v"(larger_one) : "v"(a), "v"(b));
  return larger_one;
}

FULMEN_DEVICE Words<2> lds_load_transposed(int offset) {
  return __builtin_bit_cast(Words<2>,
                            __builtin_amdgcn_ds_read_tr16_b64_v4i16(
                                (__attribute__((address_space(3))) Short4*)(lds_memory + offset)));
}

}  // namespace fulmen::kernels
