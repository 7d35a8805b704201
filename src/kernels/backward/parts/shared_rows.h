// Waves that share rows (backward.h, heads of more than 256 dims on NVIDIA). Neighbouring waves are
// a group, which has 16 rows. Each wave has kHeadDim / kDimGroups dims of q, k and their gradients,
// and as many of v and dout. Scores are sums over all dims:
//
//   each wave    S, D of 16 rows and 16 columns over its own dims   to LDS
//   each wave    S, D = the sum of all waves' parts                 P, dS: the same in each
//   each wave    its own dims of dq, dk or dv
#pragma once

#include "backward/parts/tile.h"
#include "tile/group_barrier.h"

namespace fulmen::kernels {

static_assert(kWaves % kDimGroups == 0, "backward: groups of waves are whole");

// The wave's place in its group, and the group's.
FULMEN_DEVICE int part_of_dims() { return kDimGroups == 1 ? 0 : wave_id() % kDimGroups; }
FULMEN_DEVICE int row_group() { return kDimGroups == 1 ? wave_id() : wave_id() / kDimGroups; }

// Where the wave's dims begin in rows of kDims, as bytes that are the same in every row, and the
// rest as a count of operands of kOperandDims. Whole lines of 128 bytes further, swizzled rows have
// the same addresses.
template <int kDims, int kOperandDims>
struct OwnDims {
  static constexpr bool kWholeLines = kDims / kDimGroups % 64 == 0;
  int bytes, operands;

  FULMEN_DEVICE static OwnDims of_wave() {
    const int first = part_of_dims() * (kDims / kDimGroups);
    if constexpr (kWholeLines && !kTransposedValues) return {2 * first, 0};
    return {0, first / kOperandDims};
  }
};

// The parts of S, or D, of 16 rows and a tile of 16 columns.
class ScoreParts {
 public:
  // The wave stores its part for the others. first: it is of S, else of D.
  FULMEN_DEVICE static void leave(bool first, const float (&part)[kElements]) {
    const int at = place(part_of_dims(), first);
#pragma unroll
    for (int n = 0; n < kElements / 4; ++n) {
      Words<4> words;
#pragma unroll
      for (int w = 0; w < 4; ++w) words.word[w] = float_bits(part[4 * n + w]);
      lds_store(at + 16 * kWaveSize * n, words);
    }
  }
  // The waves that share rows add all parts in one order, so that they have the same bits.
  FULMEN_DEVICE static void sum(bool first, float (&sum)[kElements]) {
#pragma unroll
    for (int part = 0; part < kDimGroups; ++part) {
      const int at = place(part, first);
#pragma unroll
      for (int n = 0; n < kElements / 4; ++n) {
        const auto words = lds_load<Words<4>>(at + 16 * kWaveSize * n);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float x = bits_float(words.word[w]);
          sum[4 * n + w] = part == 0 ? x : sum[4 * n + w] + x;
        }
      }
    }
  }
  // All parts of a tile are there.
  FULMEN_DEVICE static void meet() { group_barrier<kDimGroups>(row_group(), part_of_dims()); }

 private:
  static constexpr int kTileBytes = 4 * kScoreTile * kScoreTile;
  FULMEN_DEVICE static int place(int part, bool first) {
    return kSharedRows.parts_at +
           ((row_group() * kDimGroups + part) * 2 + (first ? 0 : 1)) * kTileBytes + 16 * lane_id();
  }
};

}  // namespace fulmen::kernels
