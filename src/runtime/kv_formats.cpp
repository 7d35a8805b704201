#include "runtime/kv_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/float_formats.h"

namespace fulmen::reference {
namespace {

struct Fp8 {
  int mantissa_bits;
  int bias;
  bool fnuz;
  bool infinity;
  uint8_t largest;  // its bits
};

Fp8 fp8_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp8_e4m3:
      return {3, 7, false, false, 0x7E};
    case DType::fp8_e5m2:
      return {2, 15, false, true, 0x7B};
    case DType::fp8_e4m3fnuz:
      return {3, 8, true, false, 0x7F};
    default:
      return {2, 16, true, false, 0x7F};
  }
}

bool is_nan(const Fp8& f, uint8_t bits) noexcept {
  return f.fnuz ? bits == 0x80 : (bits & 0x7FU) > f.largest + (f.infinity ? 1U : 0U);
}

// The value of magnitude bits that are a number.
float magnitude_of(const Fp8& f, unsigned magnitude) noexcept {
  const int exponent = static_cast<int>(magnitude >> static_cast<unsigned>(f.mantissa_bits));
  const auto one = 1U << static_cast<unsigned>(f.mantissa_bits);
  const unsigned mantissa = (magnitude & (one - 1U)) + (exponent > 0 ? one : 0U);
  return std::ldexp(static_cast<float>(mantissa), std::max(exponent, 1) - f.bias - f.mantissa_bits);
}

float load_fp16(const uint8_t* p) noexcept {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return from_fp16(bits);
}
void store_fp16(float x, uint8_t* p) noexcept {
  const uint16_t bits = to_fp16(x);
  std::memcpy(p, &bits, sizeof bits);
}

// What a block of numbers has: nibbles, perhaps a fifth bit of each, perhaps a minimum.
struct Nibbles {
  bool high_bits, minimum;
  int levels() const noexcept { return high_bits ? 32 : 16; }
  int codes_at() const noexcept { return 2 + (minimum ? 2 : 0) + (high_bits ? 4 : 0); }
};
Nibbles nibbles_of(DType dtype) noexcept {
  return {dtype == DType::q5_0 || dtype == DType::q5_1,
          dtype == DType::q4_1 || dtype == DType::q5_1};
}

constexpr int kHalf = static_cast<int>(kBlockNumbers) / 2;

void encode_q8_0(const float* x, uint8_t* block) noexcept {
  float most = 0;
  bool finite = true;
  for (int i = 0; i < kBlockNumbers; ++i) {
    most = std::fmax(most, std::fabs(x[i]));
    finite = finite && std::isfinite(x[i]);
  }
  const float d = finite ? most / 127.0F : std::numeric_limits<float>::quiet_NaN();
  const float inverse = finite && d != 0 ? 1.0F / d : 0.0F;
  store_fp16(d, block);
  for (int i = 0; i < kBlockNumbers; ++i) {
    // A subnormal d has no inverse.
    const float code = finite ? std::round(x[i] * inverse) : 0.0F;
    block[2 + i] = static_cast<uint8_t>(
        static_cast<int8_t>(std::isfinite(code) ? std::clamp(code, -127.0F, 127.0F) : 0.0F));
  }
}

void encode_nibbles(DType dtype, const float* x, uint8_t* block) noexcept {
  const Nibbles format = nibbles_of(dtype);
  const int levels = format.levels();
  float low = x[0], high = x[0], widest = x[0];
  bool finite = true;
  for (int i = 0; i < kBlockNumbers; ++i) {
    low = std::fmin(low, x[i]);
    high = std::fmax(high, x[i]);
    if (std::fabs(x[i]) > std::fabs(widest)) widest = x[i];
    finite = finite && std::isfinite(x[i]);
  }
  // Without a minimum the widest number is the lowest code, whatever its sign.
  const int half = levels / 2;
  float d = format.minimum ? (high - low) / static_cast<float>(levels - 1)
                           : widest / static_cast<float>(-half);
  if (!finite) d = std::numeric_limits<float>::quiet_NaN();
  const float inverse = finite && d != 0 ? 1.0F / d : 0.0F;
  const float zero = format.minimum ? 0.5F : static_cast<float>(half) + 0.5F;
  store_fp16(d, block);
  if (format.minimum) store_fp16(low, block + 2);
  uint32_t fifth = 0;
  uint8_t* codes = block + format.codes_at();
  for (int i = 0; i < kBlockNumbers; ++i) {
    const float place = (format.minimum ? x[i] - low : x[i]) * inverse + zero;
    const float kept = finite && std::isfinite(place) ? place : 0.0F;
    const auto code = static_cast<unsigned>(std::clamp(kept, 0.0F, static_cast<float>(levels - 1)));
    const int byte = i % kHalf;
    const unsigned nibble = code & 15U;
    codes[byte] = static_cast<uint8_t>(i < kHalf ? nibble : codes[byte] | nibble << 4U);
    fifth |= (code >> 4U) << static_cast<unsigned>(i);
  }
  if (format.high_bits) std::memcpy(codes - sizeof fifth, &fifth, sizeof fifth);
}

