// Packed and mixed instructions with every choice of halves and signs, permlanes with any
// selection, and conversions of numbers near rounding limits: against the manual's table (manual.h)
// and against bits written by hand.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "isa/machine.h"
#include "isa/manual.h"
#include "support/random.h"
#include "support/test_chips.h"

namespace fulmen::testing {
namespace {

using manual::bits;
using manual::kHalf;
using manual::kSingle;
using manual::number;

class IsaInstructions : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  }
  static bool cdna() { return GetParam().starts_with("gfx9"); }
  static bool has_pairs() { return cdna() && GetParam() != "gfx908"; }
  static void turn_all_on(Machine& m) {
    m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFFU;
    m.wave().scalars[gpu::kExecLow + 1] = m.size() == 64 ? 0xFFFFFFFFU : 0;
  }
};

// Halves of finite numbers, of which sums and products lose bits, overflow and become subnormal.
uint32_t halves(std::mt19937_64& random) {
  const auto one = [&] {
    const auto x = static_cast<uint32_t>(random() & 0xFFFFU);
    return (x & 0x7C00U) == 0x7C00U ? x & 0x83FFU : x;
  };
  return one() | one() << 16U;
}
double half_of(uint32_t x, bool high) { return number(x >> (high ? 16 : 0) & 0xFFFFU, kHalf); }
std::string list(unsigned bits_of, int count) {
  std::string text = "[";
  for (int n = 0; n < count; ++n) text += (n > 0 ? "," : "") + std::to_string(bits_of >> n & 1U);
  return text + "]";
}
bool chosen(unsigned of, int n) { return (of >> n & 1U) != 0; }

struct Choice {
  unsigned low, high, negate_low, negate_high;  // bits of op_sel, op_sel_hi, neg_lo, neg_hi
};

TEST_P(IsaInstructions, PackedHalvesTakeWhatTheirBitsSay) {
  std::mt19937_64 random(test_seed() + 31);
  SCOPED_TRACE("FULMEN_TEST_SEED=" + std::to_string(test_seed()));
  const std::vector<std::pair<std::string, int>> names{
      {"v_pk_add_f16", 2}, {"v_pk_mul_f16", 2}, {"v_pk_fma_f16", 3}};
  std::vector<std::string> lines;
  std::vector<Choice> choices;
  for (int n = 0; n < 60; ++n) {
    const auto& [name, sources] = names[static_cast<std::size_t>(n % 3)];
    const auto draw = [&, count = sources] {
      return static_cast<unsigned>(random() % (1U << count));
    };
    choices.push_back({draw(), draw(), draw(), draw()});
    const Choice& c = choices.back();
    lines.push_back(name + " v3, v0, v1" + (sources == 3 ? ", v2" : "") +
                    " op_sel:" + list(c.low, sources) + " op_sel_hi:" + list(c.high, sources) +
                    " neg_lo:" + list(c.negate_low, sources) +
                    " neg_hi:" + list(c.negate_high, sources));
  }
  const auto assembled = assemble(lines, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    for (int l = 0; l < m.size(); ++l) {
      for (int r = 0; r < 3; ++r) m.vector(r, l) = halves(random);
    }
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int l = 0; l < m.size(); ++l) {
      uint64_t expected = 0;
      for (const bool high : {false, true}) {
        const Choice& c = choices[n];
        const auto source = [&](int s) {
          const double x = half_of(m.vector(s, l), chosen(high ? c.high : c.low, s));
          return chosen(high ? c.negate_high : c.negate_low, s) ? -x : x;
        };
        const double result = n % 3 == 0   ? source(0) + source(1)
                              : n % 3 == 1 ? source(0) * source(1)
                                           : manual::odd_sum(source(0) * source(1), source(2));
        expected |= bits(result, kHalf) << (high ? 16 : 0);
      }
      ASSERT_EQ(m.vector(3, l), expected) << lines[n] << ", lane " << l;
    }
  }
}

