// The formats of k and v against their definitions: every fp8 pattern, roundings between them, and
// blocks built by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/float_formats.h"
#include "runtime/kv_formats.h"

namespace fulmen::reference {
namespace {

struct Format {
  DType dtype;
  int mantissa_bits, bias;
  double largest;
};
// The OCP specification's, and the largest of "FP8 Formats for Deep Learning" with FNUZ's bias.
constexpr Format kFormats[] = {{DType::fp8_e4m3, 3, 7, 448},
                               {DType::fp8_e5m2, 2, 15, 57344},
                               {DType::fp8_e4m3fnuz, 3, 8, 240},
                               {DType::fp8_e5m2fnuz, 2, 16, 57344}};

// The value of a pattern from its fields.
double value_of(const Format& f, int bits) {
  const int exponent = (bits & 0x7F) >> f.mantissa_bits,
            mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  if (f.dtype == DType::fp8_e4m3 && (bits & 0x7F) == 0x7F) return NAN;
  if (f.dtype == DType::fp8_e5m2 && exponent == 31) return mantissa != 0 ? NAN : sign * HUGE_VAL;
  if (f.dtype != DType::fp8_e4m3 && f.dtype != DType::fp8_e5m2 && bits == 0x80) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
}

TEST(Fp8, EveryPattern) {
  for (const Format& f : kFormats) {
    double most = 0;
    for (int bits = 0; bits < 256; ++bits) {
      const auto pattern = static_cast<uint8_t>(bits);
      const double expected = value_of(f, bits);
      const float value = from_fp8(f.dtype, pattern);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(value)) << to_string(f.dtype) << ' ' << bits;
        EXPECT_TRUE(std::isnan(from_fp8(f.dtype, to_fp8(f.dtype, value))));
        continue;
      }
      EXPECT_EQ(value, expected) << to_string(f.dtype) << ' ' << bits;
      EXPECT_EQ(std::signbit(value), std::signbit(expected)) << bits;
      if (std::isinf(expected)) continue;
      most = std::fmax(most, expected);
      EXPECT_EQ(to_fp8(f.dtype, value), bits) << to_string(f.dtype);
    }
    EXPECT_EQ(most, f.largest);
  }
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (const Format& f : kFormats) {
    for (int bits = 0; value_of(f, bits) < f.largest; ++bits) {
      const double low = value_of(f, bits), high = value_of(f, bits + 1), middle = (low + high) / 2;
      const int even = bits % 2 == 0 ? bits : bits + 1;
      EXPECT_EQ(to_fp8(f.dtype, static_cast<float>(middle)), even) << to_string(f.dtype);
      EXPECT_EQ(to_fp8(f.dtype, std::nextafterf(static_cast<float>(middle), 0)), bits);
      EXPECT_EQ(to_fp8(f.dtype, std::nextafterf(static_cast<float>(middle), 1e9F)), bits + 1);
      if (even > 0) {
        EXPECT_EQ(to_fp8(f.dtype, static_cast<float>(-middle)), even | 0x80);
      }
    }
    for (const float beyond : {static_cast<float>(f.largest) * 1.01F, 1e30F, HUGE_VALF}) {
      EXPECT_EQ(from_fp8(f.dtype, to_fp8(f.dtype, beyond)), f.largest);
      EXPECT_EQ(from_fp8(f.dtype, to_fp8(f.dtype, -beyond)), -f.largest);
    }
    EXPECT_EQ(from_fp8(f.dtype, to_fp8(f.dtype, 1e-30F)), 0);
    EXPECT_EQ(from_fp8(f.dtype, to_fp8(f.dtype, -1e-30F)), 0);
  }
}

TEST(Int8, RoundsToTheNearestTiesToEvenUpToTheLargest) {
  const float x[] = {0.5F, 1.5F, -2.5F, 126.4F, 127.6F, -200.0F, HUGE_VALF, NAN};
  int8_t codes[8];
  encode_kv(x, DType::int8, 1, 8, codes);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 8),
            (std::vector<int8_t>{0, 2, -2, 126, 127, -127, 127, 0}));
  encode_kv(x, DType::int8, 0, 8, codes);
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 8), std::vector<int8_t>(8));
  EXPECT_TRUE(std::isnan(scale_of(DType::int8, HUGE_VALF)));
  EXPECT_EQ(scale_of(DType::int8, 254), 2);
  EXPECT_EQ(scale_of(DType::fp8_e4m3, 224), 0.5F);
}

std::vector<uint8_t> block_of(DType dtype, std::vector<uint8_t> head) {
  head.resize(static_cast<std::size_t>(block_bytes(dtype)));
  return head;
}
std::vector<float> numbers_of(DType dtype, const std::vector<uint8_t>& block) {
  std::vector<float> numbers(kBlockNumbers);
  decode_block(dtype, block.data(), numbers.data());
  return numbers;
}

