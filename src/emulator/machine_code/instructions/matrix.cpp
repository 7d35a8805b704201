// Matrix instructions by AMD's documented layouts (docs/internals/amd_facts.md). Products of 16-bit
// numbers are exact in fp32 and are added in the order of k, as in the emulator of the source; the
// hardware's order is not documented.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "emulator/machine_code/instructions/matrix_operands.h"
#include "emulator/machine_code/instructions/matrix_product.h"
#include "emulator/machine_code/instructions/table.h"
#include "runtime/kv_formats.h"

namespace fulmen::gpu::isa {
namespace {

// Numbers of an operand: how many a register holds, and what they are.
struct Fp16 {
  static constexpr int kOfWord = 2;
  static constexpr float kSmallestNormal = 0x1p-14F;
  static float number(uint32_t bits) { return to_float(Half{static_cast<uint16_t>(bits)}); }
};
struct Bf16 {
  static constexpr int kOfWord = 2;
  static constexpr float kSmallestNormal = 0x1p-126F;
  static float number(uint32_t bits) { return std::bit_cast<float>(bits << 16U); }
};

template <DType kFormat>
struct Fp8 {
  static constexpr int kOfWord = 4;
  static float number(uint32_t bits) {
    return reference::from_fp8(kFormat, static_cast<uint8_t>(bits));
  }
};

struct Fp32 {
  static constexpr int kOfWord = 1;
  static float number(uint32_t bits) { return std::bit_cast<float>(bits); }
};

// CDNA1 and CDNA2: subnormal numbers count as 0, in operands and in sums.
inline float flushed(float x, float smallest) { return std::fabs(x) < smallest ? 0.0F : x; }
template <class T>
struct Flushed : T {
  static float number(uint32_t bits) { return flushed(T::number(bits), T::kSmallestNormal); }
};
template <class T>
constexpr bool kFlushes = false;
template <class T>
constexpr bool kFlushes<Flushed<T>> = true;

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
// Bytes are neighbours.
struct Gfx12Fp8 : Gfx12 {
  static int depth(int block, int e) { return 8 * block + e; }
};
// kElements of A and B a lane, 16 x 16 and 32 x 32.
template <int kOfLane>
struct Mfma16 {
  static constexpr int kWave = 64, kSize = 16, kMmaK = 4 * kOfLane, kElements = kOfLane,
                       kResults = 4;
  static int depth(int block, int e) { return kOfLane * block + e; }
  static int result_row(int block, int r) { return 4 * block + r; }
};
template <int kOfLane>
struct Mfma32 {
  static constexpr int kWave = 64, kSize = 32, kMmaK = 2 * kOfLane, kElements = kOfLane,
                       kResults = 16;
  static int depth(int block, int e) { return kOfLane * block + e; }
  static int result_row(int block, int r) { return 8 * (r / 4) + 4 * block + r % 4; }
};

template <class Layout, class T>
void read_operand(const Wave& w, const Operand& o, float (&to)[Layout::kMmaK][Layout::kSize]) {
  constexpr int kBlocks = Layout::kMmaK / Layout::kElements,  // the first ones have every k
      kBits = 32 / T::kOfWord;
  if (o.source != Operand::Source::vector)
    fail("takes A and B from other than vector registers, which is not known to the emulator");
  for (int e = 0; e < Layout::kElements; ++e) {
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t* const from = row<Layout::kWave>(w, o.index + e / T::kOfWord) +
                                   static_cast<std::ptrdiff_t>(block) * Layout::kSize;
      float* const numbers = to[Layout::depth(block, e)];
      for (int n = 0; n < Layout::kSize; ++n)
        numbers[n] = T::number(from[n] << (32 - kBits * (e % T::kOfWord + 1)) >> (32 - kBits));
    }
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

template <class T>
void flush_sums(std::span<float> sums) {
  if constexpr (kFlushes<T>) {
    for (float& x : sums) x = flushed(x, std::numeric_limits<float>::min());
  }
}

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
  flush_sums<T>(std::span(&result[0][0], kSize * kSize));
  add_product<kSize>(a, b, result, Layout::kMmaK);
  flush_sums<T>(std::span(&result[0][0], kSize * kSize));
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

template <class Layout, class T>
Entry mfma() {
  return {nullptr, multiply<Layout, T, false, false>, Kind::matrix, false};
}

}  // namespace

void check_halves_equal(const Wave& w, const Operand& o) {
  for (int r = o.index; r < o.index + o.count; ++r) {
    const uint32_t* const lanes = row<32>(w, r);
    if (std::memcmp(lanes, lanes + 16, 16 * sizeof(uint32_t)) != 0)
      fail("has different operands in lanes l and l + 16");
  }
}

void add_matrix_instructions(Table& t) {
  t.add("v_wmma_f32_16x16x16_f16", {wmma<Fp16>, nullptr, Kind::matrix, false});
  t.add("v_wmma_f32_16x16x16_bf16", {wmma<Bf16>, nullptr, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x16_f16", mfma<Mfma16<4>, Fp16>());
  t.add("v_mfma_f32_16x16x16_bf16", mfma<Mfma16<4>, Bf16>());
  t.add("v_mfma_f32_32x32x8_f16", mfma<Mfma32<4>, Fp16>());
  t.add("v_mfma_f32_32x32x8_bf16", mfma<Mfma32<4>, Bf16>());
  t.add("v_mfma_f32_16x16x32_f16", mfma<Mfma16<8>, Fp16>());
  t.add("v_mfma_f32_16x16x32_bf16", mfma<Mfma16<8>, Bf16>());
  t.add("v_mfma_f32_32x32x16_f16", mfma<Mfma32<8>, Fp16>());
  t.add("v_mfma_f32_32x32x16_bf16", mfma<Mfma32<8>, Bf16>());
  t.add("v_wmma_f32_16x16x16_fp8_fp8",
        {multiply<Gfx12Fp8, Fp8<DType::fp8_e4m3>, true, false>, nullptr, Kind::matrix, false});
  t.add("v_mfma_f32_16x16x32_fp8_fp8", mfma<Mfma16<8>, Fp8<DType::fp8_e4m3>>());
  t.add("v_mfma_f32_16x16x32_fp8_fp8_fnuz", mfma<Mfma16<8>, Fp8<DType::fp8_e4m3fnuz>>());
  t.add("v_mfma_f32_16x16x4_f32", mfma<Mfma16<1>, Fp32>());
  t.add("v_mfma_f32_32x32x2_f32", mfma<Mfma32<1>, Fp32>());
  // As CDNA1 and CDNA2 name them.
  t.add("v_mfma_f32_16x16x16f16", mfma<Mfma16<4>, Flushed<Fp16>>());
  t.add("v_mfma_f32_16x16x16bf16_1k", mfma<Mfma16<4>, Flushed<Bf16>>());
  t.add("v_mfma_f32_32x32x8f16", mfma<Mfma32<4>, Flushed<Fp16>>());
  t.add("v_mfma_f32_32x32x8bf16_1k", mfma<Mfma32<4>, Flushed<Bf16>>());
  t.add("v_mfma_f32_16x16x8bf16", mfma<Mfma16<2>, Flushed<Bf16>>());
  t.add("v_mfma_f32_32x32x4bf16", mfma<Mfma32<2>, Flushed<Bf16>>());
}

}  // namespace fulmen::gpu::isa
