// 16-bit floating point of the instruction set's emulator.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "runtime/float_formats.h"

namespace fulmen::gpu::isa {

struct Half {
  uint16_t bits = 0;
};

inline float to_float(Half x) { return reference::from_fp16(x.bits); }
inline Half to_half(float x) { return {reference::to_fp16(x)}; }

// Rounds once, through a float whose last bit says whether anything was lost.
inline Half to_half(double x) {
  auto rounded = static_cast<float>(x);
  if (const auto back = static_cast<double>(rounded); std::isfinite(rounded) && back != x) {
    auto bits = std::bit_cast<uint32_t>(rounded);
    if (std::abs(back) > std::abs(x)) --bits;  // toward zero
    rounded = std::bit_cast<float>(bits | 1U);
  }
  return to_half(rounded);
}

// Rounds toward zero. Finite values that are too large become the largest number.
inline uint16_t truncate_to_half(float x) {
  const uint16_t rounded = reference::to_fp16(x);
  const float back = reference::from_fp16(rounded);
  return std::abs(back) > std::abs(x) ? static_cast<uint16_t>(rounded - 1) : rounded;
}

}  // namespace fulmen::gpu::isa
