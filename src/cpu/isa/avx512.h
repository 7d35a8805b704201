// The vocabulary of AVX-512 (F, BW, DQ, VL): vectors of 16 floats, 32 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/avx512_numbers.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

struct Avx512 : Avx512Numbers {
  static constexpr const char* kName = "avx512";
  static constexpr int kGroup = 1;  // operand elements that share a 32-bit word: one fp32
  // 24 sums and 5 operands. With 4 x 4 Intel's processors lose more of their FMA slots beside the
  // loads: 82 % of the peak in tiles that lie in L1, where these reach 85 to 89.
  // Query vectors x key rows of the score product's register block.
  static constexpr int kQkVecs = 4;
  static constexpr int kQkKeys = 6;
  static constexpr int kPvVecs = 4;  // most output vectors of the second product's register block
  static constexpr int kPvRows = 6;  // its query rows; 8 where fewer than 3 vectors leave registers
                                     // free
  static constexpr int kPvRowsNarrow = 8;
  static constexpr int kSoftmaxVecs = 4;  // query vectors whose exponentials are computed together

  static Vec iota() { return _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
  // test == -inf ? a : b.
  static Vec select_minus_infinity(Vec test, Vec a, Vec b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(test, set1(-__builtin_inff()), _CMP_EQ_OQ), b,
                                a);
  }
  static Vec replace_minus_infinity(Vec x, Vec by) { return select_minus_infinity(x, by, x); }
  static bool all_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) == 0xFFFF; }
  static float reduce_add(Vec x) { return _mm512_reduce_add_ps(x); }
  static float reduce_max(Vec x) { return _mm512_reduce_max_ps(x); }

  // sum + the products of the words' elements.
  static Vec dot(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }

  // n elements from p as floats, the rest of the lanes 0; reads nothing beyond them.
  static Vec load_as_float(const float* p) { return load(p); }
  static Vec load_as_float(const Fp16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_as_float(const Bf16* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_as_float(const uint8_t* p) {  // booleans: 0 for false, above 0 for true
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Vec load_as_float(const int8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Vec load_as_float(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static Vec load_as_float(const Fp16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p));
  }
  static Vec load_as_float(const Bf16* p, int n) {
    return widen_bf16(_mm256_maskz_loadu_epi16(mask(n), p));
  }
  static Vec load_as_float(const uint8_t* p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask(n), p)));
  }

  // 32 fp16.
  template <class Halves>
  static void halves_as_float(const Halves& halves, Vec (&x)[2]) {
    const auto bits = reinterpret_cast<__m512i>(halves);
    x[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
    x[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
  }
  // One fp16, at any address, in all lanes.
  static Vec half_as_float(const void* p) {
    short half;
    __builtin_memcpy(&half, p, sizeof half);
    return _mm512_cvtph_ps(_mm256_set1_epi16(half));
  }
  // table[nibble] of 16 bytes' low nibbles, then of the high ones. permutexvar reads no more than
  // the four lowest bits of an index.
  static void look_up_nibbles(const uint8_t* p, Vec table, Vec (&x)[2]) {
    const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    x[0] = _mm512_permutexvar_ps(low, table);
    x[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(low, 4), table);
  }
  // The same of 5 bits; the fifth of number n is bit n of fifths. high: the table of those that
  // have it.
  static void look_up_nibbles(const uint8_t* p, const uint8_t* fifths, Vec table, Vec high,
                              Vec (&x)[2]) {
    uint32_t fifth;
    __builtin_memcpy(&fifth, fifths, sizeof fifth);
    const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i upper = _mm512_srli_epi32(low, 4);
    x[0] = _mm512_mask_blend_ps(static_cast<__mmask16>(fifth), _mm512_permutexvar_ps(low, table),
                                _mm512_permutexvar_ps(low, high));
    x[1] = _mm512_mask_blend_ps(static_cast<__mmask16>(fifth >> 16),
                                _mm512_permutexvar_ps(upper, table),
                                _mm512_permutexvar_ps(upper, high));
  }

  static void store_from_float(float* p, Vec x) { store(p, x); }
  static void store_from_float(Fp16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_fp16(x));
  }
  static void store_from_float(Bf16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
  }
  static void store_from_float(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, mask(n), x); }
  static void store_from_float(Fp16* p, Vec x, int n) {
    _mm256_mask_storeu_epi16(p, mask(n), narrow_fp16(x));
  }
  static void store_from_float(Bf16* p, Vec x, int n) {
    _mm256_mask_storeu_epi16(p, mask(n), narrow_bf16(x));
  }

  // rows[i] lane j <-> rows[j] lane i.
  static void transpose(Vec (&rows)[16]) {
    Vec t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
      const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
      rows[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
      rows[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
      rows[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
      rows[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec low = _mm512_shuffle_f32x4(rows[i], rows[4 + i], 0x44),
                high = _mm512_shuffle_f32x4(rows[i], rows[4 + i], 0xEE);
      const Vec low2 = _mm512_shuffle_f32x4(rows[8 + i], rows[12 + i], 0x44);
      const Vec high2 = _mm512_shuffle_f32x4(rows[8 + i], rows[12 + i], 0xEE);
      t[i] = _mm512_shuffle_f32x4(low, low2, 0x88);
      t[4 + i] = _mm512_shuffle_f32x4(low, low2, 0xDD);
      t[8 + i] = _mm512_shuffle_f32x4(high, high2, 0x88);
      t[12 + i] = _mm512_shuffle_f32x4(high, high2, 0xDD);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = t[i];
  }

  // Four vectors -> one whose every group of four lanes holds the four sums (maxima) across lanes.
  static Vec quad_add(const Vec (&x)[4]) {
    const Vec ab = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const Vec cd = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const Vec quads = add(unpacklo_pairs(ab, cd), unpackhi_pairs(ab, cd));
    const Vec halves = add(quads, _mm512_shuffle_f32x4(quads, quads, 0x4E));
    return add(halves, _mm512_shuffle_f32x4(halves, halves, 0xB1));
  }
  static Vec quad_max(const Vec (&x)[4]) {
    const Vec ab = max(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const Vec cd = max(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const Vec quads = max(unpacklo_pairs(ab, cd), unpackhi_pairs(ab, cd));
    const Vec halves = max(quads, _mm512_shuffle_f32x4(quads, quads, 0x4E));
    return max(halves, _mm512_shuffle_f32x4(halves, halves, 0xB1));
  }
  static Vec load_quad(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
  static void store_quad(float* p, Vec x) { _mm_storeu_ps(p, _mm512_castps512_ps128(x)); }
  static Vec unpacklo_pairs(Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  static Vec unpackhi_pairs(Vec a, Vec b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }

  // An instruction of its own: g++ takes a function that only prefetches for one without effect,
  // and drops the call.
  static void prefetch(const void* p) {
    asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
  }
  static void prefetch_l2(const void* p) {
    asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p)));
  }

  // Past the caches, to a multiple of the vector's size; end_streams before others may read it.
  static void stream_from_float(float* p, Vec x) { _mm512_stream_ps(p, x); }
  static void stream_from_float(Fp16* p, Vec x) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_fp16(x));
  }
  static void stream_from_float(Bf16* p, Vec x) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
  }
  static void end_streams() { _mm_sfence(); }

  static __mmask16 mask(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static Vec widen_bf16(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static __m256i narrow_fp16(Vec x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static __m256i narrow_bf16(Vec x) {  // round to nearest even; a NaN stays one
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i safe = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16));
  }
};

}  // namespace fulmen::cpu
