// Which tiles of queries the keep-mask hides nothing of, for the keys of a block of backward_tma.h and backward_tma_wide.h.
#pragma once

#include "backward/parts/block_order.h"

namespace fulmen::kernels {

// Each lane looks at one tile of 32, and all lanes keep what they found, until another head or later tiles are asked for. All lanes
// of a wave come here together.
class WholeTiles {
 public:
  // Does the mask let every query of the block's tile n attend every key?
  FULMEN_DEVICE bool has(const Work& work, int head, int n) {
    if constexpr (!kMaskBits) return true;
    if (head != head_ || n / 32 != looked_at_) look(work, head, n / 32);
    return (whole_ >> (static_cast<unsigned>(n) % 32) & 1U) != 0;
  }

 private:
  FULMEN_DEVICE void look(const Work& work, int head, int nth) {
    static_assert(!kMaskBits || kBlockN == kMaskRows, "whole_tiles: a tile of queries is a block of the mask's bits");
    constexpr int kWords = kBlockKeys / 32;
    head_ = head;
    looked_at_ = nth;
    const BackwardArguments& a = work.arguments;
    const int n = 32 * nth + lane_id();
    unsigned every = 0;
    if (n < work.order.count) {
      const MaskedRows rows = MaskedRows::of(a, work.batch, head, Int64{work.order.tile(n)} * kBlockN, a.seqlen_q);
      const auto keys = global_load(reinterpret_cast<const Words<kWords>*>(rows.all + work.row_begin / 32));
      every = ~0U;
#pragma unroll
      for (int w = 0; w < kWords; ++w) every &= keys.word[w];
    }
    whole_ = static_cast<unsigned>(ballot(every == ~0U));
  }

  int head_ = -1, looked_at_ = -1;
  unsigned whole_ = 0;
};

}  // namespace fulmen::kernels
