// Keys and values as they are stored: formats of fulmen::DType (docs/guide/quantized_kv.md), and
// their numbers in fp32, which are exact.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

// The numbers of fulmen::DType (gpu/launch/quantized.cpp compares them).
constexpr int kInt8 = 5, kE4m3 = 6, kE5m2 = 7, kE4m3Fnuz = 8, kE5m2Fnuz = 9, kQ8_0 = 10, kQ4_0 = 11,
              kQ4_1 = 12, kQ5_0 = 13, kQ5_1 = 14;
constexpr int kKeyFormat = kConfig.kv_dtype, kValueFormat = kConfig.v_dtype;

FULMEN_DEVICE constexpr bool is_block_format(int format) {
  return format >= kQ8_0 && format <= kQ5_1;
}
FULMEN_DEVICE constexpr bool has_minimum(int format) { return format == kQ4_1 || format == kQ5_1; }
FULMEN_DEVICE constexpr bool has_fifth_bits(int format) {
  return format == kQ5_0 || format == kQ5_1;
}
constexpr int kBlockNumbers = 32;
// A block is [d] [m] [fifth bits] [codes]: where its codes are.
FULMEN_DEVICE constexpr int codes_at(int format) {
  return (has_minimum(format) ? 4 : 2) + (has_fifth_bits(format) ? 4 : 0);
}
FULMEN_DEVICE constexpr int bytes_of_block(int format) {
  return codes_at(format) + (format == kQ8_0 ? kBlockNumbers : kBlockNumbers / 2);
}

// The bits of an fp16 that has an fp8's digits; its value is 1 / fp8_factor() of the fp8's.
template <int kFormat>
FULMEN_DEVICE unsigned fp8_half(unsigned x) {
  const unsigned size = x & 0x7FU, sign = (x & 0x80U) << 8U;
  if constexpr (kFormat == kE5m2) return x << 8U;
  if constexpr (kFormat == kE4m3) return sign | (size == 0x7FU ? 0x7E00U : size << 7U);
  if constexpr (kFormat == kE4m3Fnuz) return x == 0x80U ? 0x7E00U : sign | size << 7U;
  // E5M2 FNUZ is half of what fp16 says; the two lowest exponents are its subnormal numbers.
  return x == 0x80U ? 0x7E00U : sign | (size < 8 ? size << 7U : (size << 8U) - 0x400U);
}
FULMEN_DEVICE constexpr float fp8_factor(int format) {
  return format == kE4m3 ? 256.0F : format == kE4m3Fnuz ? 128.0F : 1.0F;
}

// Whether the chip has instructions that convert a format's numbers to fp32.
template <int kFormat>
constexpr bool kConvertsFormat =
    kConvertsFp8 && (kFnuzCodes ? kFormat == kE4m3Fnuz || kFormat == kE5m2Fnuz
                                : kFormat == kE4m3 || kFormat == kE5m2);
template <int kFormat>
constexpr bool kIsE5m2 = kFormat == kE5m2 || kFormat == kE5m2Fnuz;

// The number of byte i of x.
template <int kFormat>
FULMEN_DEVICE float number_of_byte(unsigned x, int i) {
  if constexpr (kConvertsFormat<kFormat>) return fp8_to_float<kIsE5m2<kFormat>>(x, i);
  x >>= 8U * static_cast<unsigned>(i);
  if constexpr (kFormat == kInt8 || kFormat == kQ8_0)
    return static_cast<float>(static_cast<signed char>(static_cast<unsigned char>(x)));
  const float half = half_to_float(static_cast<unsigned short>(fp8_half<kFormat>(x & 0xFFU)));
  return fp8_factor(kFormat) == 1 ? half : fp8_factor(kFormat) * half;
}

