// A block mask's lists: which blocks of keys a block of queries attends.
#pragma once

#include <cstdint>

#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen {

// One pair of lists; strides count elements, 0 where they are broadcast.
struct BlockList {
  const int* counts = nullptr;  // null: no such lists
  const int* indices = nullptr;
  int64_t counts_batch = 0, counts_head = 0, counts_row = 0;
  int64_t indices_batch = 0, indices_head = 0, indices_row = 0;
};

// The listed blocks of a row; numbers that name no block are left out by listed().
struct BlockRow {
  const int* indices = nullptr;
  int count = 0;
  int blocks = 0;  // of keys

  // The block of place `at`, or -1.
  int listed(int at) const { return indices[at] >= 0 && indices[at] < blocks ? indices[at] : -1; }
};

inline BlockRow block_row(const BlockList& list, int64_t batch, int64_t head, int64_t row,
                          int blocks) {
  if (list.counts == nullptr) return {};
  const int count =
      list.counts[batch * list.counts_batch + head * list.counts_head + row * list.counts_row];
  return {
      list.indices + batch * list.indices_batch + head * list.indices_head + row * list.indices_row,
      count < 0        ? 0
      : count < blocks ? count
                       : blocks,
      blocks};
}

inline BlockList block_list(const TensorSpec& counts, const Tensor& counts_tensor,
                            const TensorSpec& indices, const Tensor& indices_tensor) noexcept {
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
inline BlockList partial_blocks(const Problem& p, const AttentionTensors& t) noexcept {
  return block_list(p.kv_num_blocks, t.kv_num_blocks, p.kv_indices, t.kv_indices);
}
inline BlockList full_blocks(const Problem& p, const AttentionTensors& t) noexcept {
  return block_list(p.full_kv_num_blocks, t.full_kv_num_blocks, p.full_kv_indices,
                    t.full_kv_indices);
}

}  // namespace fulmen