TEST_P(IsaInstructions, MatrixInstructionsModifyWhatTheyAddTo) {
  if (cdna()) GTEST_SKIP() << "MFMA has no such modifiers";
  const bool gfx11 = GetParam().starts_with("gfx11");
  const std::string product = std::string("v_wmma_f32_16x16x16_f16 v[0:7], ") +
                              (gfx11 ? "v[8:15], v[16:23], v[0:7]" : "v[8:11], v[12:15], v[0:7]");
  const auto assembled =
      assemble({product, product + " neg_lo:[0,0,1]", product + " neg_hi:[0,0,1]",
                product + " neg_lo:[0,0,1] neg_hi:[0,0,1]", product + " neg_lo:[1,0,0]"},
               GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  for (std::size_t n = 0; n < assembled->code.size(); ++n) {
    for (int l = 0; l < m.size(); ++l) {
      for (int r = 0; r < 24; ++r) m.vector(r, l) = 0;
      for (int r = 0; r < 8; ++r)  // of both signs
        m.vector(r, l) = std::bit_cast<uint32_t>(static_cast<float>(8 * l + r - 100));
    }
    if (n == 4) {
      EXPECT_NE(m.run(assembled->code[n]), "");
      continue;
    }
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int l = 0; l < m.size(); ++l) {
      for (int r = 0; r < 8; ++r) {
        float expected = static_cast<float>(8 * l + r - 100);
        if (n >= 2) expected = std::fabs(expected);
        if (n % 2 == 1) expected = -expected;
        EXPECT_EQ(std::bit_cast<float>(m.vector(r, l)), expected) << n << ", lane " << l;
      }
    }
  }
}

TEST_P(IsaInstructions, MixedSumsTakeHalvesAndWords) {
  std::mt19937_64 random(test_seed() + 32);
  SCOPED_TRACE("FULMEN_TEST_SEED=" + std::to_string(test_seed()));
  const std::array<std::string, 3> names{"v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"};
  std::vector<std::string> lines;
  std::vector<Choice> choices;
  for (std::size_t n = 0; n < 60; ++n) {
    choices.push_back(
        {static_cast<unsigned>(random() % 8), static_cast<unsigned>(random() % 8), 0, 0});
    lines.push_back(names[n % 3] + " v3, v0, v1, v2 op_sel:" + list(choices[n].low, 3) +
                    " op_sel_hi:" + list(choices[n].high, 3));
  }
  const auto assembled = assemble(lines, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    for (int l = 0; l < m.size(); ++l) {
      for (int r = 0; r < 4; ++r) {
        // As a word it is an fp32 number in fp16's range, too.
        m.vector(r, l) =
            chosen(choices[n].high, r % 3)
                ? halves(random)
                : static_cast<uint32_t>(bits(half_of(halves(random), false) / 3, kSingle));
      }
    }
    std::vector<uint32_t> old;
    for (int l = 0; l < m.size(); ++l) old.push_back(m.vector(3, l));
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int l = 0; l < m.size(); ++l) {
      const auto source = [&](int s) {
        return chosen(choices[n].high, s) ? half_of(m.vector(s, l), chosen(choices[n].low, s))
                                          : number(m.vector(s, l), kSingle);
      };
      const uint64_t sum = bits(manual::odd_sum(source(0) * source(1), source(2)), kSingle);
      const uint64_t half = bits(number(sum, kSingle), kHalf),
                     before = old[static_cast<std::size_t>(l)];
      const uint64_t expected = n % 3 == 0   ? sum
                                : n % 3 == 1 ? (before & 0xFFFF0000U) | half
                                             : (before & 0xFFFFU) | half << 16U;
      ASSERT_EQ(m.vector(3, l), expected) << lines[n] << ", lane " << l;
    }
  }
}