// d = 0.5 is fp16 0x3800, m = -1 is 0xBC00: the scale first, then the minimum, the fifth bits, and
// the codes, of which byte i has number i in its low half and number i + 16 in its high one.
TEST(Blocks, ByDefinition) {
  std::vector<uint8_t> q8 = block_of(DType::q8_0, {0x00, 0x38, 0x80, 0x7F});
  q8[33] = 0xFF;
  std::vector<float> x = numbers_of(DType::q8_0, q8);
  EXPECT_EQ(x[0], -64);
  EXPECT_EQ(x[1], 63.5F);
  EXPECT_EQ(x[31], -0.5F);
  x = numbers_of(DType::q4_0, block_of(DType::q4_0, {0x00, 0x38, 0xF0, 0x8A}));
  EXPECT_EQ(x[0], -4);     // (0 - 8) / 2
  EXPECT_EQ(x[16], 3.5F);  // (15 - 8) / 2
  EXPECT_EQ(x[1], 1);      // (10 - 8) / 2
  EXPECT_EQ(x[17], 0);
  EXPECT_EQ(x[2], -4);
  x = numbers_of(DType::q4_1, block_of(DType::q4_1, {0x00, 0x38, 0x00, 0xBC, 0xF0, 0x8A}));
  EXPECT_EQ(x[0], -1);
  EXPECT_EQ(x[16], 6.5F);
  EXPECT_EQ(x[1], 4);
  // Fifth bits of numbers 0, 17 and 31.
  x = numbers_of(DType::q5_0,
                 block_of(DType::q5_0, {0x00, 0x38, 0x01, 0x00, 0x02, 0x80, 0xF0, 0x8A}));
  EXPECT_EQ(x[0], 0);       // (16 - 16) / 2
  EXPECT_EQ(x[16], -0.5F);  // (15 - 16) / 2
  EXPECT_EQ(x[17], 4);      // (24 - 16) / 2
  EXPECT_EQ(x[31], 0);
  EXPECT_EQ(x[2], -8);
  x = numbers_of(DType::q5_1, block_of(DType::q5_1, {0x00, 0x38, 0x00, 0xBC, 0x01, 0x00, 0x02, 0x80,
                                                     0xF0, 0x8A}));
  EXPECT_EQ(x[0], 7);
  EXPECT_EQ(x[17], 11);
  EXPECT_EQ(x[31], 7);
  EXPECT_EQ(x[2], -1);
}

// Numbers that a block can hold exactly become themselves, and others are off by half a step, or
// by a whole one at the code that the widest number's sign leaves out.
TEST(Blocks, RoundToTheNearest) {
  for (const DType dtype : {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1}) {
    const bool minimum = dtype == DType::q4_1 || dtype == DType::q5_1;
    const int levels = dtype == DType::q8_0                           ? 255
                       : dtype == DType::q4_0 || dtype == DType::q4_1 ? 16
                                                                      : 32;
    std::vector<float> exact(kBlockNumbers), x(kBlockNumbers);
    std::vector<uint8_t> block(static_cast<std::size_t>(block_bytes(dtype)));
    for (int i = 0; i < kBlockNumbers; ++i) {
      const int code = i * 7 % levels;
      exact[static_cast<std::size_t>(i)] =
          0.25F * static_cast<float>(dtype == DType::q8_0 ? code - 127
                                     : minimum            ? code
                                                          : code - levels / 2);
    }
    exact[5] = 0.25F * static_cast<float>(dtype == DType::q8_0 ? -127 : minimum ? 0 : -levels / 2);
    exact[6] = minimum ? 0.25F * static_cast<float>(levels - 1) : 0;
    encode_block(dtype, exact.data(), block.data());
    EXPECT_EQ(numbers_of(dtype, block), exact) << to_string(dtype);

    float low = 0, high = 0;
    for (int i = 0; i < kBlockNumbers; ++i) {
      x[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(i * i));
      low = std::fmin(low, x[static_cast<std::size_t>(i)]);
      high = std::fmax(high, x[static_cast<std::size_t>(i)]);
    }
    encode_block(dtype, x.data(), block.data());
    const std::vector<float> back = numbers_of(dtype, block);
    const float widest = std::fmax(high, -low);
    const float step = dtype == DType::q8_0 ? widest / 127
                       : minimum            ? (high - low) / static_cast<float>(levels - 1)
                                            : widest / static_cast<float>(levels / 2);
    for (int i = 0; i < kBlockNumbers; ++i) {
      EXPECT_NEAR(back[static_cast<std::size_t>(i)], x[static_cast<std::size_t>(i)],
                  (minimum || dtype == DType::q8_0 ? 0.51F : 1.01F) * step)
          << to_string(dtype);
    }
    for (const float bad : {NAN, HUGE_VALF}) {
      x[3] = bad;
      encode_block(dtype, x.data(), block.data());
      for (const float number : numbers_of(dtype, block)) EXPECT_TRUE(std::isnan(number));
    }
    const std::vector<float> zeros(kBlockNumbers);
    encode_block(dtype, zeros.data(), block.data());
    EXPECT_EQ(numbers_of(dtype, block), zeros);
    // A scale that fp16 has no inverse for.
    const std::vector<float> tiny(kBlockNumbers, 1e-42F);
    encode_block(dtype, tiny.data(), block.data());
    EXPECT_EQ(numbers_of(dtype, block), zeros);
  }
}

}  // namespace
}  // namespace fulmen::reference
