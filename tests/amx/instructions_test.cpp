// The emulated tile instructions against plain sums and, where the processor has AMX, against its
// own.
#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "cpu/isa/amx_support.h"
#include "support/emulated_tiles.h"
#include "support/random.h"

namespace fulmen::testing {

void real_dot(const float* a, const float* b, float* c);

namespace {

using Tile = std::array<float, 256>;  // [16][16] words

uint32_t bf16_bits(float x) { return std::bit_cast<uint32_t>(x) >> 16U; }
float pair(float low, float high) {
  return std::bit_cast<float>(bf16_bits(high) << 16U | bf16_bits(low));
}

void emulated_dot(const Tile& a, const Tile& b, Tile& c) {
  EmulatedTiles::configure();
  EmulatedTiles::load<0>(c.data(), 16);
  EmulatedTiles::load<4>(a.data(), 16);
  EmulatedTiles::load<6>(b.data(), 16);
  EmulatedTiles::dot<0, 4, 6>();
  EmulatedTiles::store<0>(c.data(), 16);
  EmulatedTiles::release();
}

TEST(TileInstructions, DotOfSmallIntegersIsExact) {
  Random random(4);
  int a[16][32], b[32][16], c[16][16];
  for (auto& row : a) {
    for (int& x : row) x = static_cast<int>(random.between(-9, 9));
  }
  for (auto& row : b) {
    for (int& x : row) x = static_cast<int>(random.between(-9, 9));
  }
  for (auto& row : c) {
    for (int& x : row) x = static_cast<int>(random.between(-9, 9));
  }
  Tile ta, tb, tc;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      ta[i * 16 + j] = pair(static_cast<float>(a[i][2 * j]), static_cast<float>(a[i][2 * j + 1]));
      tb[i * 16 + j] = pair(static_cast<float>(b[2 * i][j]), static_cast<float>(b[2 * i + 1][j]));
      tc[i * 16 + j] = static_cast<float>(c[i][j]);
    }
  }
  emulated_dot(ta, tb, tc);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      int expected = c[i][j];
      for (int k = 0; k < 32; ++k) expected += a[i][k] * b[k][j];
      EXPECT_EQ(tc[i * 16 + j], static_cast<float>(expected)) << i << ", " << j;
    }
  }
}

TEST(TileInstructions, DenormalsAreZero) {
  Tile a{}, b{}, c{};
  a[0] = pair(0x1p-130F, 0x1p-70F);
  b[0] = pair(0x1p+20F, 0x1p-70F);  // 2^-110 if the first were not flushed, and a denormal
  c[0] = 0x1p-130F;
  emulated_dot(a, b, c);
  EXPECT_EQ(c[0], 0.0F);
}

TEST(TileInstructions, EmulationEqualsTheProcessor) {
  if (!cpu::amx_ready())
    GTEST_SKIP() << "this processor has no AMX bf16 tiles, or the kernel does not allow them";
  Random random(5);
  SCOPED_TRACE(test_seed());
  for (int repeat = 0; repeat < 200; ++repeat) {
    Tile a, b, c;
    const float range = repeat % 2 == 0 ? 3.0F : 0x1p-60F;  // the second brings denormals about
    for (int i = 0; i < 256; ++i) {
      a[i] = pair(range * random.normal(), range * random.normal());
      b[i] = pair(range * random.normal(), range * random.normal());
      c[i] = range * range * random.normal();
    }
    Tile real = c;
    emulated_dot(a, b, c);
    real_dot(a.data(), b.data(), real.data());
    for (int i = 0; i < 256; ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(c[i]), std::bit_cast<uint32_t>(real[i]))
          << "word " << i << ": " << c[i] << ", " << real[i];
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
