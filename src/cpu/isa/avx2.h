// The vocabulary of AVX2 with FMA and F16C: vectors of 8 floats, 16 registers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "cpu/isa/avx2_numbers.h"
#include "cpu/tile/storage.h"

namespace fulmen::cpu {

struct Avx2 : Avx2Numbers {
  static constexpr const char* kName = "avx2";
  static constexpr int kGroup = 1;  // operand elements that share a 32-bit word: one fp32
  // Query vectors x key rows of the score product's register block: 12 sums, 4 operands. The rows
  // divide a tile of 128 keys, which 2 x 6 would not.
  static constexpr int kQkVecs = 3;
  static constexpr int kQkKeys = 4;
  static constexpr int kPvVecs = 3;  // most output vectors of the second product's register block
  static constexpr int kPvRows = 4;  // its query rows, also where fewer vectors are left: 8 would
                                     // spill
  static constexpr int kPvRowsNarrow = 4;
  static constexpr int kSoftmaxVecs = 4;  // query vectors whose exponentials are computed together

  static Vec iota() { return _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0); }
  // test == -inf ? a : b.
  static Vec select_minus_infinity(Vec test, Vec a, Vec b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(test, set1(-__builtin_inff()), _CMP_EQ_OQ));
  }
  static Vec replace_minus_infinity(Vec x, Vec by) { return select_minus_infinity(x, by, x); }
  static bool all_equal(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) == 0xFF;
  }
  static float reduce_add(Vec x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float reduce_max(Vec x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  // sum + the products of the words' elements.
  static Vec dot(Vec sum, Vec a, Vec b) {
#ifdef __clang__
    // clang schedules the next row's broadcast above this row's last product: that is a 17th
    // register, and spills halve the speed. Volatile statements keep their place among loads.
    asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    return sum;
#else
    return fma(a, b, sum);
#endif
  }

  // n elements from p as floats, the rest of the lanes 0; reads nothing beyond them.
  static Vec load_as_float(const float* p) { return load(p); }
  static Vec load_as_float(const Fp16* p) { return _mm256_cvtph_ps(load_half(p)); }
  static Vec load_as_float(const Bf16* p) { return widen_bf16(load_half(p)); }
  static Vec load_as_float(const uint8_t* p) {  // booleans: 0 for false, above 0 for true
    return widen_bytes(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static Vec load_as_float(const int8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static Vec load_as_float(const float* p, int n) { return _mm256_maskload_ps(p, mask(n)); }
  static Vec load_as_float(const Fp16* p, int n) { return _mm256_cvtph_ps(load_half(p, n)); }
  static Vec load_as_float(const Bf16* p, int n) { return widen_bf16(load_half(p, n)); }
  static Vec load_as_float(const uint8_t* p, int n) {
    return widen_bytes(
        _mm_cvtsi64_si128(static_cast<int64_t>(load_bytes(p, static_cast<unsigned>(n)))));
  }

  static void store_from_float(float* p, Vec x) { store(p, x); }
  static void store_from_float(Fp16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_fp16(x));
  }
  static void store_from_float(Bf16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(x));
  }
  static void store_from_float(float* p, Vec x, int n) { _mm256_maskstore_ps(p, mask(n), x); }
  static void store_from_float(Fp16* p, Vec x, int n) { store_half(p, narrow_fp16(x), n); }
  static void store_from_float(Bf16* p, Vec x, int n) { store_half(p, narrow_bf16(x), n); }

  // rows[i] lane j <-> rows[j] lane i.
  static __attribute__((always_inline)) void transpose(Vec (&rows)[8]) {
    Vec t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    Vec quad[8];  // quad[i]: columns i and i + 4 of rows 0..3; quad[4 + i]: of rows 4..7
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      quad[4 * i] = unpacklo_pairs(t[4 * i], t[4 * i + 2]);
      quad[4 * i + 1] = unpackhi_pairs(t[4 * i], t[4 * i + 2]);
      quad[4 * i + 2] = unpacklo_pairs(t[4 * i + 1], t[4 * i + 3]);
      quad[4 * i + 3] = unpackhi_pairs(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x20);
      rows[4 + i] = _mm256_permute2f128_ps(quad[i], quad[4 + i], 0x31);
    }
  }

  // Four vectors -> one whose every group of four lanes holds the four sums (maxima) across lanes.
  static Vec quad_add(const Vec (&x)[4]) { return quad_reduce<add>(x); }
  static Vec quad_max(const Vec (&x)[4]) { return quad_reduce<max>(x); }
  template <Vec (*kCombine)(Vec, Vec)>
  static Vec quad_reduce(const Vec (&x)[4]) {
    const Vec ab = kCombine(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    const Vec cd = kCombine(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    const Vec quads = kCombine(unpacklo_pairs(ab, cd), unpackhi_pairs(ab, cd));
    return kCombine(quads, _mm256_permute2f128_ps(quads, quads, 0x01));
  }
  static Vec load_quad(const float* p) {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
  }
  static void store_quad(float* p, Vec x) { _mm_storeu_ps(p, _mm256_castps256_ps128(x)); }
  static Vec unpacklo_pairs(Vec a, Vec b) {
    return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  }
  static Vec unpackhi_pairs(Vec a, Vec b) {
    return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
  }

  // Past the caches, to a multiple of the vector's size; end_streams before others may read it.
  static void stream_from_float(float* p, Vec x) { _mm256_stream_ps(p, x); }
  static void stream_from_float(Fp16* p, Vec x) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_fp16(x));
  }
  static void stream_from_float(Bf16* p, Vec x) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(x));
  }
  static void end_streams() { _mm_sfence(); }

  // An instruction of its own: g++ takes a function that only prefetches for one without effect,
  // and drops the call.
  static void prefetch(const void* p) {
    asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p)));
  }

  // The first n lanes.
  static __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  }

  // 16-bit elements. AVX2 has no masked access to them: a tail goes in pieces of 8, 4, 2 and 1
  // bytes.
  static __m128i load_half(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static __m128i load_half(const void* p, int n) {
    const auto bytes = static_cast<unsigned>(n) * 2;
    if (bytes < 8) return _mm_cvtsi64_si128(static_cast<int64_t>(load_bytes(p, bytes)));
    return _mm_set_epi64x(
        static_cast<int64_t>(load_bytes(static_cast<const char*>(p) + 8, bytes - 8)),
        load_as<int64_t>(p));
  }
  static void store_half(void* p, __m128i x, int n) {
    auto* to = static_cast<char*>(p);
    auto left = static_cast<unsigned>(n) * 2;
    auto bits = static_cast<uint64_t>(_mm_cvtsi128_si64(x));
    if (left >= 8) {
      std::memcpy(to, &bits, 8);
      to += 8;
      left -= 8;
      bits = static_cast<uint64_t>(_mm_extract_epi64(x, 1));
    }
    if ((left & 4) != 0) {
      std::memcpy(to, &bits, 4);
      to += 4;
      bits >>= 32;
    }
    if ((left & 2) != 0) std::memcpy(to, &bits, 2);
  }
  // Up to 8 bytes, zeros above them.
  static uint64_t load_bytes(const void* p, unsigned bytes) {
    const auto* from = static_cast<const char*>(p);
    if (bytes >= 8) return load_as<uint64_t>(from);
    uint64_t bits = 0;
    unsigned at = 0;
    if ((bytes & 4) != 0) {
      bits = load_as<uint32_t>(from);
      at = 4;
    }
    if ((bytes & 2) != 0) {
      bits |= static_cast<uint64_t>(load_as<uint16_t>(from + at)) << (8 * at);
      at += 2;
    }
    if ((bytes & 1) != 0) bits |= static_cast<uint64_t>(load_as<uint8_t>(from + at)) << (8 * at);
    return bits;
  }
  template <class T>
  static T load_as(const void* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }

  static Vec widen_bytes(__m128i x) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)); }
  static Vec widen_bf16(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static __m128i narrow_fp16(Vec x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static __m128i narrow_bf16(Vec x) {  // round to nearest even; a NaN stays one
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const Vec quiet = _mm256_or_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    const Vec safe =
        _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(safe), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }
};

}  // namespace fulmen::cpu
