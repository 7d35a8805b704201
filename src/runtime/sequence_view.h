// One sequence of a call as a call of its own, so that kernels and the oracle know nothing of the
// others' lengths.
#pragma once

#include <cstdint>

#include "algorithm/sequences.h"
#include "fulmen/attention.h"
#include "fulmen/problem.h"

namespace fulmen {

// The tables of a problem with variable lengths.
algorithm::SequenceTable sequence_table(const Problem& problem,
                                        const AttentionTensors& tensors) noexcept;

// Sequence b of (problem, tensors). Batch indices stay the sequence's own: those of bias, ALiBi and
// dropout mean b. Packed tensors begin at the sequence and have a batch stride of 0; so do padded k
// and v at their first used row. Lengths and diagonal are the sequence's. Of paged k and v key j is
// row first_row + j of the pages: see PagedRows.
struct SequenceView {
  Problem problem;
  AttentionTensors tensors;
  int64_t q_row = 0;      // where the sequence begins in the call's packed q
  int64_t k_row = 0;      // in the call's packed k
  int64_t first_row = 0;  // paged: of the sequence's pages
};

// What all sequences share; b is chosen by select_sequence(). A problem without variable lengths
// has its own tensors for every b.
SequenceView sequence_view(const Problem& problem, const AttentionTensors& tensors) noexcept;
void select_sequence(const Problem& problem, const AttentionTensors& tensors, int64_t b,
                     SequenceView& view) noexcept;

// Rows of one KV head of paged k or v, in elements from the tensor's data.
class PagedRows {
 public:
  PagedRows(const SequenceView& view, const TensorSpec& spec, int64_t b, int64_t kv_head) noexcept
      : table_(sequence_table(view.problem, view.tensors)),
        batch_(b),
        first_(view.first_row),
        page_stride_(spec.strides[0]),
        row_stride_(spec.strides[1]),
        head_(kv_head * spec.strides[2]) {}
  int64_t offset(int64_t key) const noexcept {
    const int64_t row = first_ + key;
    return table_.page(batch_, row) * page_stride_ + row % table_.page_size * row_stride_ + head_;
  }

 private:
  algorithm::SequenceTable table_;
  int64_t batch_;
  int64_t first_;
  int64_t page_stride_;
  int64_t row_stride_;
  int64_t head_;
};

}  // namespace fulmen
