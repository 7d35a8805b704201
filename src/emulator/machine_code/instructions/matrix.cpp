// Matrix instructions by AMD's documented layouts (docs/internals/amd_facts.md). Products of 16-bit
// numbers are exact in fp32 and are added in the order of k, as in the emulator of the source; the
// hardware's order is not documented.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "emulator/machine_code/instructions/matrix_product.h"
#include "emulator/machine_code/instructions/table.h"

namespace fulmen::gpu::isa {
namespace {

struct Fp16 {
  static float number(uint32_t bits) { return to_float(Half{static_cast<uint16_t>(bits)}); }
};
struct Bf16 {
  static float number(uint32_t bits) { return std::bit_cast<float>(bits << 16U); }
};

// Lane maps. Lanes form blocks of kSize. Lane n of a block holds row n of A, column n of B and
// column n of D. depth() gives the k of element e of A and B, result_row() D's row in register r.
// They are independent of targets/*/emulated.h; tests/support/lane_maps.cpp checks both.

// RDNA3, wave32: both blocks hold the same 16 elements.
struct Gfx11 {
  static constexpr int kWave = 32, kSize = 16, kMmaK = 16, kElements = 16, kResults = 8;
  static int depth(int /*block*/, int e) { return e; }
  static int result_row(int block, int r) { return 2 * r + block; }
};
struct Gfx12 {
  static constexpr int kWave = 32, kSize = 16, kMmaK = 16, kElements = 8, kResults = 8;
  static int depth(int block, int e) { return 8 * (e / 4) + 4 * block + e % 4; }
  static int result_row(int block, int r) { return 8 * block + r; }
};
struct Mfma16 {
  static constexpr int kWave = 64, kSize = 16, kMmaK = 16, kElements = 4, kResults = 4;
  static int depth(int block, int e) { return 4 * block + e; }
  static int result_row(int block, int r) { return 4 * block + r; }
};
// CDNA4: twice the depth.
struct Mfma16Deep {
  static constexpr int kWave = 64, kSize = 16, kMmaK = 32, kElements = 8, kResults = 4;
  static int depth(int block, int e) { return 8 * block + e; }
  static int result_row(int block, int r) { return 4 * block + r; }
};
struct Mfma32 {
  static constexpr int kWave = 64, kSize = 32, kMmaK = 8, kElements = 4, kResults = 16;
  static int depth(int block, int e) { return 4 * block + e; }
  static int result_row(int block, int r) { return 8 * (r / 4) + 4 * block + r % 4; }
};

template <class Layout, class T>
void read_operand(const Wave& w, const Operand& o, float (&to)[Layout::kMmaK][Layout::kSize]) {
  constexpr int kBlocks = Layout::kMmaK / Layout::kElements;  // the first ones have every k
  if (o.source != Operand::Source::vector)
    fail("takes A and B from other than vector registers, which is not known to the emulator");
  for (int e = 0; e < Layout::kElements; ++e) {
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t* const from = row<Layout::kWave>(w, o.index + e / 2) +
                                   static_cast<std::ptrdiff_t>(block) * Layout::kSize;
      float* const numbers = to[Layout::depth(block, e)];
      for (int n = 0; n < Layout::kSize; ++n)
        numbers[n] = T::number(from[n] >> (16 * (e % 2)) & 0xFFFFU);
    }
  }
}

void check_halves_equal(const Wave& w, const Operand& o) {
  for (int r = o.index; r < o.index + o.count; ++r) {
    const uint32_t* const lanes = row<32>(w, r);
    if (std::memcmp(lanes, lanes + 16, 16 * sizeof(uint32_t)) != 0)
      fail("has different operands in lanes l and l + 16");
  }
}

// WMMA's modifiers of C: its magnitude (neg_hi) and its negation (neg_lo). A and B of 16 bits have
// some, too, which no compiler here makes.
class AddendModifiers {
 public:
  explicit AddendModifiers(const Instruction& i)
      : magnitude_((i.neg_hi & kOfC) != 0), negation_((i.neg_lo & kOfC) != 0) {
    if (((i.neg_lo | i.neg_hi) & ~kOfC) != 0)
      fail("modifies A or B, which is not known to the emulator");
  }
  void apply(std::span<float> addends) const {
    if (!magnitude_ && !negation_) return;
    for (float& x : addends) {
      if (magnitude_) x = std::fabs(x);
      if (negation_) x = -x;
    }
  }

 private:
  static constexpr int kOfC = 1 << 2;
  bool magnitude_, negation_;
};

template <class Layout, class T, bool kNeedsAllLanes, bool kRepeated>
void multiply(Wave& w, const Instruction& i) {
  constexpr int kSize = Layout::kSize;
  if (kNeedsAllLanes && !w.all_on()) fail("is a matrix instruction where lanes are off");
  if (kRepeated) {
    check_halves_equal(w, i.operand[1]);
    check_halves_equal(w, i.operand[2]);
  }
  alignas(64) float a[Layout::kMmaK][kSize], b[Layout::kMmaK][kSize];
  read_operand<Layout, T>(w, i.operand[1], a);
  read_operand<Layout, T>(w, i.operand[2], b);
  const Operand &c = i.operand[3], &d = i.operand[0];
  const auto constant = std::bit_cast<float>(scalar32(w, c));
  const AddendModifiers modifiers(i);
  alignas(64) float result[kSize][kSize];
  for (int r = 0; r < Layout::kResults; ++r) {
    for (int block = 0; block < Layout::kWave / kSize; ++block) {
      float* const to = result[Layout::result_row(block, r)];
      if (c.source == Operand::Source::vector) {
        std::memcpy(to, row<Layout::kWave>(w, c.index + r) + block * kSize, sizeof *result);
      } else {
        std::fill_n(to, kSize, constant);
      }
      modifiers.apply({to, kSize});
    }
  }
  add_product<kSize>(a, b, result, Layout::kMmaK);
  for (int r = 0; r < Layout::kResults; ++r) {
    for (int block = 0; block < Layout::kWave / kSize; ++block) {
      const float* const from = result[Layout::result_row(block, r)];
      std::memcpy(row<Layout::kWave>(w, d.index + r) + block * kSize, from, sizeof *result);
    }
  }
}

// The number of an operand's registers tells which of the two RDNA layouts it has.
template <class T>
void wmma(Wave& w, const Instruction& i) {
  if (i.operand[1].count == 8) {
    multiply<Gfx11, T, true, true>(w, i);
  } else {
    multiply<Gfx12, T, true, false>(w, i);
  }
}

}  // namespace

void add_matrix_instructions(Table& t) {
  t.add("v_wmma_f32_16x16x16_f16", {wmma<Fp16>, nullptr, Kind::matrix, false});
  t.add("v_wmma_f32_16x16x16_bf16", {wmma<Bf16>, nullptr, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x16_f16",
        {nullptr, multiply<Mfma16, Fp16, false, false>, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x16_bf16",
        {nullptr, multiply<Mfma16, Bf16, false, false>, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x32_f16",
        {nullptr, multiply<Mfma16Deep, Fp16, false, false>, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x32_bf16",
        {nullptr, multiply<Mfma16Deep, Bf16, false, false>, Kind::matrix, false});
  t.add("v_mfma_f32_32x32x8_f16",
        {nullptr, multiply<Mfma32, Fp16, false, false>, Kind::matrix, false});
  t.add("v_mfma_f32_32x32x8_bf16",
        {nullptr, multiply<Mfma32, Bf16, false, false>, Kind::matrix, false});
}

}  // namespace fulmen::gpu::isa