// Pairs of words, from CDNA2 on.
TEST_P(IsaInstructions, MovesTheWordsThatTheirBitsSay) {
  if (!has_pairs()) GTEST_SKIP() << "the chip has none";
  std::vector<std::string> lines;
  for (unsigned n = 0; n < 4; ++n)
    lines.push_back("v_pk_mov_b32 v[6:7], v[0:1], v[2:3] op_sel:" + list(n, 2));
  lines.emplace_back("v_pk_mov_b32 v[6:7], s[0:1], s[0:1] op_sel:[0,1]");
  const auto assembled = assemble(lines, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  for (int l = 0; l < m.size(); ++l) {
    for (int r = 0; r < 4; ++r) m.vector(r, l) = 0x7F800001U + static_cast<uint32_t>(100 * r + l);
  }
  m.wave().scalars[0] = 5;
  m.wave().scalars[1] = 6;
  for (unsigned n = 0; n < lines.size(); ++n) {
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int l = 0; l < m.size(); ++l) {
      ASSERT_EQ(m.vector(6, l), n == 4 ? 5 : m.vector(chosen(n, 0) ? 1 : 0, l)) << lines[n];
      ASSERT_EQ(m.vector(7, l), n == 4 ? 6 : m.vector(chosen(n, 1) ? 3 : 2, l)) << lines[n];
    }
  }
}

// CDNA2's and CDNA3's pairs of fp32 numbers.
TEST_P(IsaInstructions, PackedWordsTakeWhatTheirBitsSay) {
  if (!has_pairs()) GTEST_SKIP() << "the chip has none";
  std::mt19937_64 random(test_seed() + 33);
  SCOPED_TRACE("FULMEN_TEST_SEED=" + std::to_string(test_seed()));
  std::vector<std::string> lines;
  std::vector<Choice> choices;
  for (int n = 0; n < 30; ++n) {
    const auto draw = [&] { return static_cast<unsigned>(random() % 8); };
    choices.push_back({draw(), draw(), draw(), draw()});
    const Choice& c = choices.back();
    lines.push_back("v_pk_fma_f32 v[6:7], v[0:1], v[2:3], v[4:5] op_sel:" + list(c.low, 3) +
                    " op_sel_hi:" + list(c.high, 3) + " neg_lo:" + list(c.negate_low, 3) +
                    " neg_hi:" + list(c.negate_high, 3));
  }
  const auto assembled = assemble(lines, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    for (int l = 0; l < m.size(); ++l) {
      for (int r = 0; r < 6; ++r)
        m.vector(r, l) = static_cast<uint32_t>(bits(half_of(halves(random), true) / 7, kSingle));
    }
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int l = 0; l < m.size(); ++l) {
      for (const bool high : {false, true}) {
        const Choice& c = choices[n];
        const auto source = [&](int s) {
          const double x =
              number(m.vector(2 * s + (chosen(high ? c.high : c.low, s) ? 1 : 0), l), kSingle);
          return chosen(high ? c.negate_high : c.negate_low, s) ? -x : x;
        };
        ASSERT_EQ(m.vector(high ? 7 : 6, l),
                  bits(manual::odd_sum(source(0) * source(1), source(2)), kSingle))
            << lines[n];
      }
    }
  }
}

