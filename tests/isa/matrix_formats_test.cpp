// Matrix instructions in fp8 and with sums in fp16, against products in double by the lane maps of
// AMD's ISA documents, which are written out here: MI300 and CDNA4 (chapter 7, matrix layouts),
// RDNA3 (7.9) and RDNA4 (7.12). Codes of fp8 are decoded here, too.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "isa/machine.h"
#include "isa/manual.h"
#include "support/random.h"

namespace fulmen::testing {
namespace {

using manual::kHalf;

// e4m3 with a bias of 7 whose NaN has all bits but the sign (OCP), or of 8 whose only NaN is -0.
double fp8(unsigned code, bool fnuz) {
  const unsigned exponent = code >> 3U & 15U, mantissa = code & 7U;
  const int bias = fnuz ? 8 : 7;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, 1 - bias - 3)
                               : std::ldexp(8 + mantissa, static_cast<int>(exponent) - bias - 3);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}
bool is_nan(unsigned code, bool fnuz) { return fnuz ? code == 0x80U : (code & 0x7FU) == 0x7FU; }

void turn_all_on(Machine& m) {
  m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFFU;
  m.wave().scalars[gpu::kExecLow + 1] = m.size() == 64 ? 0xFFFFFFFFU : 0;
}

struct Fp8Product {
  const char* arch;
  const char* line;
  bool fnuz;
  int depth;   // of k
  int of_row;  // rows of D that a lane's registers have: register r of lane l has row l / 16 of
               // these, r
};
// A lane has bytes of 8 neighbours in k, of row or column l % 16.
constexpr Fp8Product kFp8[] = {
    {"gfx942", "v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[10:11], v[12:13], v[0:3]", true, 32, 4},
    {"gfx950", "v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[10:11], v[12:13], v[0:3]", false, 32, 4},
    {"gfx1201", "v_wmma_f32_16x16x16_fp8_fp8 v[0:7], v[10:11], v[12:13], v[0:7]", false, 16, 8}};

class IsaFp8Map : public ::testing::TestWithParam<Fp8Product> {};

TEST_P(IsaFp8Map, IsTheProduct) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const Fp8Product& p = GetParam();
  SCOPED_TRACE("FULMEN_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed() + 61);
  const auto assembled = assemble({p.line}, p.arch);
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  for (int round = 0; round < 8; ++round) {
    Machine m(assembled->program);
    turn_all_on(m);
    std::vector<unsigned> a(static_cast<std::size_t>(16 * p.depth)), b(a.size());
    for (std::vector<unsigned>* codes : {&a, &b}) {
      for (unsigned& code : *codes) {
        do {
          code = static_cast<unsigned>(random() & 0xFFU);
        } while (is_nan(code, p.fnuz));
      }
    }
    const auto at = [&](int row, int k) { return static_cast<std::size_t>(row * p.depth + k); };
    for (int l = 0; l < m.size(); ++l) {
      for (int word = 0; word < 2; ++word) {
        for (int byte = 0; byte < 4; ++byte) {
          const int k = 8 * (l / 16) + 4 * word + byte;
          m.vector(10 + word, l) |= a[at(l % 16, k)] << (8 * byte);
          m.vector(12 + word, l) |= b[at(l % 16, k)] << (8 * byte);
        }
      }
      for (int r = 0; r < p.of_row; ++r)
        m.vector(r, l) = std::bit_cast<uint32_t>(static_cast<float>(r - l));
    }
    ASSERT_EQ(m.run(assembled->code[0]), "");
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        const int lane = j + 16 * (i / p.of_row), r = i % p.of_row;
        double expected = r - lane, magnitude = std::fabs(expected);
        for (int k = 0; k < p.depth; ++k) {
          const double product = fp8(a[at(i, k)], p.fnuz) * fp8(b[at(j, k)], p.fnuz);
          expected += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(std::bit_cast<float>(m.vector(r, lane)), expected, magnitude * 0x1p-20)
            << p.arch << " " << i << " " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaFp8Map, ::testing::ValuesIn(kFp8),
                         [](const auto& info) { return std::string(info.param.arch); });

// Sums in fp16. RDNA3 has a lane's elements of all k in lanes l and l + 16, and results in the half
// of each register that op_sel names; RDNA4 has two results a register.
class IsaHalfSums : public ::testing::TestWithParam<bool> {};

TEST_P(IsaHalfSums, AreTheProduct) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const bool rdna3 = GetParam();
  SCOPED_TRACE("FULMEN_TEST_SEED=" + std::to_string(test_seed()));
  std::mt19937_64 random(test_seed() + 62);
  const std::string product = "v_wmma_f16_16x16x16_f16 ";
  const std::vector<std::string> lines =
      rdna3 ? std::vector<std::string>{product + "v[0:7], v[8:15], v[16:23], v[0:7]",
                                       product + "v[0:7], v[8:15], v[16:23], v[0:7] op_sel:[0,0,1]",
                                       product + "v[0:7], v[8:15], v[16:23], 1.0"}
            : std::vector<std::string>{product + "v[0:3], v[8:11], v[16:19], v[0:3]",
                                       product + "v[0:3], v[8:11], v[16:19], v[0:3] neg_lo:[0,0,1]",
                                       product + "v[0:3], v[8:11], v[16:19], 1.0"};
  const auto assembled = assemble(lines, rdna3 ? "gfx1100" : "gfx1201");
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  std::uniform_real_distribution<double> uniform(-2, 2);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    Machine m(assembled->program);
    turn_all_on(m);
    uint64_t a[16][16], b[16][16], c[16][16];
    for (auto* matrix : {&a, &b, &c}) {
      for (auto& row : *matrix) {
        for (uint64_t& x : row) x = manual::bits(uniform(random), kHalf);
      }
    }
    const auto put = [&](int first, int row, int k, uint64_t x) {
      const auto half = static_cast<uint32_t>(x) << (16 * (k % 2));
      if (rdna3) {
        for (const int lane : {row, row + 16}) m.vector(first + k / 2, lane) |= half;
      } else {  // four neighbours in k, then those of the other 16 lanes
        m.vector(first + k / 8 * 2 + k % 4 / 2, row + 16 * (k / 4 % 2)) |= half;
      }
    };
    const bool high = rdna3 && n == 1;
    const auto word = [&](int i, int j) -> uint32_t& {
      return rdna3 ? m.vector(i / 2, j + 16 * (i % 2)) : m.vector(i % 8 / 2, j + 16 * (i / 8));
    };
    const auto shift = [&](int i) { return rdna3 ? (high ? 16 : 0) : 16 * (i % 2); };
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        put(8, i, j, a[i][j]);
        put(16, i, j, b[i][j]);  // column i, k = j
        if (rdna3) word(i, j) = 0xABCDABCDU;
      }
    }
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        uint32_t& at = word(i, j);
        at = (at & ~(0xFFFFU << shift(i))) | static_cast<uint32_t>(c[i][j]) << shift(i);
      }
    }
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        double expected = n == 2 ? 1.0 : manual::number(c[i][j], kHalf);
        if (!rdna3 && n == 1) expected = -expected;
        for (int k = 0; k < 16; ++k)
          expected += manual::number(a[i][k], kHalf) * manual::number(b[j][k], kHalf);
        const double got = manual::number(word(i, j) >> shift(i) & 0xFFFFU, kHalf);
        ASSERT_NEAR(got, expected, 0x1.04p-11 * std::fabs(expected) + 1e-5)
            << lines[n] << ": " << i << " " << j;
        if (!rdna3) continue;
        ASSERT_EQ(word(i, j) >> (high ? 0 : 16) & 0xFFFFU, 0xABCDU) << lines[n];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaHalfSums, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "gfx1100" : "gfx1201"; });

