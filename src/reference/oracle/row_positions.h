// Where a sequence's rows are in row-major memory of the tensors' shapes.
#pragma once

#include <cstdint>

#include "runtime/sequence_view.h"

namespace fulmen::reference {

class RowStatistics {
 public:
  RowStatistics(const Problem& all, const SequenceView& view, int64_t b) noexcept
      : first_q_(all.packed_q() ? view.q_row : b * all.seqlen_q),
        first_k_(all.packed_k() ? view.k_row : b * all.seqlen_k),
        first_lse_(all.packed_q() ? view.q_row : b * all.num_heads * all.seqlen_q),
        lse_head_(all.packed_q() ? all.total_q : all.seqlen_q) {}
  // Rows of q_shape() and out_shape(): a row has all heads.
  int64_t q(int64_t i) const noexcept { return first_q_ + i; }
  int64_t k(int64_t j) const noexcept { return first_k_ + j; }
  int64_t lse(int64_t h, int64_t i) const noexcept { return first_lse_ + h * lse_head_ + i; }

 private:
  int64_t first_q_, first_k_, first_lse_, lse_head_;
};

}  // namespace fulmen::reference