TEST_P(IsaInstructions, PermlanesTakeTheLaneThatTheSelectionSays) {
  if (cdna()) GTEST_SKIP() << "CDNA has none";
  const std::vector<std::string> lines{"v_permlane16_b32 v1, v0, s0, s1",
                                       "v_permlanex16_b32 v1, v0, s0, s1"};
  const auto assembled = assemble(lines, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  std::mt19937_64 random(test_seed() + 34);
  for (int n = 0; n < 20; ++n) {
    m.wave().scalars[0] = static_cast<uint32_t>(random());
    m.wave().scalars[1] = static_cast<uint32_t>(random());
    const uint64_t selection = m.wave().scalars[0] | uint64_t{m.wave().scalars[1]} << 32U;
    for (int l = 0; l < 32; ++l) m.vector(0, l) = 100 + static_cast<uint32_t>(l);
    ASSERT_EQ(m.run(assembled->code[static_cast<std::size_t>(n % 2)]), "");
    for (int l = 0; l < 32; ++l) {
      const uint64_t row = n % 2 == 0 ? l / 16 : 1 - l / 16,
                     from = 16 * row + (selection >> (4 * (l % 16)) & 15U);
      ASSERT_EQ(m.vector(1, l), 100 + from)
          << lines[static_cast<std::size_t>(n % 2)] << ", lane " << l;
    }
  }
}

// Halves of registers by name, as clang 22 writes them for gfx11; and op_sel's bit for the result.
TEST(IsaHalves, AreReadAndWrittenByName) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  struct Case {
    const char* line;
    uint32_t (*result)(uint32_t a, uint32_t b, uint32_t old);
  };
  static constexpr auto kSum = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(
        bits(number(a & 0xFFFFU, kHalf) + number(b & 0xFFFFU, kHalf), kHalf));
  };
  const Case cases[] = {
      {"v_mov_b16_e32 v3.h, v0.l",
       [](uint32_t a, uint32_t, uint32_t old) { return (old & 0xFFFFU) | a << 16U; }},
      {"v_mov_b16_e32 v3.l, v0.h",
       [](uint32_t a, uint32_t, uint32_t old) { return (old & 0xFFFF0000U) | a >> 16U; }},
      {"v_cndmask_b16 v3.h, v0.h, v1.l, vcc_lo",
       [](uint32_t a, uint32_t, uint32_t old) { return (old & 0xFFFFU) | (a & 0xFFFF0000U); }},
      {"v_add_f16 v3.h, v0.l, v1.h",
       [](uint32_t a, uint32_t b, uint32_t old) {
         return (old & 0xFFFFU) | kSum(a, b >> 16U) << 16U;
       }},
      {"v_and_b16 v3.l, v0.h, v1.l",
       [](uint32_t a, uint32_t b, uint32_t old) { return (old & 0xFFFF0000U) | (a >> 16U & b); }}};
  std::vector<std::string> lines;
  for (const Case& c : cases) lines.emplace_back(c.line);
  const auto assembled = assemble(lines, "gfx1153");
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFFU;
  m.wave().scalars[gpu::kVccLow] = 0;
  std::mt19937_64 random(test_seed() + 35);
  for (std::size_t n = 0; n < lines.size(); ++n) {
    std::array<std::array<uint32_t, 3>, 32> before{};
    for (int l = 0; l < 32; ++l) {
      before[static_cast<std::size_t>(l)] = {halves(random), halves(random), halves(random)};
      for (int r = 0; r < 3; ++r)
        m.vector(r == 2 ? 3 : r, l) =
            before[static_cast<std::size_t>(l)][static_cast<std::size_t>(r)];
    }
    ASSERT_EQ(m.run(assembled->code[n]), "");
    for (int l = 0; l < 32; ++l) {
      const auto& [a, b, old] = before[static_cast<std::size_t>(l)];
      EXPECT_EQ(m.vector(3, l), cases[n].result(a, b, old)) << lines[n] << ", lane " << l;
    }
  }
}

