// The oracle for one KV head at a time, so that verification needs no full-size double output.
#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "reference/oracle/huge_scores.h"
#include "reference/oracle/row_functions.h"
#include "reference/oracle/score_row.h"
#include "runtime/sequence_view.h"

namespace fulmen::reference {

class OracleHead {
 public:
  // Allocates all it will need, so that the other functions can run inside parallel_tasks, which
  // must not throw.
  OracleHead(const Problem& problem, const AttentionTensors& tensors);
  // Decodes K and V of one KV head of a sequence; does nothing when it is the one already loaded.
  void load(int64_t batch, int64_t kv_head) noexcept;
  // Row i of query head h (of the loaded KV head). out: [head_dim_v]; returns the LSE.
  double row(int64_t h, int64_t i, double* out) noexcept;
  const SequenceView& sequence() const noexcept { return view_; }  // the loaded one

  struct Bounds {
    double magnitude = 0;  // sum_j w_j max_d |v_jd|: the size of the row's terms before they cancel
    double lse = 0;        // what rounding may do to the LSE
  };
  // Bounds of the last row(), whose out it takes. rounding: [head_dim_v], R of docs/contract.md
  // without the rounding of the output.
  Bounds bounds(const double* out, double* rounding) noexcept;

 private:
  // The keys of a row, with what functions and block masks leave out.
  AttendedKeys attended(int64_t h, int64_t i) noexcept;
  // Sets scores_; returns their maximum with the sink.
  RowMaximum<double> compute_scores(int64_t h, int64_t i, const AttendedKeys& keys) noexcept;
  const double* v_row(int64_t j) const noexcept { return v_.data() + j * view_.problem.head_dim_v; }

  // Sets k_norms_ and v_sizes_ of the loaded KV head.
  void measure_head() noexcept;
  // a_j of docs/contract.md.
  double score_error(int64_t j, double q_norm) const noexcept;
  // Beyond this the error of a score moves its probability by more than its linear part says.
  static constexpr double kLinearError = 0.5;
  // Adds what products in 8 bits may do, to the bounds of the last row(). q_norm: the query's.
  void add_eight_bits(const AttendedKeys& keys, const RowDropout& dropout, double q_norm,
                      const double* out, double* rounding, Bounds& bounds) noexcept;
  // Sets of_scores_ for weights of which only their range is known: the distance of the farthest
  // value from the output.
  void take_any_weights(const AttendedKeys& keys, const RowDropout& dropout,
                        const double* out) noexcept;

  const Problem& all_;
  const AttentionTensors& all_tensors_;
  SequenceView view_;
  int64_t batch_ = -1;
  int64_t kv_head_ = -1;
  std::vector<double> k_;       // [head_dim, seqlen_k]: transposed, so that the product's inner
                                // loop runs over keys
  std::vector<double> v_;       // [seqlen_k, head_dim_v]
  std::vector<double> scores_;  // [seqlen_k]

  struct Row {
    int64_t h = 0, i = 0;
    double max = 0;
    double sum = 0;  // of exp(score - max); 0 where no key is attended
  };
  Row last_;
  RowFunctions<double> functions_;
  bool huge_ = false;                 // is_huge_row() of the last row
  std::vector<double> products_;      // [seqlen_k]: scale * q.k of the last row
  std::vector<double> exact_scores_;  // [seqlen_k]: of a huge row, before they were rounded to fp32

  bool measured_ = false;
  std::vector<double> k_norms_;    // [seqlen_k]: |k_j|
  std::vector<double> v_sizes_;    // [seqlen_k]: max_d |v_jd|
  double k_range_ = 0;             // the largest |k_jd - mean of k_d|, of int8 products
  double largest_v_ = 0;           // of v_sizes_
  std::vector<double> of_scores_;  // [head_dim_v]: what errors of scores may do to the output
};

// Query rows of one task: K and V are decoded once for so many rows, and a long sequence still
// spreads over threads.
inline constexpr int64_t kRowsPerTask = 128;

}  // namespace fulmen::reference
