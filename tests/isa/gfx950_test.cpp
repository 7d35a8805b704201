// What gfx950 adds to gfx942's instructions, beside its matrix products (lane_maps_test.cpp):
// conversions of pairs and operations of three bits, against definitions of their own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "isa/machine.h"
#include "isa/manual.h"
#include "support/random.h"

namespace fulmen::testing {
namespace {

class Gfx950 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  }
  // Runs the line on a wave whose registers v0 to v7 are random, with all lanes on.
  // check(machine, lane) follows for each lane.
  template <class Check>
  void run(const std::string& line, uint32_t (*draw)(std::mt19937_64&), const Check& check) {
    const auto assembled = assemble({line}, "gfx950");
    ASSERT_TRUE(assembled.ok()) << assembled.status().message();
    Machine m(assembled->program);
    m.wave().scalars[gpu::kExecLow] = m.wave().scalars[gpu::kExecLow + 1] = 0xFFFFFFFFU;
    for (int r = 0; r < 8; ++r) {
      for (int l = 0; l < 64; ++l) m.vector(r, l) = draw(random_);
    }
    ASSERT_EQ(m.run(assembled->code.front()), "") << line;
    for (int l = 0; l < 64; ++l) ASSERT_NO_FATAL_FAILURE(check(m, l)) << line << ", lane " << l;
  }
  static uint32_t any_bits(std::mt19937_64& random) { return static_cast<uint32_t>(random()); }
  // Numbers of every size, about half of them between two bf16 numbers or just beside the middle.
  static uint32_t number_bits(std::mt19937_64& random) {
    const auto x = static_cast<uint32_t>(random());
    const uint32_t near = (x & 0xFFFF0000U) | (0x7FFFU + static_cast<uint32_t>(random() % 3));
    const uint32_t bits = random() % 2 == 0 ? near : x;
    return (bits & 0x7F800000U) == 0x7F800000U ? bits & 0x80000000U : bits;
  }
  static uint32_t small_number_bits(std::mt19937_64& random) {
    const double x = std::ldexp(static_cast<double>(random() % 2000001) - 1000000.0,
                                static_cast<int>(random() % 40) - 45);
    return static_cast<uint32_t>(manual::bits(x, manual::kSingle));
  }
  static double value(Machine& m, int r, int lane) {
    return manual::number(m.vector(r, lane), manual::kSingle);
  }

  std::mt19937_64 random_{test_seed() + 51};
};

TEST_F(Gfx950, PairsOfNumbersRoundToNearestBf16) {
  run("v_cvt_pk_bf16_f32 v8, v0, v1", number_bits, [](Machine& m, int l) {
    EXPECT_EQ(m.vector(8, l), manual::bits(value(m, 0, l), manual::kBf16) |
                                  manual::bits(value(m, 1, l), manual::kBf16) << 16U);
  });
  run("v_cvt_pk_bf16_f32 v8, -v0, |v1|", number_bits, [](Machine& m, int l) {
    EXPECT_EQ(m.vector(8, l), manual::bits(-value(m, 0, l), manual::kBf16) |
                                  manual::bits(std::fabs(value(m, 1, l)), manual::kBf16) << 16U);
  });
}

TEST_F(Gfx950, PairsOfNumbersRoundToNearestHalf) {
  run("v_cvt_pk_f16_f32 v8, v0, v1", small_number_bits, [](Machine& m, int l) {
    EXPECT_EQ(m.vector(8, l), manual::bits(value(m, 0, l), manual::kHalf) |
                                  manual::bits(value(m, 1, l), manual::kHalf) << 16U);
  });
}

// The constants that LLVM documents for BITOP3: 0xf0, 0xcc and 0xaa are the three sources.
TEST_F(Gfx950, ThreeBitsLookUpTheirResult) {
  const auto expect_table = [&](int table, uint32_t (*result)(uint32_t, uint32_t, uint32_t)) {
    run("v_bitop3_b32 v8, v0, v1, v2 bitop3:" + std::to_string(table), any_bits,
        [&](Machine& m, int l) {
          EXPECT_EQ(m.vector(8, l), result(m.vector(0, l), m.vector(1, l), m.vector(2, l)));
        });
  };
  using U = uint32_t;
  expect_table(0xf0, [](U a, U, U) { return a; });
  expect_table(0xcc, [](U, U b, U) { return b; });
  expect_table(0xaa, [](U, U, U c) { return c; });
  expect_table(0xf0 & 0xcc & 0xaa, [](U a, U b, U c) { return a & b & c; });
  expect_table(0xf0 | 0xcc | 0xaa, [](U a, U b, U c) { return a | b | c; });
  expect_table(0xf0 ^ 0xcc ^ 0xaa, [](U a, U b, U c) { return a ^ b ^ c; });
  expect_table((0xf0 & 0xcc) ^ 0xaa, [](U a, U b, U c) { return (a & b) ^ c; });
  expect_table((0xf0 & 0xcc) | (~0xf0 & 0xaa & 0xff),
               [](U a, U b, U c) { return (a & b) | (~a & c); });
}

