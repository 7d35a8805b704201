// AVX2 with AVX-VNNI: vpdpbusd adds the products of four unsigned and four signed bytes. Keys are
// the unsigned ones, as their codes and 128; what that adds is a row's own and is taken off with
// what it starts from.
#pragma once

#include "cpu/isa/avx2_int8.h"
#include "cpu/isa/numbers_for.h"

namespace fulmen::cpu {

struct AvxVnni : NumbersFor<struct AvxVnniSet, Avx2> {
  using Numbers = NumbersFor<AvxVnniSet, Avx2>;
  static constexpr const char* kName = "avx_vnni";
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 128;

  // a: of queries; b: of keys. By assembly: around its intrinsic g++ 12 copies each sum twice.
  static Vec dot(Vec sum, Vec a, Vec b) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(b), "x"(a));
    return sum;
  }
  static Vec number(Vec sum) { return Avx2Int8::number(sum); }
  static Vec code(Vec rounded) { return Avx2Int8::code(rounded); }
  static void store_codes(float* to, Vec rounded) { store_bytes(to, bytes_of(rounded)); }
  static void store_key_codes(float* to, Vec rounded) {
    store_bytes(to, _mm_xor_si128(bytes_of(rounded), _mm_set1_epi8(static_cast<char>(0x80))));
  }

 private:
  static __m128i bytes_of(Vec rounded) {
    const __m256i codes =
        _mm256_sub_epi32(Avx2Int8::bits(rounded), Avx2Int8::bits(set1(kCodeOrigin)));
    const __m128i halves =
        _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    return _mm_packs_epi16(halves, halves);
  }
  static void store_bytes(float* to, __m128i bytes) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
  }
};

}  // namespace fulmen::cpu
