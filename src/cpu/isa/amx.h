// AMX: matrix tiles of 16 rows x 64 bytes, eight of them; the dot products of bf16 or fp16 pairs of
// two tiles accumulate into a third in fp32. Everything between the products is AVX-512 BF16.
#pragma once

#include <cstdint>

#include "cpu/isa/avx512_bf16.h"
#include "cpu/isa/numbers_for.h"

namespace fulmen::cpu {

// The instructions. They are written as assembly because a tile's number is part of its name, and
// because g++ 12's intrinsic for the configuration tells the optimiser of 8 of its 64 bytes only.
// Element: so that each instruction set's object has a constant of its own.
template <class Element>
struct AmxTiles {
  // The thread's tiles: rows of 64 bytes each, 16 in tiles 0 to 3, upper_rows, a multiple of 4, in
  // the others.
  static void configure(int upper_rows = 16) {
    struct alignas(64) Configuration {
      constexpr explicit Configuration(uint8_t upper) {
        for (int tile = 0; tile < 8; ++tile) {
          bytes_per_row[tile] = 64;
          rows[tile] = tile < 4 ? 16 : upper;
        }
      }
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes_per_row[16] = {};
      uint8_t rows[16] = {};
    };
    static_assert(sizeof(Configuration) == 64);
    // Built anew they would be read before they are written.
    static constexpr Configuration kConfigurations[] = {Configuration(4), Configuration(8),
                                                        Configuration(12), Configuration(16)};
    asm volatile("ldtilecfg %0" : : "m"(kConfigurations[upper_rows / 4 - 1]) : "memory");
  }
  static void release() { asm volatile("tilerelease" : : : "memory"); }

  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows of 16 words, stride floats apart.
  template <int kTile>
  static void load(const float* p, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
                 :
                 : "r"(p), "r"(stride * 4), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  static void store(float* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(p), "r"(stride * 4), "i"(kTile)
                 : "memory");
  }
};

struct AmxInstructions : AmxTiles<Bf16> {
  // c[i][j] += sum over words w of the pair products a[i][w] . b[w][j].
  template <int kC, int kA, int kB>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

// The same with the products of AMX-FP16.
struct AmxFp16Instructions : AmxTiles<Fp16> {
  template <int kC, int kA, int kB>
  static void dot() {
    asm volatile("tdpfp16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

// Products of codes of int8, which are exact in 32 bits. Words: of the instruction set beside whose
// products they run, so that each one's object has functions of its own.
template <class Words>
struct AmxInt8Instructions : AmxTiles<int8_t> {
  template <int kC, int kA, int kB>
  static void dot() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

// Words of bf16. Tiles: AmxInstructions, or an emulation of them where the processor has none;
// Pairs likewise.
template <class Tiles, class Pairs = Avx512Bf16>
struct Amx : Pairs {
  using typename Pairs::Vec;
  using TileInstructions = Tiles;

  // Into L2: L1 has few lines in flight on these processors, and its room is the products'.
  static void prefetch(const void* p) { Avx512::prefetch_l2(p); }

  // Rounding to bf16 is left to the exponential's polynomial, which adds half a unit of the last
  // place: the upper half of the result is then what is nearest. (Conversions take two cycles
  // each.)
  static constexpr bool kRoundsExp2 = true;
  template <int kCount>
  static __attribute__((always_inline)) void exp2_to_round(Vec (&x)[kCount]) {
    Avx512::exp2<Pairs::kExp2Degree>(x, 1.0F + 0x1p-8F);
  }
  // Words (upper half of a, upper half of b).
  static Vec upper_halves(Vec a, Vec b) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(a), 16);
    return _mm512_castsi512_ps(_mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_castps_si512(b)));
  }
  static Vec ones() { return _mm512_castsi512_ps(_mm512_set1_epi32(0x3F803F80)); }  // words (1, 1)
};

// Words of fp16; the probabilities are rounded to it.
template <class Tiles>
struct AmxFp16 : Avx512Bf16 {
  using TileInstructions = Tiles;
  static constexpr bool kRoundsExp2 = false;
  static constexpr int kExp2Degree = 5;

  static Vec pack_pair(Vec a, Vec b) {
    return pair_halves(_mm512_castps_si512(pack_sequence(a, b)));
  }
  static Vec pack_sequence(Vec a, Vec b) {
    return _mm512_castsi512_ps(
        _mm512_inserti64x4(_mm512_castsi256_si512(narrow_fp16(a)), narrow_fp16(b), 1));
  }
};

// Words of four codes beside values of Isa.
template <class Isa, class Tiles>
struct AmxInt8 : Isa {
  using typename Isa::Vec;
  using Numbers = NumbersFor<Isa, Avx512>;
  using TileInstructions = Tiles;
  static constexpr int kGroup = 4;
  static constexpr float kKeyOffset = 0;

  static Vec number(Vec sum) { return _mm512_cvtepi32_ps(_mm512_castps_si512(sum)); }
  // The lowest byte of a rounded number is its code.
  static void store_codes(float* to, Vec rounded) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtepi32_epi8(_mm512_castps_si512(rounded)));
  }
  static void store_key_codes(float* to, Vec rounded) { store_codes(to, rounded); }
};

}  // namespace fulmen::cpu
