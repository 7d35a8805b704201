// Numbers in the block formats (docs/guide/quantized_kv.md), with the bytes of
// reference::encode_block(): made by 32 lanes, each of which has one number of the block.
#pragma once

#include "core/stored_number.h"

namespace fulmen::kernels {

constexpr int kLanesOfBlock = kBlockNumbers;
// Codes of a format of nibbles.
FULMEN_DEVICE constexpr int levels_of(int format) { return has_fifth_bits(format) ? 32 : 16; }

// What all lanes know of their block.
struct BlockRange {
  float low = 0, high = 0;
  float widest = 0;  // the number of the largest size, the first of several
  bool finite = false;

  FULMEN_DEVICE static BlockRange of(float x, int lane) {
    float low = x, high = x, widest = x;
    auto at = static_cast<unsigned>(lane);
    unsigned finite = absolute(x) < kInfinity ? 1 : 0;  // a NaN is not
#pragma unroll
    for (int mask = 1; mask < kLanesOfBlock; mask *= 2) {
      low = -larger(-low, -shuffle_xor(low, mask));
      high = larger(high, shuffle_xor(high, mask));
      const float other = shuffle_xor(widest, mask);
      const unsigned other_at = shuffle_xor(at, mask);
      finite &= shuffle_xor(finite, mask);
      const float size = absolute(widest), other_size = absolute(other);
      if (other_size > size || (other_size == size && other_at < at)) {
        widest = other;
        at = other_at;
      }
    }
    return {low, high, widest, finite != 0};
  }
};

// The nearest integer, halves away from zero, as std::round(); |x| is below 2^23.
FULMEN_DEVICE float rounded_away(float x) {
  const float size = absolute(x);
  const float whole = round_down(size);
  return copy_sign(size - whole >= 0.5F ? whole + 1 : whole, x);
}

FULMEN_DEVICE void store_half(unsigned char* to, float x) {
  // One NaN for all, as to_fp16() has it.
  const unsigned bits = x == x ? static_cast<unsigned>(from_float<Half>(x).bits) : 0x7E00U;
  global_store(to, static_cast<unsigned char>(bits));
  global_store(to + 1, static_cast<unsigned char>(bits >> 8U));
}

// A lane's code. A block with a number that is not finite has codes of 0 and a scale of NaN; a
// subnormal scale has no inverse.
template <int kFormat>
FULMEN_DEVICE unsigned block_code(float x, const BlockRange& block, float inverse) {
  if constexpr (kFormat == kQ8_0) {
    const float place = rounded_product(x, inverse);
    if (!block.finite || !(absolute(place) < kInfinity)) return 0;
    const float code = rounded_away(absolute(place) < 127.0F ? place : copy_sign(127.0F, place));
    return static_cast<unsigned>(static_cast<int>(code)) & 0xFFU;
  } else {
    constexpr int kLevels = levels_of(kFormat);
    constexpr float kZero = has_minimum(kFormat) ? 0.5F : kLevels / 2 + 0.5F, kLast = kLevels - 1;
    const float place = rounded_product(has_minimum(kFormat) ? x - block.low : x, inverse) + kZero;
    if (!block.finite || !(absolute(place) < kInfinity) || place < 0) return 0;
    return static_cast<unsigned>(place < kLast ? place : kLast);
  }
}

// Writes a block, if `stored`; all lanes come here together.
template <int kFormat>
FULMEN_DEVICE void store_block(unsigned char* to, float x, int lane, bool stored) {
  constexpr int kLevels = levels_of(kFormat);
  const BlockRange block = BlockRange::of(x, lane);
  float d = kFormat == kQ8_0       ? absolute(block.widest) / 127.0F
            : has_minimum(kFormat) ? (block.high - block.low) / static_cast<float>(kLevels - 1)
                                   : block.widest / static_cast<float>(-kLevels / 2);
  if (!block.finite) d = kNan;
  const float inverse = block.finite && d != 0 ? 1.0F / d : 0.0F;
  const unsigned code = block_code<kFormat>(x, block, inverse);
  unsigned char* const codes = to + codes_at(kFormat);
  if (stored && lane == 0) {
    store_half(to, d);
    if constexpr (has_minimum(kFormat)) store_half(to + 2, block.low);
  }
  if constexpr (kFormat == kQ8_0) {
    if (stored) global_store(codes + lane, static_cast<unsigned char>(code));
  } else {
    // Numbers 16 to 31 are high nibbles.
    const unsigned other = shuffle_xor(code, kBlockNumbers / 2);
    if (stored && lane < kBlockNumbers / 2)
      global_store(codes + lane, static_cast<unsigned char>((code & 15U) | (other & 15U) << 4U));
    if constexpr (has_fifth_bits(kFormat)) {
      unsigned fifth = code >> 4U << static_cast<unsigned>(lane);
#pragma unroll
      for (int mask = 1; mask < kLanesOfBlock; mask *= 2) fifth |= shuffle_xor(fifth, mask);
      if (stored && lane < 4)
        global_store(codes - 4 + lane, static_cast<unsigned char>(fifth >> (8U * lane)));
    }
  }
}

}  // namespace fulmen::kernels