// RDNA4's scalar conversions, which no table has: bits in, bits out.
TEST(IsaScalarNumbers, RoundAndConvert) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const auto assembled = assemble({"s_rndne_f32 s1, s0", "s_cvt_f16_f32 s2, s0",
                                   "s_cvt_f32_f16 s3, s0", "s_cvt_hi_f32_f16 s4, s0"},
                                  "gfx1201");
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  struct Row {
    float x, rounded;
    uint32_t half;
  };
  for (const Row& row :
       {Row{0.5F, 0, 0x3800}, Row{1.5F, 2, 0x3E00}, Row{2.5F, 2, 0x4100}, Row{-0.5F, -0.0F, 0xB800},
        Row{-3.25F, -3, 0xC280}, Row{65519, 65519, 0x7BFF}, Row{65520, 65520, 0x7C00},
        Row{0x1p-24F, 0, 1}, Row{0x1p-26F, 0, 0}}) {
    Machine m(assembled->program);
    m.wave().scalars[0] = std::bit_cast<uint32_t>(row.x);
    ASSERT_EQ(m.run(assembled->code[0]), "");
    ASSERT_EQ(m.run(assembled->code[1]), "");
    EXPECT_EQ(m.wave().scalars[1], std::bit_cast<uint32_t>(row.rounded)) << row.x;
    EXPECT_EQ(m.wave().scalars[2], row.half) << row.x;
    m.wave().scalars[0] = row.half | 0x3C00U << 16U;
    ASSERT_EQ(m.run(assembled->code[2]), "");
    ASSERT_EQ(m.run(assembled->code[3]), "");
    EXPECT_EQ(std::bit_cast<float>(m.wave().scalars[3]), manual::number(row.half, kHalf)) << row.x;
    EXPECT_EQ(std::bit_cast<float>(m.wave().scalars[4]), 1.0F);
  }
}

}  // namespace
}  // namespace fulmen::testing
