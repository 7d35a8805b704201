// Gradients of one KV head by plain loops, row by row, for the oracle (double) and for standard attention (float, every tensor
// that three-step attention would store rounded to the problem's dtype). docs/contract.md has the formulas.
#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "plan/sequence_view.h"
#include "reference/score_row.h"

namespace fulmen::reference {

// What one query row gives beside its part of dk and dv.
template <class Real>
struct RowGradients {
  const Real* dq;             // [head_dim]
  const Real* dscores;        // [seqlen_k]: by the scores after bias and ALiBi, the bias's gradient; 0 where masked
  Real dsink;                 // this row's part
  Real dsink_rounding;        // what rounding the stored out may have done to it; 0 in double
  const Real* probabilities;  // [seqlen_k], where something is attended
  Real delta_rounding;  // what rounding the stored out does to dout . out, and so, times a probability, to dscores; 0 in double
  Real dq_rounding;     // the most that it, and the rounding of dscores, does to an element of dq
};

template <class Real>
class BackwardHead {
 public:
  // storage: what stored tensors are rounded to; fp32 rounds nothing. Allocates all it will need: load() and row() do not throw.
  BackwardHead(const Problem& problem, const AttentionTensors& tensors, DType storage);
  // Decodes K and V of one KV head, and clears its gradients.
  void load(int64_t batch, int64_t kv_head) noexcept;
  // Row i of query head h (of the loaded KV head): adds to dk() and dv(). The result is valid until the next call.
  RowGradients<Real> row(int64_t h, int64_t i) noexcept;
  const SequenceView& sequence() const noexcept { return view_; }  // the loaded one
  const Real* dk() const noexcept { return dk_.data(); }           // [seqlen_k, head_dim], not rounded
  const Real* dv() const noexcept { return dv_.data(); }           // [seqlen_k, head_dim_v]
  // [seqlen_k, head_dim]: the squares of what rounding the stored out and the scores' gradients does to each row's part of dk,
  // added up; float alone.
  const Real* dk_rounding() const noexcept { return dk_rounding_.data(); }

 private:
  Real rounded(Real x) const noexcept;
  // Of the row that q_ holds, [seqlen_k]; to is scores_ or other_scores_. Products are added up from the first or the last dim on.
  void compute_scores(int64_t h, int64_t i, const AttendedKeys& keys, bool from_last, Real* to) noexcept;
  struct Delta {
    Real value, usual_error, largest_error;
  };
  Delta delta_of_stored_out(int64_t begin, int64_t end) const noexcept;

  const Problem& all_;
  const AttentionTensors& all_tensors_;
  SequenceView view_;
  DType storage_;
  int64_t batch_ = 0;
  std::vector<Real> k_columns_, v_columns_;  // [dim, seqlen_k]: products whose loop runs over keys
  std::vector<Real> k_;                      // [seqlen_k, head_dim]
  std::vector<Real> dk_, dv_, dk_rounding_;
  std::vector<Real> scores_, probabilities_, dprobabilities_, softcap_slope_, weights_, other_scores_;  // [seqlen_k]
  std::vector<Real> q_, dout_, dq_, dq_rounding_, dq_squares_;  // of a row; the last two float alone
};

extern template class BackwardHead<float>;
extern template class BackwardHead<double>;

}  // namespace fulmen::reference
