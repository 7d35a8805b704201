// The lists of a call's block mask.
#pragma once

#include "algorithm/block_mask.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen {

inline algorithm::BlockList block_list(const TensorSpec& counts, const Tensor& counts_tensor,
                                       const TensorSpec& indices,
                                       const Tensor& indices_tensor) noexcept {
  if (!counts.present) return {};
  return {static_cast<const int*>(counts_tensor.data),
          static_cast<const int*>(indices_tensor.data),
          counts.strides[0],
          counts.strides[1],
          counts.strides[3],
          indices.strides[0],
          indices.strides[1],
          indices.strides[2]};
}
// Blocks that mask_mod masks, and those that it does not.
inline algorithm::BlockList partial_blocks(const Problem& p, const AttentionTensors& t) noexcept {
  return block_list(p.kv_num_blocks, t.kv_num_blocks, p.kv_indices, t.kv_indices);
}
inline algorithm::BlockList full_blocks(const Problem& p, const AttentionTensors& t) noexcept {
  return block_list(p.full_kv_num_blocks, t.full_kv_num_blocks, p.full_kv_indices,
                    t.full_kv_indices);
}

}  // namespace fulmen
