// For files that are compiled for AVX-512 BF16 and run where it may be missing.
#pragma once

#include "cpu/isa/avx512_bf16.h"

namespace fulmen::testing {

// The vocabulary of pairs without the instructions that only AVX-512 BF16 has.
struct EmulatedPairs : cpu::Avx512Bf16 {
  static Vec dot(Vec sum, Vec a, Vec b) { return fma(odd(a), odd(b), fma(even(a), even(b), sum)); }
  static Vec pack_sequence(Vec a, Vec b) {
    return _mm512_castsi512_ps(
        _mm512_inserti64x4(_mm512_castsi256_si512(narrow_bf16(a)), narrow_bf16(b), 1));
  }
  static Vec pack_pair(Vec a, Vec b) {
    return pair_halves(_mm512_castps_si512(pack_sequence(a, b)));
  }

  using Avx512::store_from_float;
  using Avx512::stream_from_float;

 private:
  static Vec even(Vec x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16));
  }
  static Vec odd(Vec x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }
};

}  // namespace fulmen::testing
