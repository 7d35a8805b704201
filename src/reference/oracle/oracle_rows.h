// The oracle for one KV head at a time, so that verification needs no full-size double output.
#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "reference/oracle/score_row.h"
#include "runtime/sequence_view.h"

namespace fulmen::reference {

class OracleHead {
 public:
  // Allocates all it will need, so that load() and row() can run inside parallel_tasks, which must not throw.
  OracleHead(const Problem& problem, const AttentionTensors& tensors);
  // Decodes K and V of one KV head of a sequence; does nothing when it is the one already loaded.
  void load(int64_t batch, int64_t kv_head) noexcept;
  // Row i of query head h (of the loaded KV head). out: [head_dim_v]; returns the LSE. rounding: [head_dim_v], R of
  // docs/contract.md without the rounding of the output, or null.
  double row(int64_t h, int64_t i, double* out, double* rounding = nullptr) noexcept;
  const SequenceView& sequence() const noexcept { return view_; }  // the loaded one
  // sum_j p_j max_d |v_jd| of the last row: what its terms amount to before they cancel.
  double magnitude() const noexcept { return magnitude_; }
  // What rounding may do to the LSE of the last row for which `rounding` was wanted.
  double lse_rounding() const noexcept { return lse_rounding_; }

 private:
  void add_rounding(int64_t h, int64_t i, const AttendedKeys& keys, double max, double sum, const double* out,
                    double* rounding) noexcept;
  // of_scores_ where nothing is known of the weights but that they are a row's: as far as the output is from any value.
  void take_any_weights(const AttendedKeys& keys, const RowDropout& dropout, const double* out) noexcept;

  const Problem& all_;
  const AttentionTensors& all_tensors_;
  SequenceView view_;
  int64_t batch_ = -1;
  int64_t kv_head_ = -1;
  std::vector<double> k_;         // [head_dim, seqlen_k]: transposed, so that the product's inner loop runs over keys
  std::vector<double> v_;         // [seqlen_k, head_dim_v]
  std::vector<double> scores_;    // [seqlen_k]
  std::vector<double> v_sizes_;   // [seqlen_k]: max_d |v_jd|
  std::vector<double> products_;  // [seqlen_k]: scale * q.k
  std::vector<double> k_norms_;   // [seqlen_k]: |k_j|
  double magnitude_ = 0;
  double q_norm_ = 0;
  double lse_rounding_ = 0;
  bool huge_ = false;                 // the last row: is_huge_row()
  std::vector<double> exact_scores_;  // [seqlen_k]: of a huge row, before they were rounded to fp32
  std::vector<double> of_scores_;     // [head_dim_v]: what errors of scores may do to the output
};

// Query rows of one task: K and V are decoded once for so many rows, and a long sequence still spreads over threads.
inline constexpr int64_t kRowsPerTask = 128;

}  // namespace fulmen::reference
