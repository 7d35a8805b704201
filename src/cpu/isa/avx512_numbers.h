// Arithmetic of AVX-512 (F, DQ): what score functions are computed with, and all that compiled code
// of them needs of the set. Embedded as text: it includes nothing of the library but what is
// embedded.
#pragma once

#include <immintrin.h>

#include "algorithm/exp2_polynomial.h"

namespace fulmen::cpu {

struct Avx512Numbers {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kExp2Degree = 5;

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static Vec broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }  // a b + c, rounded once
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }    // a NaN in b is kept
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }    // a NaN in b is kept
  static Vec abs(Vec a) { return _mm512_abs_ps(a); }
  static Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
  static Vec floor(Vec a) { return rounded<_MM_FROUND_TO_NEG_INF>(a); }
  static Vec ceil(Vec a) { return rounded<_MM_FROUND_TO_POS_INF>(a); }
  static Vec round(Vec a) { return rounded<_MM_FROUND_TO_NEAREST_INT>(a); }  // halves to even
  static Vec trunc(Vec a) { return rounded<_MM_FROUND_TO_ZERO>(a); }
  template <int kDirection>
  static Vec rounded(Vec a) {
    return _mm512_roundscale_ps(a, kDirection | _MM_FROUND_NO_EXC);
  }
  // x < y ? a : b, lane by lane; false on NaN.
  static Vec select_less(Vec x, Vec y, Vec a, Vec b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
  }

  // 2^x; 0 for -inf. x = n + f with n = floor(x): scalef multiplies by 2^floor(x), and both it and
  // reduce run beside the FMA units. Several vectors go through each step together: their chains of
  // dependent instructions hide each other's latency. constant: of the polynomial, 1.
  template <int kDegree = kExp2Degree, int kCount>
  static __attribute__((always_inline)) void exp2(Vec (&x)[kCount], float constant = 1.0F) {
    constexpr const float* kC = algorithm::Exp2OnUnit<kDegree>::kCoefficients;
    Vec f[kCount], p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) f[i] = _mm512_reduce_ps(x[i], _MM_FROUND_TO_NEG_INF);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) p[i] = fma(set1(kC[kDegree]), f[i], set1(kC[kDegree - 1]));
#pragma GCC unroll 8
    for (int power = kDegree - 2; power >= 0; --power) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i)
        p[i] = fma(p[i], f[i], set1(power == 0 ? constant : kC[power]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = _mm512_scalef_ps(p[i], x[i]);
  }
  template <int kDegree = kExp2Degree>
  static Vec exp2(Vec x) {
    Vec one[1] = {x};
    exp2<kDegree>(one);
    return one[0];
  }
};

}  // namespace fulmen::cpu
