// Conversions of fp8 codes to fp32, all codes in every byte that an instruction names, against the
// formats' definitions, which are written out here: OCP's 8-bit formats (OFP8), and those of MI300,
// which have another bias and -0 as their only NaN.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "isa/machine.h"

namespace fulmen::testing {
namespace {

double number(unsigned code, int digits, bool fnuz) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto exponent = static_cast<int>(code >> digits & (0x7FU >> digits));
  const auto fraction = static_cast<int>(code & ((1U << digits) - 1U));
  const int largest = (1 << (7 - digits)) - 1, bias = (1 << (6 - digits)) - (fnuz ? 0 : 1);
  if (fnuz && code == 0x80U) return kNan;
  if (!fnuz && exponent == largest) {
    if (digits == 2 && fraction == 0)
      return code == 0x7CU ? std::numeric_limits<double>::infinity()
                           : -std::numeric_limits<double>::infinity();
    if (digits == 2 || fraction == 7) return kNan;
  }
  const double size = exponent == 0
                          ? std::ldexp(fraction, 1 - bias - digits)
                          : std::ldexp((1 << digits) + fraction, exponent - bias - digits);
  return code >= 0x80U ? -size : size;
}

struct Conversion {
  std::string line;
  int digits, byte, count;  // of the fraction; the first byte, how many
};

std::vector<Conversion> conversions(bool names_parts) {
  std::vector<Conversion> all;
  for (const int digits : {3, 2}) {
    const std::string format = digits == 3 ? "fp8" : "bf8";
    for (int byte = 0; byte < 4; ++byte) {
      const std::string n = std::to_string(byte);
      all.push_back({names_parts ? "v_cvt_f32_" + format + "_sdwa v4, v0 src0_sel:BYTE_" + n
                                 : "v_cvt_f32_" + format + "_e64 v4, v0 byte_sel:" + n,
                     digits, byte, 1});
    }
    all.push_back({"v_cvt_f32_" + format + "_e32 v4, v0", digits, 0, 1});
    all.push_back({"v_cvt_pk_f32_" + format + "_e32 v[4:5], v0", digits, 0, 2});
    all.push_back({names_parts ? "v_cvt_pk_f32_" + format + "_sdwa v[4:5], v0 src0_sel:WORD_1"
                               : "v_cvt_pk_f32_" + format + "_e64 v[4:5], v0 op_sel:[1,0]",
                   digits, 2, 2});
    if (names_parts) {  // what is the same in all lanes
      all.push_back({"v_cvt_pk_f32_" + format + "_sdwa v[4:5], s4 src0_sel:WORD_1", digits, 2, 2});
      all.push_back({"v_cvt_f32_" + format + "_sdwa v4, s4 src0_sel:BYTE_3", digits, 3, 1});
    }
  }
  return all;
}

class IsaFp8Numbers : public ::testing::TestWithParam<const char*> {};

TEST_P(IsaFp8Numbers, AreThoseOfTheCodes) {
  if (const std::string why = why_not_executed(); !why.empty()) GTEST_SKIP() << why;
  const std::string arch = GetParam();
  const bool fnuz = arch == "gfx942";
  const std::vector<Conversion> all = conversions(arch.starts_with("gfx9"));
  std::vector<std::string> lines;
  for (const Conversion& c : all) lines.push_back(c.line);
  const auto assembled = assemble(lines, arch);
  ASSERT_TRUE(assembled.ok()) << assembled.status().message();
  for (std::size_t n = 0; n < all.size(); ++n) {
    const Conversion& c = all[n];
    const bool uniform = c.line.find("s4") != std::string::npos;
    Machine m(assembled->program);
    m.wave().scalars[gpu::kExecLow] = 0xFFFFFFFFU;
    m.wave().scalars[gpu::kExecLow + 1] = m.size() == 64 ? 0xFFFFFFFFU : 0;
    const int step = uniform ? 1 : m.size();
    for (int first = 0; first < 256; first += step) {
      const auto code_of = [&](int lane, int byte) {
        return (static_cast<unsigned>(first + (uniform ? 0 : lane)) + 37U * byte) & 0xFFU;
      };
      for (int l = 0; l < m.size(); ++l) {
        uint32_t word = 0;
        for (int byte = 0; byte < 4; ++byte) word |= code_of(l, byte) << (8 * byte);
        m.vector(0, l) = word;
        m.wave().scalars[4] = word;
      }
      ASSERT_EQ(m.run(assembled->code[n]), "") << c.line;
      for (int l = 0; l < m.size(); ++l) {
        for (int i = 0; i < c.count; ++i) {
          const unsigned code = code_of(l, c.byte + i);
          const double expected = number(code, c.digits, fnuz);
          const auto found = std::bit_cast<float>(m.vector(4 + i, l));
          ASSERT_TRUE(std::isnan(expected)
                          ? std::isnan(found)
                          : found == expected && std::signbit(found) == std::signbit(expected))
              << arch << " " << c.line << " code " << code << ": " << found << ", not " << expected;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Chips, IsaFp8Numbers, ::testing::Values("gfx942", "gfx950", "gfx1201"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace fulmen::testing
