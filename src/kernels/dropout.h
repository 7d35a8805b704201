// Dropout's mask in kernels: algorithm/philox.h, a block of numbers at a time.
#pragma once

#include "algorithm/philox.h"
#include "specialisation.h"

namespace fulmen::kernels {

// The mask of one head. Neighbouring elements share a block of numbers: ask for them in turn.
class DropoutMask {
 public:
  FULMEN_DEVICE DropoutMask(const ForwardArguments& a, Int64 batch, Int64 head)
      : head_(algorithm::DropoutHead::of(a.dropout_seed, a.dropout_offset, batch * a.num_heads + head)),
        dropout_(a.dropout),
        scale_(a.dropout_scale) {}
  // What element (query, key) of the softmax is multiplied with: 0, or 1 / (1 - p).
  FULMEN_DEVICE float factor(Int64 query, Int64 key) {
    if constexpr (!kDropout) return 1.0F;
    if (query / 2 != row_pair_ || key / 4 != column_quad_) {
      row_pair_ = query / 2;
      column_quad_ = key / 4;
      block_ = head_.block(row_pair_, column_quad_);
    }
    return algorithm::DropoutHead::number(block_, query, key) >= dropout_ ? scale_ : 0.0F;
  }

 private:
  algorithm::DropoutHead head_;
  int dropout_;
  float scale_;
  Int64 row_pair_ = -1, column_quad_ = -1;
  algorithm::Philox block_{};
};

}  // namespace fulmen::kernels
