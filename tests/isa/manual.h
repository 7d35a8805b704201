// Instructions as AMD's ISA documents (RDNA2, RDNA3, RDNA4, MI300, Vega 7nm) describe them: a
// table, and numbers computed in double. It shares nothing with the emulator.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fulmen::testing::manual {

enum class Family { gfx9, gfx11, gfx12, gfx906, gfx10 };

using U = uint64_t;
// By family; null where there is none. gfx906 and gfx10 have a name of their own only where gfx9's
// and gfx11's is not theirs, see name_of().
using Names = std::array<const char*, 5>;
inline Names all(const char* name) { return {name, name, name}; }
// The name in a family; "" where it has no such instruction.
std::string name_of(const Names& names, Family family);
inline int64_t s32(U x) { return static_cast<int32_t>(static_cast<uint32_t>(x)); }

// A floating point format: bits of mantissa, and the exponent of its smallest normal number.
struct Format {
  int mantissa, least;
};
constexpr Format kSingle{23, -126}, kHalf{10, -14}, kBf16{7, -126};
double number(uint64_t bits, Format format);
// Nearest, ties to even; or toward zero.
uint64_t bits(double x, Format format, bool toward_zero = false);

// The sum in double. If it is not exact, its last bit is set (round to odd), so that rounding it
// again to fewer bits gives the correctly rounded result.
double odd_sum(double a, double b);

struct Result {
  uint64_t value = 0;
  bool carry = false;
  Result(uint64_t v, bool c = false) : value(v), carry(c) {}
};

struct VectorRow {
  Names name;
  // Types of the result, then of the sources. f: fp32, h: fp16, u: 32 bits, q: 64 bits, w: 16 bits,
  // p: two fp16, m: a bit of a mask; c, C: 32 and 64 bits and a carry; d: the result's old value,
  // which is no operand.
  const char* types;
  Result (*compute)(uint64_t a, uint64_t b, uint64_t c);
  bool approximate = false;  // within an ulp
};
const std::vector<VectorRow>& vector_rows();

struct ScalarRow {
  Names name;
  const char* types;  // u, q; f; "-": no result
  // SCC is an input and an output.
  uint64_t (*compute)(uint64_t a, uint64_t b, bool& scc);
};
const std::vector<ScalarRow>& scalar_rows();

}  // namespace fulmen::testing::manual
