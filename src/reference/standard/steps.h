// The steps that both standard attentions share: scores in memory, softmax over them, and the plain
// matrix products.
#pragma once

#include <cstdint>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "reference/oracle/row_functions.h"
#include "runtime/sequence_view.h"

namespace fulmen::reference {

// Step two for one row: scores [seqlen_k] hold scale * q.k and become probabilities, both rounded
// to `storage`. Returns the LSE. functions: null where the problem has neither functions nor a
// block mask.
float softmax_step(const Problem& problem, const AttentionTensors& tensors, int64_t b, int64_t h,
                   int64_t i, DType storage, float* scores,
                   RowFunctions<float>* functions) noexcept;

// Standard attention by plain loops for blocks of rows of one KV head, keeping scores and
// probabilities in the problem's dtype: what "same-precision standard attention" means in the
// tolerance rule.
class StandardRows {
 public:
  // Floats of scratch that one instance works in.
  static int64_t scratch_floats(const Problem& problem) noexcept;
  StandardRows(const Problem& problem, const AttentionTensors& tensors, float* scratch);
  // Decodes K and V of one KV head; does nothing when it is the one already loaded.
  void load(int64_t batch, int64_t kv_head) noexcept;
  // Rows [first, first + count) of query head h, count <= kRowsPerTask. Returns out
  // [count, head_dim_v], rounded to the dtype; it and lse() [count] stay valid until the next call.
  const float* rows(int64_t h, int64_t first, int64_t count) noexcept;
  const float* lse() const noexcept { return lse_; }
  const SequenceView& sequence() const noexcept { return view_; }  // the loaded one

 private:
  const Problem& all_;
  const AttentionTensors& all_tensors_;
  SequenceView view_;
  RowFunctions<float> functions_;
  int64_t batch_ = -1;
  int64_t kv_head_ = -1;
  float* k_;       // [head_dim, seqlen_k]: transposed, so that the product's inner loop runs over
                   // keys
  float* v_;       // [seqlen_k, head_dim_v]
  float* scores_;  // [kRowsPerTask, seqlen_k]
  float* out_;     // [kRowsPerTask, head_dim_v]
  float* lse_;     // [kRowsPerTask]
  float* q_;       // [head_dim]: a row as the product takes it
  float* k_mean_;  // [head_dim]: what was taken from the keys of an int8 product
};

// Writes a block's result through the strides of out and lse.
void store_rows(const Problem& problem, const AttentionTensors& tensors, int64_t b, int64_t h,
                int64_t first, int64_t count, const float* out, const float* lse) noexcept;

}  // namespace fulmen::reference