// 8 bytes from memory. kWhole: at a multiple of kAlignment (2 or 8) bytes, else anywhere; then
// those from `count` on are 0.
template <bool kWhole, int kAlignment>
FULMEN_DEVICE Words<2> load_bytes(const unsigned char* p, int count = 8) {
  if constexpr (kWhole && kAlignment == 8) return global_load(reinterpret_cast<const Words<2>*>(p));
  if constexpr (kWhole) return global_load_unaligned<Words<2>>(p);
  Words<2> words{};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n < count) words.word[n / 4] |= static_cast<unsigned>(global_load(p + n)) << (8U * (n % 4));
  }
  return words;
}
template <bool kWhole>
FULMEN_DEVICE float load_half(const unsigned char* p) {
  if constexpr (kWhole) return to_float(global_load(reinterpret_cast<const Half*>(p)));
  return half_to_float(static_cast<unsigned short>(
      static_cast<unsigned>(global_load(p)) | static_cast<unsigned>(global_load(p + 1)) << 8U));
}

// Numbers [dim, dim + 8) of a row in blocks; dim is a multiple of 8.
template <int kFormat, bool kWhole>
FULMEN_DEVICE void load_block_numbers(const unsigned char* row, int dim, float (&number)[8]) {
  const unsigned char* const block = row + dim / kBlockNumbers * bytes_of_block(kFormat);
  const int part = dim % kBlockNumbers / 8;
  const float d = load_half<kWhole>(block);
  const float minimum = has_minimum(kFormat) ? load_half<kWhole>(block + 2) : 0.0F;
  // Nibbles: the low ones are numbers 0 to 15.
  const int first = kFormat == kQ8_0 ? 8 * part : 8 * (part % 2);
  const Words<2> bytes = load_bytes<kWhole, 2>(block + codes_at(kFormat) + first);
  unsigned fifth = 0;
  if constexpr (has_fifth_bits(kFormat)) fifth = global_load(block + codes_at(kFormat) - 4 + part);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if constexpr (kFormat == kQ8_0) {
      number[e] = number_of_byte<kQ8_0>(bytes.word[e / 4], e % 4) * d;
    } else {
      const unsigned byte = bytes.word[e / 4] >> (8U * (e % 4));
      unsigned code = (part < 2 ? byte : byte >> 4U) & 15U;
      if constexpr (has_fifth_bits(kFormat)) code |= (fifth >> static_cast<unsigned>(e) & 1U) << 4U;
      // The product is exact.
      constexpr float kZero = has_fifth_bits(kFormat) ? 16.0F : 8.0F;
      const auto x = static_cast<float>(code);
      number[e] = has_minimum(kFormat) ? x * d + minimum : (x - kZero) * d;
    }
  }
}

// Numbers [dim, dim + 8) of a row of `dims`, without its scale; those past its end are 0. Rows of
// blocks are whole blocks.
template <int kFormat>
FULMEN_DEVICE void load_numbers(const unsigned char* row, int dim, int dims, float (&number)[8]) {
#pragma unroll
  for (float& x : number) x = 0;
  if ((kWholeRows || is_block_format(kFormat)) && !kExactDims && dim >= dims) return;
  if constexpr (is_block_format(kFormat)) {
    load_block_numbers<kFormat, kWholeRows>(row, dim, number);
  } else if constexpr (kFormat < kInt8) {
    using T = ElementOf < kFormat<kInt8 ? kFormat : 0>::Type;
    constexpr int kVectors = sizeof(T) / 2;
    const T* const from = reinterpret_cast<const T*>(row) + dim;
    if constexpr (kWholeRows) {
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const Words<4> words = global_load(reinterpret_cast<const Words<4>*>(from) + n);
#pragma unroll
        for (int e = 0; e < 8 / kVectors; ++e)
          number[8 / kVectors * n + e] =
              of_bits<T>(words.word[e * kVectors / 2] >> (kVectors == 1 ? 16U * (e % 2) : 0U));
      }
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        if (dim + e < dims) number[e] = to_float(global_load(from + e));
      }
    }
  } else {
    const Words<2> bytes = load_bytes<kWholeRows, 8>(row + dim, dims - dim);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      // No byte that is 0 where there is none is a NaN.
      number[e] = number_of_byte<kFormat>(bytes.word[e / 4], e % 4);
    }
  }
}

}  // namespace fulmen::kernels
