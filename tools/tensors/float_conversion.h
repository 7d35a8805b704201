// Conversion of fp32 to the storage formats, rounding to nearest even. It prepares inputs and is
// not fast.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "fulmen/tensor.h"

namespace fulmen::tools {

inline uint16_t to_bf16_bits(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // NaN stays NaN.
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline uint16_t to_fp16_bits(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);  // NaN
  // Rounds to 65536 or more: infinity.
  if (magnitude >= 0x477FF000) return static_cast<uint16_t>(sign | 0x7C00);
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is subnormal: adding 0.5 puts its units in the last place of a float,
    // rounded by the addition.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000));
  }
  return static_cast<uint16_t>(sign |
                               ((magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13));
}

// Converts count numbers from fp32 into dtype (fp32, fp16 or bf16).
inline void convert_from_fp32(const float* from, DType dtype, void* to,
                              std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    if (dtype == DType::fp32) {
      static_cast<float*>(to)[i] = from[i];
    } else {
      static_cast<uint16_t*>(to)[i] =
          dtype == DType::bf16 ? to_bf16_bits(from[i]) : to_fp16_bits(from[i]);
    }
  }
}

}  // namespace fulmen::tools