void decode_nibbles(DType dtype, const uint8_t* block, float* out) noexcept {
  const Nibbles format = nibbles_of(dtype);
  const float d = load_fp16(block), minimum = format.minimum ? load_fp16(block + 2) : 0.0F;
  const int zero = format.minimum ? 0 : format.levels() / 2;
  const uint8_t* codes = block + format.codes_at();
  uint32_t fifth = 0;
  if (format.high_bits) std::memcpy(&fifth, codes - sizeof fifth, sizeof fifth);
  for (int i = 0; i < kBlockNumbers; ++i) {
    const unsigned nibble =
        i < kHalf ? codes[i] & 15U : static_cast<unsigned>(codes[i - kHalf]) >> 4;
    const unsigned code = nibble | (fifth >> static_cast<unsigned>(i) & 1U) << 4U;
    const float product = static_cast<float>(static_cast<int>(code) - zero) * d;  // exact
    out[i] = format.minimum ? product + minimum : product;
  }
}

}  // namespace

float from_fp8(DType dtype, uint8_t bits) noexcept {
  const Fp8 f = fp8_of(dtype);
  if (is_nan(f, bits)) return std::numeric_limits<float>::quiet_NaN();
  const unsigned magnitude = bits & 0x7FU;
  const float value = f.infinity && magnitude > f.largest ? std::numeric_limits<float>::infinity()
                                                          : magnitude_of(f, magnitude);
  return (bits & 0x80U) != 0 ? -value : value;
}

float scale_of(DType dtype, float largest_number) noexcept {
  if (!std::isfinite(largest_number)) return std::numeric_limits<float>::quiet_NaN();
  if (dtype == DType::int8) return largest_number / 127.0F;
  const Fp8 f = fp8_of(dtype);
  return largest_number / magnitude_of(f, f.largest);
}

uint8_t to_fp8(DType dtype, float value) noexcept {
  const Fp8 f = fp8_of(dtype);
  if (std::isnan(value)) return f.fnuz ? 0x80 : 0x7F;
  const float size = std::fmin(std::fabs(value), magnitude_of(f, f.largest));
  // The number's last place: that of the subnormal numbers at least.
  const int exponent = size > 0 ? std::max(std::ilogb(size), 1 - f.bias) : 1 - f.bias;
  // Exact, and rounded to even by the default rounding mode.
  const float places = std::nearbyint(std::ldexp(size, f.mantissa_bits - exponent));
  // A carry into the exponent is right as it is: the mantissa is then 0.
  const auto one = 1 << f.mantissa_bits;
  const int magnitude = (exponent + f.bias - 1) * one + static_cast<int>(places);
  if (magnitude == 0 && f.fnuz) return 0;
  return static_cast<uint8_t>(magnitude | (std::signbit(value) ? 0x80 : 0));
}

void decode_block(DType dtype, const void* block, float* numbers) noexcept {
  const auto* bytes = static_cast<const uint8_t*>(block);
  if (dtype != DType::q8_0) return decode_nibbles(dtype, bytes, numbers);
  const float d = load_fp16(bytes);
  for (int i = 0; i < kBlockNumbers; ++i)
    numbers[i] = static_cast<float>(static_cast<int8_t>(bytes[2 + i])) * d;  // exact
}

void encode_block(DType dtype, const float* numbers, void* block) noexcept {
  auto* bytes = static_cast<uint8_t*>(block);
  dtype == DType::q8_0 ? encode_q8_0(numbers, bytes) : encode_nibbles(dtype, numbers, bytes);
}

void decode_kv(const void* data, DType dtype, int64_t first, int64_t dim, float* out) noexcept {
  if (const int64_t bytes = block_bytes(dtype); bytes > 0) {
    const auto* block = static_cast<const uint8_t*>(data) + first;
    for (int64_t d = 0; d < dim; d += kBlockNumbers, block += bytes)
      decode_block(dtype, block, out + d);
  } else if (dtype == DType::int8) {
    const auto* row = static_cast<const int8_t*>(data) + first;
    for (int64_t d = 0; d < dim; ++d) out[d] = static_cast<float>(row[d]);
  } else if (size_of(dtype) == 1) {
    const auto* row = static_cast<const uint8_t*>(data) + first;
    for (int64_t d = 0; d < dim; ++d) out[d] = from_fp8(dtype, row[d]);
  } else if (dtype == DType::fp32) {
    std::memcpy(out, static_cast<const float*>(data) + first,
                static_cast<std::size_t>(dim) * sizeof(float));
  } else if (dtype == DType::bf16) {
    const auto* row = static_cast<const uint16_t*>(data) + first;
    for (int64_t d = 0; d < dim; ++d) out[d] = from_bf16(row[d]);
  } else {
    const auto* row = static_cast<const uint16_t*>(data) + first;
    for (int64_t d = 0; d < dim; ++d) out[d] = from_fp16(row[d]);
  }
}

void encode_kv(const float* x, DType dtype, float scale, int64_t dim, void* out) noexcept {
  for (int64_t d = 0; d < dim; ++d) {
    const float place = scale == 0 ? 0.0F : x[d] / scale;
    if (dtype == DType::int8) {
      static_cast<int8_t*>(out)[d] = static_cast<int8_t>(
          std::isnan(place) ? 0.0F : std::clamp(std::nearbyint(place), -127.0F, 127.0F));
    } else {
      static_cast<uint8_t*>(out)[d] = to_fp8(dtype, place);
    }
  }
}

}  // namespace fulmen::reference
