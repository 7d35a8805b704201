// Exact conversions between float and the 16-bit storage formats, round to nearest even. Plain
// integer code: it runs anywhere and the compiler vectorises it; kernels have their instruction
// set's conversions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "fulmen/tensor.h"

namespace fulmen::reference {

inline float from_bf16(uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  // NaN stays NaN: rounding could make it inf.
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float from_fp16(uint16_t bits) noexcept {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t magnitude = bits & 0x7FFFU;
  if (magnitude >= 0x7C00U)
    return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13));  // inf, NaN
  // Shifted into place the exponent is 112 too small; the product is exact, for subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

inline uint16_t to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U)
    return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  // 65520 and more round to infinity.
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);
  // Below 2^-14: adding 0.5 leaves the subnormal's bits, rounded to even, in the low mantissa.
  if (magnitude < 0x38800000U) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

// Element index of a float tensor of any dtype.
inline float load_float(const void* data, DType dtype, int64_t index) noexcept {
  if (dtype == DType::fp32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::bf16 ? from_bf16(bits) : from_fp16(bits);
}

inline void store_float(void* data, DType dtype, int64_t index, float value) noexcept {
  if (dtype == DType::fp32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = dtype == DType::bf16 ? to_bf16(value) : to_fp16(value);
  }
}

inline constexpr double kUnitOfFloat = 0x1p-24;  // what rounding to fp32 can do at most, relatively

// What rounding a probability to the dtype can do at most, relatively; fp32 kernels do not round it
// again.
inline double probability_unit(DType dtype) noexcept {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0;
}

// The same for probabilities of which the largest is 1, absolutely: half of the distance of fp16's
// subnormal numbers.
inline double least_probability_error(DType dtype) noexcept {
  return dtype == DType::fp16 ? 0x1p-25 : 0;
}

// Half the distance of the dtype's numbers around x: what rounding x to the nearest can do at most.
inline double half_ulp(DType dtype, double x) noexcept {
  const int digits = dtype == DType::fp32 ? 24 : dtype == DType::fp16 ? 11 : 8;
  // Below it lie the subnormal numbers.
  const int least_exponent = dtype == DType::fp16 ? -14 : -126;
  const int exponent = x == 0 || !std::isfinite(x) ? least_exponent : std::ilogb(x);
  return std::ldexp(1.0, (exponent < least_exponent ? least_exponent : exponent) - digits);
}

// The nearest value that dtype can hold.
inline float round_to(DType dtype, float value) noexcept {
  return dtype == DType::fp32   ? value
         : dtype == DType::bf16 ? from_bf16(to_bf16(value))
                                : from_fp16(to_fp16(value));
}

}  // namespace fulmen::reference
