// Operands of matrix instructions: their numbers, which lane holds which, and WMMA's modifiers.
#pragma once

#include <cmath>
#include <span>

#include "emulator/machine_code/instructions/lanes.h"
#include "runtime/kv_formats.h"

namespace fulmen::gpu::isa {

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

}  // namespace fulmen::gpu::isa