TEST_P(IsaInstructions, TheLastBitOfASelectionIsTheResults) {
  if (cdna()) GTEST_SKIP() << "gfx9 has op_sel in few instructions";
  const auto assembled = assemble({"v_add_nc_u16 v3, v0, v1 op_sel:[0,1,1]"}, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  std::mt19937_64 random(test_seed() + 36);
  for (int l = 0; l < m.size(); ++l) {
    for (const int r : {0, 1, 3}) m.vector(r, l) = halves(random);
  }
  std::vector<uint32_t> old;
  for (int l = 0; l < m.size(); ++l) old.push_back(m.vector(3, l));
  ASSERT_EQ(m.run(assembled->code[0]), "");
  for (int l = 0; l < m.size(); ++l) {
    const uint32_t sum = m.vector(0, l) + (m.vector(1, l) >> 16U);
    EXPECT_EQ(m.vector(3, l), (old[static_cast<std::size_t>(l)] & 0xFFFFU) | sum << 16U);
  }
}

// Written by hand: bits of fp32 and of the fp16 number that they round to.
TEST_P(IsaInstructions, ConvertsNumbersThatRoundingIsAbout) {
  constexpr std::array<std::pair<uint32_t, uint32_t>, 19> kToHalf{{{0x3F800000, 0x3C00},  // 1
                                                                   {0x80000000, 0x8000},
                                                                   {0x7F800000, 0x7C00},
                                                                   {0xFF800000, 0xFC00},
                                                                   // 65504, the largest.
                                                                   {0x477FE000, 0x7BFF},
                                                                   {0x477FEFFF, 0x7BFF},
                                                                   // 65520: half way to 65536.
                                                                   {0x477FF000, 0x7C00},
                                                                   // 2^-14, the smallest normal
                                                                   // one.
                                                                   {0x38800000, 0x0400},
                                                                   // The largest subnormal one.
                                                                   {0x387FC000, 0x03FF},
                                                                   // Half way: to even.
                                                                   {0x387FE000, 0x0400},
                                                                   {0x33800000, 0x0001},  // 2^-24
                                                                   // Half of it: to even.
                                                                   {0x33000000, 0x0000},
                                                                   {0x33000001, 0x0001},
                                                                   // 1.5 of it: to even.
                                                                   {0x33C00000, 0x0002},
                                                                   {0xB3C00000, 0x8002},
                                                                   // A subnormal fp32 number.
                                                                   {0x00000001, 0x0000},
                                                                   // 1 + half an ulp: to even.
                                                                   {0x3F801000, 0x3C00},
                                                                   {0x3F803000, 0x3C02},
                                                                   {0x3F801001, 0x3C01}}};
  const auto assembled = assemble({"v_cvt_f16_f32 v1, v0", "v_cvt_f32_f16 v2, v1"}, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  for (std::size_t l = 0; l < kToHalf.size(); ++l) {
    m.vector(0, static_cast<int>(l)) = kToHalf[l].first;
    m.vector(1, static_cast<int>(l)) = 0;
  }
  m.vector(0, 20) = 0x7F800001;  // NaN
  ASSERT_EQ(m.run(assembled->code[0]), "");
  ASSERT_EQ(m.run(assembled->code[1]), "");
  for (std::size_t l = 0; l < kToHalf.size(); ++l) {
    const auto lane = static_cast<int>(l);
    EXPECT_EQ(m.vector(1, lane) & 0xFFFFU, kToHalf[l].second) << std::hex << kToHalf[l].first;
    EXPECT_EQ(m.vector(2, lane), bits(number(kToHalf[l].second, kHalf), kSingle))
        << "back, of " << std::hex << kToHalf[l].second;
  }
  EXPECT_GT(m.vector(1, 20) & 0x7FFFU, 0x7C00U) << "NaN stays NaN";
  EXPECT_GT(m.vector(2, 20) & 0x7FFFFFFFU, 0x7F800000U);
}

// The pairs of instructions by which kernels round to bf16 (kernels/platforms/amd.h) are ordinary
// integer ones. The table has bits of fp32 numbers, and of the bf16 numbers that they must give.
TEST_P(IsaInstructions, RoundsToBf16) {
  constexpr std::array<std::pair<uint32_t, uint32_t>, 8> kNumbers{{{0x3F800000, 0x3F80},
                                                                   // Half an ulp: to even.
                                                                   {0x3F808000, 0x3F80},
                                                                   {0x3F818000, 0x3F82},
                                                                   {0x3F808001, 0x3F81},
                                                                   // Rounds to infinity.
                                                                   {0x7F7FFFFF, 0x7F80},
                                                                   {0x00000001, 0x0000},
                                                                   // The smallest subnormal one.
                                                                   {0x00008001, 0x0001},
                                                                   {0xFF800000, 0xFF80}}};
  const std::vector<std::string> lines{"v_bfe_u32 v1, v0, 16, 1", "v_add3_u32 v1, v0, v1, s0",
                                       "v_lshrrev_b32 v1, 16, v1"};
  const auto assembled = assemble(lines, GetParam());
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  Machine m(assembled->program);
  turn_all_on(m);
  m.wave().scalars[0] = 0x7FFF;
  for (std::size_t l = 0; l < kNumbers.size(); ++l)
    m.vector(0, static_cast<int>(l)) = kNumbers[l].first;
  for (const auto& instruction : assembled->code) ASSERT_EQ(m.run(instruction), "");
  for (std::size_t l = 0; l < kNumbers.size(); ++l)
    EXPECT_EQ(m.vector(1, static_cast<int>(l)), kNumbers[l].second);
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaInstructions,
                         ::testing::ValuesIn(test_chips(is_amd, Chips::one_of_each_target)),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fulmen::testing
