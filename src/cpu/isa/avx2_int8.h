// AVX2's products of int8: codes as pairs of 16 bits, whose products vpmaddwd adds exactly.
// (vpmaddubsw would take four codes, but its sums of two products of 8 bits saturate.)
#pragma once

#include "cpu/isa/avx2.h"
#include "cpu/isa/float_codes.h"

namespace fulmen::cpu {

struct Avx2Int8 : Avx2 {
  using Numbers = Avx2;
  static constexpr int kGroup = 2;  // codes of a word
  static constexpr float kKeyOffset = 0;
  // 12 sums, 2 operands, a broadcast and a product, which vpmaddwd does not add up: all 16
  // registers. 8 instructions of the 32 load, of 3 x 4 without a register for an operand 16.
  static constexpr int kQkVecs = 2;
  static constexpr int kQkKeys = 6;

  static Vec dot(Vec sum, Vec a, Vec b) {
    return floats(_mm256_add_epi32(bits(sum), _mm256_madd_epi16(bits(a), bits(b))));
  }
  static Vec number(Vec sum) { return _mm256_cvtepi32_ps(bits(sum)); }
  static Vec code(Vec rounded) { return sub(rounded, set1(kCodeOrigin)); }
  static void store_codes(float* to, Vec rounded) {
    const __m256i codes = _mm256_sub_epi32(bits(rounded), bits(set1(kCodeOrigin)));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1)));
  }
  static void store_key_codes(float* to, Vec rounded) { store_codes(to, rounded); }

  static __m256i bits(Vec x) { return _mm256_castps_si256(x); }
  static Vec floats(__m256i x) { return _mm256_castsi256_ps(x); }
};

}  // namespace fulmen::cpu
