// Gradients of one KV head by plain loops, row by row, for the oracle (double) and for standard
// attention (float, every tensor that three-step attention would store rounded to the problem's
// dtype). docs/contract.md has the formulas.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "reference/oracle/row_functions.h"
#include "reference/oracle/score_row.h"
#include "runtime/sequence_view.h"

namespace fulmen::reference {

// What one query row gives beside its part of dk and dv.
template <class Real>
struct RowGradients {
  const Real* dq;       // [head_dim]
  const Real* dscores;  // [seqlen_k]: by the scores after bias and ALiBi, the bias's gradient; 0
                        // where masked
  Real dsink;           // this row's part
  // In double, squares of what roundings may do (docs/contract.md): to dq [head_dim], dscores
  // [seqlen_k] and dsink.
  const Real* dq_squares;
  const Real* dscores_squares;
  Real dsink_squares;
};

template <class Real>
class BackwardHead {
 public:
  // storage: what stored tensors are rounded to; fp32 rounds nothing. Allocates all it will need:
  // load() and row() do not throw.
  // roundings: whether their squares are wanted, double alone.
  BackwardHead(const Problem& problem, const AttentionTensors& tensors, DType storage,
               bool roundings);
  // Decodes K and V of one KV head, and clears its gradients.
  void load(int64_t batch, int64_t kv_head) noexcept;
  // Row i of query head h (of the loaded KV head): adds to dk() and dv(). The result is valid until
  // the next call.
  // functions, function_squares: where gradients of functions' tensors, and the squares of what
  // roundings may do to them, are added, or null.
  RowGradients<Real> row(int64_t h, int64_t i, Real* const* functions,
                         Real* const* function_squares) noexcept;
  const SequenceView& sequence() const noexcept { return view_; }  // the loaded one
  // [seqlen_k, head_dim], not rounded.
  const Real* dk() const noexcept { return dk_.data(); }
  const Real* dv() const noexcept { return dv_.data(); }  // [seqlen_k, head_dim_v]
  // In double, of the shapes of dk and dv: squares of what roundings may do to each row's part,
  // added up.
  const Real* dk_squares() const noexcept { return dk_squares_.data(); }
  const Real* dv_squares() const noexcept { return dv_squares_.data(); }

 private:
  Real rounded(Real x) const noexcept;
  Real stored(Real score) const noexcept;
  // Computes the scores of the row that q_ holds, [seqlen_k]; to is scores_ or other_scores_.
  // Products are added up from the first or the last dim on.
  void compute_scores(int64_t h, int64_t i, const AttendedKeys& keys, bool from_last,
                      Real* to) noexcept;
  struct Softmax {
    Real max, sum, sink_weight;  // of exp(score - max); the sink's part of the sum
  };
  // Sets probabilities_; nothing: no key is attended.
  std::optional<Softmax> compute_probabilities(int64_t h, int64_t i,
                                               const AttendedKeys& keys) noexcept;
  // Sets dprobabilities_ and weights_, adds to dv_; returns delta = sum_j p_j dp_j, which is dout .
  // out.
  Real value_gradients(const AttendedKeys& keys, const RowDropout& dropout) noexcept;
  // Element d of out.
  Real out(const AttendedKeys& keys, int64_t d) const noexcept;
  // dout . out with out rounded as the forward pass stores it.
  Real delta_of_stored_out(const AttendedKeys& keys) const noexcept;

  // What roundings may do, in double alone (backward_bounds.cpp). Sets k_norms_ and v_norms_.
  void measure_head() noexcept;
  // The square of what rounding out may do to delta.
  Real stored_out_squares(const AttendedKeys& keys) const noexcept;
  // Sets the squares of this row's gradients, returns that of dsink. dprobabilities_ holds dp.
  Real add_roundings(int64_t h, int64_t i, const AttendedKeys& keys, const RowDropout& dropout,
                     const Softmax& softmax, Real delta) noexcept;

  const Problem& all_;
  const AttentionTensors& all_tensors_;
  SequenceView view_;
  RowFunctions<Real> functions_;
  DType storage_;
  bool roundings_;
  // Of the last row: what roundings may do to its delta and its LSE, and of each key's ds alone.
  Real of_delta_ = 0, of_lse_ = 0;
  std::vector<Real> own_squares_;
  bool huge_ = false;  // the last row: is_huge_row(), whose exact scores other_scores_ has
  int64_t batch_ = 0;
  std::vector<Real> k_columns_, v_columns_;  // [dim, seqlen_k]: products whose loop runs over keys
  std::vector<Real> k_;                      // [seqlen_k, head_dim]
  std::vector<Real> dk_, dv_, dk_squares_, dv_squares_;
  std::vector<Real> scores_, probabilities_, dprobabilities_, softcap_slope_, weights_,
      other_scores_;                                                   // [seqlen_k]
  std::vector<Real> products_, dscores_squares_, k_norms_, v_norms_;   // [seqlen_k]
  std::vector<Real> q_, dout_, dq_, dq_common_, dq_lse_, dq_squares_;  // of a row
};

template <>
void BackwardHead<double>::measure_head() noexcept;
template <>
double BackwardHead<double>::stored_out_squares(const AttendedKeys& keys) const noexcept;
template <>
double BackwardHead<double>::add_roundings(int64_t h, int64_t i, const AttendedKeys& keys,
                                           const RowDropout& dropout, const Softmax& softmax,
                                           double delta) noexcept;
extern template class BackwardHead<float>;
extern template class BackwardHead<double>;

}  // namespace fulmen::reference
