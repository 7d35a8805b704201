// Masks as bits in kernels for few queries: which of a wave's steps over the keys have one that
// some row attends. The others are passed over, so that their keys and values are not read.
#pragma once

#include "core/scores.h"

namespace fulmen::kernels {

// Beside a score_mod, and in waves of 64 lanes, all steps are taken: of a loop over kept ones clang
// made code for gfx942 whose later reads of other lanes the rules of machine code refuse.
constexpr bool kPassesOverSteps = kMaskBits && !kScoreMod && kWaveSize == 32;

// Steps 0, 1, 2, ... of a wave, of kKeys keys each: step n's begin at first + n * stride. Each lane
// looks at one step of kWaveSize, and all lanes keep what they found: a step costs a bit's test.
// All lanes of the wave come here together.
template <int kKeys>
class KeptSteps {
 public:
  // The keys end at `end`. Rows: queries [first_query, query_end) of each head of a KV head.
  FULMEN_DEVICE KeptSteps(const ForwardArguments& a, Int64 batch, int kv_head, Int64 first_query,
                          Int64 query_end, Int64 first, Int64 end, int stride)
      : a_(a), first_(first), stride_(stride) {
    const MaskBits& bits = a.mask_bits;
    // A scalar: no loop of AMD's waves may end by what a lane has.
    count_ = static_cast<int>(uniform(first >= end || query_end <= first_query
                                          ? 0U
                                          : static_cast<unsigned>((end - first - 1) / stride) + 1));
    heads_ = bits.head_planes == 0 ? 1 : a.group_size;
    const Int64 block = bits.blocks == 1 ? 0 : first_query / kMaskRows;
    blocks_ = bits.blocks == 1 ? 1 : static_cast<int>(tiles_of(query_end, kMaskRows) - block);
    any_ =
        bits.any +
        (mask_plane(a, batch, static_cast<Int64>(kv_head) * a.group_size) * bits.blocks + block) *
            bits.words;
  }
  FULMEN_DEVICE int count() const { return count_; }
  FULMEN_DEVICE Int64 key(int n) const { return first_ + static_cast<Int64>(n) * stride_; }
  // The first step from n on that has such a key; none: count() or more. n never falls.
  FULMEN_DEVICE int next(int n) {
#pragma unroll 1
    while (n < count_) {
      if (n / kWaveSize != looked_at_) look(n / kWaveSize);
      const unsigned long long left = kept_ >> (static_cast<unsigned>(n) % kWaveSize);
      if ((left & 1U) != 0) break;
      n = left == 0 ? (n / kWaveSize + 1) * kWaveSize : n + 1;
    }
    return static_cast<int>(uniform(static_cast<unsigned>(n)));
  }

 private:
  FULMEN_DEVICE void look(int nth) {
    looked_at_ = nth;
    const int n = kWaveSize * nth + lane_id();
    kept_ = ballot(n < count_ && is_attended(key(n)));
  }
  // Steps begin anywhere: their keys are bits of two words or more.
  FULMEN_DEVICE bool is_attended(Int64 key) const {
    unsigned some = 0;
    for (Int64 w = key / 32; 32 * w < key + kKeys; ++w) {
      unsigned word = 0;
      for (int h = 0; h < heads_; ++h) {
        for (int n = 0; n < blocks_; ++n)
          word |= global_load(any_ + (h * a_.mask_bits.blocks + n) * a_.mask_bits.words + w);
      }
      const int before = static_cast<int>(key - 32 * w), behind = before + kKeys;
      if (before > 0) word &= ~0U << static_cast<unsigned>(before);
      if (behind < 32) word &= ~(~0U << static_cast<unsigned>(behind));
      some |= word;
    }
    return some != 0;
  }

  const ForwardArguments& a_;
  const unsigned* any_ = nullptr;  // of the first head and block
  Int64 first_;
  int stride_, count_ = 0, heads_ = 0, blocks_ = 0;
  int looked_at_ = -1;
  unsigned long long kept_ = 0;
};

}  // namespace fulmen::kernels
