// What kernels/forward/prefill_wgmma.h needs to know of a target.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace fulmen::gpu {

// Tiles for head dims of q and v up to max_head_dim and min_keys at least. The first of several
// counts.
struct PrefillWgmmaShape {
  int max_head_dim;
  int64_t min_keys = 0;
  int warpgroups, block_n;  // of 64 rows each
  int min_workgroups = 1;
};
struct PrefillWgmmaTiles {
  std::span<const PrefillWgmmaShape> shapes;

  const PrefillWgmmaShape& shape_for(int64_t head_dim, int64_t seqlen_k) const {
    return *std::find_if(shapes.begin(), shapes.end() - 1, [&](const PrefillWgmmaShape& s) {
      return head_dim <= s.max_head_dim && seqlen_k >= s.min_keys;
    });
  }
};

}  // namespace fulmen::gpu
