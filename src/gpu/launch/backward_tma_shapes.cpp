#include "gpu/launch/backward_tma_shapes.h"

#include <algorithm>

#include "gpu/launch/specialisation.h"

namespace fulmen::gpu {

// backward_tma's blocks of keys add to dq one after the other. Blocks that fill a chip hide that;
// of wide heads, for which the others take three launches, a few are enough. In order, blocks wait
// for each other where a head has few tiles of queries beside its blocks: measured, it is slower
// then under half as many, with wide heads, whose pairs of workgroups add half as often, under a
// quarter. With others it is faster under a causal mask all the same (docs/lab/nvidia_backward.md).
//
// Packed sequences are taken as ones of their mean lengths. Short ones leave tiles half empty, of
// which this kernel has the larger ones: it is the faster one for 64 rows, shorter ones were not
// measured.
bool fills_backward_tma(const BackwardTmaTiles& shape, const Problem& p) {
  constexpr int64_t kFewBlocks = 128, kFewWideBlocks = 8, kShortPacked = 64;
  const bool wide = std::max(p.head_dim, p.head_dim_v) > shape.own_dims;
  const int64_t sequences = std::max<int64_t>(1, p.batch);
  const int64_t seqlen_q = p.packed_q() ? tiles_of(p.total_q, sequences) : p.seqlen_q,
                seqlen_k = p.packed_k() ? tiles_of(p.total_k, sequences) : p.seqlen_k;
  if (p.variable_lengths() && std::min(seqlen_q, seqlen_k) < kShortPacked) return false;
  const int64_t blocks = tiles_of(seqlen_k, shape.block_m),
                tiles = tiles_of(seqlen_q, shape.block_n) * p.group_size();
  const bool waits = wide ? 4 * tiles < blocks : 2 * tiles < blocks && p.window_right < 0;
  return !(p.deterministic && waits) &&
         blocks * p.batch * p.num_kv_heads >= (wide ? kFewWideBlocks : kFewBlocks);
}

}  // namespace fulmen::gpu
