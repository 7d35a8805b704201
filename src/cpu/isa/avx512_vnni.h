// AVX-512 VNNI: vpdpbusd adds the products of four unsigned and four signed bytes, as in
// cpu/isa/avx_vnni.h.
#pragma once

#include "cpu/isa/avx512.h"
#include "cpu/isa/numbers_for.h"
#include "cpu/tile/key_codes.h"

namespace fulmen::cpu {

// Values: the vocabulary of values, those of fp32 or pairs of bf16.
template <class Values>
struct Avx512Vnni : Values {
  using typename Values::Vec;
  using Numbers = NumbersFor<Avx512Vnni, Avx512>;
  static constexpr const char* kName = "avx512_vnni";
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 128;

  static Vec broadcast(const float* p) { return Avx512::broadcast(p); }
  // a: of queries; b: of keys. By assembly: around its intrinsic g++ 12 copies each sum twice.
  static Vec dot(Vec sum, Vec a, Vec b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(b), "v"(a));
    return sum;
  }
  static Vec number(Vec sum) { return _mm512_cvtepi32_ps(bits(sum)); }
  static Vec code(Vec rounded) { return Values::sub(rounded, Values::set1(kCodeOrigin)); }
  // The lowest byte of a rounded number is its code.
  static void store_codes(float* to, Vec rounded) {
    store_bytes(to, _mm512_cvtepi32_epi8(bits(rounded)));
  }
  static void store_key_codes(float* to, Vec rounded) {
    store_bytes(to, _mm_xor_si128(_mm512_cvtepi32_epi8(bits(rounded)),
                                  _mm_set1_epi8(static_cast<char>(0x80))));
  }

 private:
  static __m512i bits(Vec x) { return _mm512_castps_si512(x); }
  static void store_bytes(float* to, __m128i bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  }
};

}  // namespace fulmen::cpu
