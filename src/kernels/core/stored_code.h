// A number's code in int8 or fp8, as reference::encode_kv() has it: the nearest, ties to even, up
// to the largest.
#pragma once

#include "core/stored_number.h"

namespace fulmen::kernels {

FULMEN_DEVICE constexpr float largest_code(int format) {
  return format == kInt8       ? 127.0F
         : format == kE4m3     ? 448.0F
         : format == kE4m3Fnuz ? 240.0F
                               : 57344.0F;
}

// x >= 0, to the nearest multiple of `unit`, a power of two; x is below 2^22 of them.
FULMEN_DEVICE float rounded_to(float x, float unit) {
  const float large = 12582912.0F * unit;  // 2^23 + 2^22
  return (x + large) - large;
}

template <int kFormat>
FULMEN_DEVICE unsigned code_of(float x) {
  constexpr float kLargest = largest_code(kFormat);
  const float size = absolute(x) < kLargest ? absolute(x) : kLargest;  // of a NaN: kLargest
  const bool negative = (float_bits(x) >> 31U) != 0;
  if constexpr (kFormat == kInt8) {
    const int code = x == x ? static_cast<int>(rounded_to(size, 1.0F)) : 0;
    return static_cast<unsigned>(negative ? -code : code);
  } else {
    constexpr bool kFnuz = kFormat == kE4m3Fnuz || kFormat == kE5m2Fnuz;
    constexpr int kMantissa = kFormat == kE4m3 || kFormat == kE4m3Fnuz ? 3 : 2;
    constexpr int kBias = (kMantissa == 3 ? 7 : 15) + (kFnuz ? 1 : 0);
    if (x != x) return kFnuz ? 0x80U : 0x7FU;
    // The exponent of fp32's bits; that of the format's subnormal numbers at least.
    const int exponent = static_cast<int>(float_bits(size) >> 23U) - 127,
              used = exponent > 1 - kBias ? exponent : 1 - kBias;
    const float unit = bits_float(static_cast<unsigned>(used - kMantissa + 127) << 23U);
    // In units, at most 2^(kMantissa + 1): a carry into the exponent is right as it is.
    const auto places = static_cast<int>(rounded_to(size, unit) / unit);
    const auto code = static_cast<unsigned>(((used + kBias - 1) << kMantissa) + places);
    return code | (negative && !(kFnuz && code == 0) ? 0x80U : 0U);
  }
}

}  // namespace fulmen::kernels
