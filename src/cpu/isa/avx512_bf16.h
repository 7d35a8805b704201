// AVX-512 with BF16 dot products: a 32-bit word holds a pair of bf16, one instruction adds both
// products of a pair.
#pragma once

#include "cpu/isa/avx512.h"

namespace fulmen::cpu {

struct Avx512Bf16 : Avx512 {
  static constexpr const char* kName = "avx512_bf16";
  static constexpr int kGroup = 2;
  static constexpr int kExp2Degree = 3;  // the result is rounded to bf16 at once

  template <int kDegree = kExp2Degree, int kCount>
  static __attribute__((always_inline)) void exp2(Vec (&x)[kCount]) {
    Avx512::exp2<kDegree>(x);
  }
  template <int kDegree = kExp2Degree>
  static Vec exp2(Vec x) {
    return Avx512::exp2<kDegree>(x);
  }

  // Pairs that are read where the caller has them are aligned for one bf16 only.
  static Vec broadcast(const void* p) {
    int word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm512_castsi512_ps(_mm512_set1_epi32(word));
  }
  static Vec dot(Vec sum, Vec a, Vec b) {
    return _mm512_dpbf16_ps(sum, bf16_pairs(a), bf16_pairs(b));
  }

  // 16 words from 2 n elements at p (fewer: zeros follow), as stored.
  static Vec load_words(const void* p) { return load(static_cast<const float*>(p)); }
  static Vec load_words(const void* p, int elements) {
    return _mm512_castsi512_ps(
        _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1ULL << elements) - 1ULL), p));
  }

  // Words (a[i], b[i]) of two rows of 32 elements: i = 0..15 in low, 16..31 in high.
  static void interleave(Vec a, Vec b, Vec& low, Vec& high) {
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_or_si512(first, _mm512_set1_epi16(16));
    low = _mm512_castsi512_ps(
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), first, _mm512_castps_si512(b)));
    high = _mm512_castsi512_ps(
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), second, _mm512_castps_si512(b)));
  }

  // Words (bf16(a[i]), bf16(b[i])).
  static Vec pack_pair(Vec a, Vec b) {
    const auto both = _mm512_cvtne2ps_pbh(b, a);
    return pair_halves(reinterpret_cast<const __m512i&>(both));
  }

  // bf16 of a's lanes, then of b's, as words of neighbours.
  static Vec pack_sequence(Vec a, Vec b) {
    const auto both = _mm512_cvtne2ps_pbh(b, a);
    return reinterpret_cast<const Vec&>(both);
  }

  using Avx512::store_from_float;
  static void store_from_float(Bf16* p, Vec x) {
    const auto narrow = _mm512_cvtneps_pbh(x);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<const __m256i&>(narrow));
  }
  static void store_from_float(Bf16* p, Vec x, int n) {
    const auto narrow = _mm512_cvtneps_pbh(x);
    _mm256_mask_storeu_epi16(p, mask(n), reinterpret_cast<const __m256i&>(narrow));
  }

  using Avx512::stream_from_float;
  static void stream_from_float(Bf16* p, Vec x) {
    const auto narrow = _mm512_cvtneps_pbh(x);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<const __m256i&>(narrow));
  }

  // Elements 0..15 and 16..31 -> words of (i, 16 + i).
  static Vec pair_halves(__m512i both) {
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(order, both));
  }
  static __m512bh bf16_pairs(Vec x) { return reinterpret_cast<const __m512bh&>(x); }
};

}  // namespace fulmen::cpu
