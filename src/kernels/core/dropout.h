// Dropout's mask in kernels: algorithm/philox.h, a block of numbers at a time.
#pragma once

#include "algorithm/philox.h"
#include "core/config.h"

namespace fulmen::kernels {

// The mask of one head.
class DropoutMask {
 public:
  FULMEN_DEVICE DropoutMask(const ForwardArguments& a, Int64 batch, Int64 head)
      : head_(algorithm::DropoutHead::of(a.dropout_seed, a.dropout_offset,
                                         batch * a.num_heads + head)),
        dropout_(a.dropout) {}
  // Returns true if element (query, key) of the softmax stays. Keeps the last block of numbers,
  // which neighbours share: ask for them one after the other.
  FULMEN_DEVICE bool keeps(Int64 query, Int64 key) {
    if constexpr (!kDropout) return true;
    if (query / 2 != row_pair_ || key / 4 != column_quad_) {
      row_pair_ = query / 2;
      column_quad_ = key / 4;
      block_ = head_.block(row_pair_, column_quad_);
    }
    return algorithm::DropoutHead::number(block_, query, key) >= dropout_;
  }
  // The mask of a whole block: bit 2 c + r is 1 if the element of query 2 row_pair + r and key 4
  // column_quad + c stays.
  FULMEN_DEVICE unsigned kept_of_block(Int64 row_pair, Int64 column_quad) const {
    const algorithm::Philox block = head_.block(row_pair, column_quad);
    const unsigned least = static_cast<unsigned>(dropout_) << 16U;
    unsigned kept = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      kept |= block.word[c] << 16U >= least ? 1U << (2 * c) : 0U;
      kept |= block.word[c] >= least ? 2U << (2 * c) : 0U;
    }
    return kept;
  }

 private:
  algorithm::DropoutHead head_;
  int dropout_;
  Int64 row_pair_ = -1, column_quad_ = -1;
  algorithm::Philox block_{};
};

}  // namespace fulmen::kernels
