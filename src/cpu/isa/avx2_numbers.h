// Arithmetic of AVX2 with FMA: what score functions are computed with, and all that compiled code
// of them needs of the set. Embedded as text: it includes nothing of the library but what is
// embedded.
#pragma once

#include <immintrin.h>

#include "algorithm/exp2_polynomial.h"

namespace fulmen::cpu {

struct Avx2Numbers {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kExp2Degree = 5;

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static Vec broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec fused(Vec a, Vec b, Vec c) { return fma(a, b, c); }  // a b + c, rounded once
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }    // a NaN in b is kept
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }    // a NaN in b is kept
  static Vec abs(Vec a) { return _mm256_andnot_ps(set1(-0.0F), a); }
  static Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
  static Vec floor(Vec a) { return _mm256_floor_ps(a); }
  static Vec ceil(Vec a) { return _mm256_ceil_ps(a); }
  static Vec round(Vec a) {  // halves to even
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec trunc(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
  // x < y ? a : b, lane by lane; false on NaN.
  static Vec select_less(Vec x, Vec y, Vec a, Vec b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_LT_OQ));
  }

  // 2^x; 0 for -inf and all below -127. x = n + f with n the nearest integer, which is added to the
  // exponent of 2^f. The integer of a NaN is INT_MIN, whose low bits leave the NaN as it is. x
  // stays under 128: scores come here less their row's maximum. Several vectors go through each
  // step together: their chains of dependent instructions hide each other's latency.
  template <int kDegree = kExp2Degree, int kCount>
  static __attribute__((always_inline)) void exp2(Vec (&x)[kCount]) {
    constexpr const float* kC = algorithm::Exp2Centered<kDegree>::kCoefficients;
    __m256i n[kCount];
    Vec p[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = max(set1(-127.0F), x[i]);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) n[i] = _mm256_cvtps_epi32(x[i]);
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) x[i] = sub(x[i], _mm256_cvtepi32_ps(n[i]));
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) p[i] = fma(set1(kC[kDegree]), x[i], set1(kC[kDegree - 1]));
#pragma GCC unroll 8
    for (int power = kDegree - 2; power >= 0; --power) {
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) p[i] = fma(p[i], x[i], set1(kC[power]));
    }
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
      x[i] = _mm256_castsi256_ps(
          _mm256_add_epi32(_mm256_castps_si256(p[i]), _mm256_slli_epi32(n[i], 23)));
    }
  }
  template <int kDegree = kExp2Degree>
  static __attribute__((always_inline)) Vec exp2(Vec x) {
    Vec one[1] = {x};
    exp2<kDegree>(one);
    return one[0];
  }
};

}  // namespace fulmen::cpu