// The use that the ISA document gives it: of a matrix whose rows lie in LDS, 4 rows become 4
// elements of the lane that owns a column.
TEST_F(Gfx950, ColumnsAreReadFromRowsInLds) {
  constexpr int kRows = 16, kColumns = 32, kPitch = 80, kFirstColumn = 16;
  const auto element = [](int row, int column) {
    return static_cast<uint16_t>(1000 * row + column);
  };
  std::vector<std::byte> lds(kRows * kPitch);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      const uint16_t x = element(row, column);
      std::memcpy(&lds[static_cast<std::size_t>(row * kPitch + 2 * column)], &x, sizeof x);
    }
  }
  const auto assembled = assemble(
      {"ds_read_b64_tr_b16 v[2:3], v0 offset:" + std::to_string(2 * kFirstColumn)}, "gfx950");
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  m.wave().group->lds = lds;
  m.wave().scalars[gpu::kExecLow] = m.wave().scalars[gpu::kExecLow + 1] = 0xFFFFFFFFU;
  for (int l = 0; l < 64; ++l)
    m.vector(0, l) = static_cast<uint32_t>(l / 4 * kPitch + l % 4 * 4 * 2);
  ASSERT_EQ(m.run(assembled->code.front()), "");
  for (int l = 0; l < 64; ++l) {
    const int first_row = l / 16 * 4, column = kFirstColumn + l % 16;
    for (int e = 0; e < 4; ++e) {
      EXPECT_EQ(m.vector(2 + e / 2, l) >> (16 * (e % 2)) & 0xFFFFU, element(first_row + e, column))
          << "lane " << l << ", element " << e;
    }
  }
  m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFEU;
  EXPECT_NE(m.run(assembled->code.front()).find("lanes are off"), std::string::npos);
}

// Blocks of 16 or 32 lanes: odd ones of the first register for even ones of the second.
TEST_F(Gfx950, BlocksOfLanesAreSwapped) {
  for (const int lanes : {16, 32}) {
    const auto assembled =
        assemble({"v_permlane" + std::to_string(lanes) + "_swap_b32 v0, v1"}, "gfx950");
    ASSERT_TRUE(assembled.ok()) << assembled.status().message();
    Machine m(assembled->program);
    m.wave().scalars[gpu::kExecLow] = m.wave().scalars[gpu::kExecLow + 1] = 0xFFFFFFFFU;
    for (uint32_t l = 0; l < 64; ++l) {
      m.vector(0, static_cast<int>(l)) = 100 + l;
      m.vector(1, static_cast<int>(l)) = 200 + l;
    }
    ASSERT_EQ(m.run(assembled->code.front()), "");
    const auto size = static_cast<uint32_t>(lanes);
    for (uint32_t l = 0; l < 64; ++l) {
      const bool odd = l / size % 2 == 1;
      EXPECT_EQ(m.vector(0, static_cast<int>(l)), odd ? 200 + l - size : 100 + l);
      EXPECT_EQ(m.vector(1, static_cast<int>(l)), odd ? 200 + l : 100 + l + size);
    }
    m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFEU;
    EXPECT_NE(m.run(assembled->code.front()).find("which is off"), std::string::npos);
  }
}

TEST_F(Gfx950, NumbersOf16BitsBecomeWords) {
  run("v_cvt_f32_bf16 v8, v0", any_bits,
      [](Machine& m, int l) { EXPECT_EQ(m.vector(8, l), m.vector(0, l) << 16U); });
}

TEST_F(Gfx950, WordsOfAPairAreChosenByTheirBits) {
  for (int low = 0; low < 2; ++low) {
    for (int high = 0; high < 2; ++high) {
      run("v_pk_mov_b32 v[8:9], v[0:1], v[2:3] op_sel:[" + std::to_string(low) + "," +
              std::to_string(high) + "]",
          any_bits, [&](Machine& m, int l) {
            EXPECT_EQ(m.vector(8, l), m.vector(low, l));
            EXPECT_EQ(m.vector(9, l), m.vector(2 + high, l));
          });
    }
  }
}

}  // namespace
}  // namespace fulmen::testing
