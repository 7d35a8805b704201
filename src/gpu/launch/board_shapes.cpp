#include "gpu/launch/board_shapes.h"

#include <algorithm>

namespace fulmen::gpu {

// Measured on an H200 (docs/lab/nvidia_boards.md): not for 32 dims with a bias.
bool prefers_board_shapes(const Target& target, const Problem& p) {
  constexpr int64_t kMostRows = 64;
  if (!target.prefill || target.prefill->board_shapes.empty()) return false;
  const bool rows = p.dtype != DType::fp32 && strides_are_whole(p) && !p.variable_lengths();
  const bool plain = p.window_left < 0 && p.window_right < 0 && !p.keep_mask.present &&
                     !p.alibi_slopes.present && p.softcap <= 0;
  const int64_t dim = std::max(p.head_dim, p.head_dim_v);
  return rows && plain && p.dropout == 0 && p.seqlen_q > kMostRows / 2 && p.seqlen_q <= kMostRows &&
         p.seqlen_k <= kMostRows && dim <= target.prefill->board_shapes.back().max_head_dim &&
         (dim > 32 || !p.bias.present);
}

}  // namespace fulmen::gpu
