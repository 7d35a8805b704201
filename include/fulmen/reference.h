// The oracle and the tolerance rule, public so that anyone can check any result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/problem.h"

namespace fulmen {

// Whether the values of cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table and leftpad_k, in host
// memory, obey the contract; else which tensor, at which index, has what value. Plan::run() asks on
// devices that use the host's memory. Reads nothing but them.
FULMEN_API Status check_sequences(const Problem& problem, const AttentionTensors& tensors);

// Exact attention in double precision by plain loops, all features. out: row-major doubles of
// problem.out_shape(), [batch, seqlen_q, num_heads, head_dim_v]; lse: of problem.lse_shape(), or
// null. tensors.out and tensors.lse are ignored; packed rows that belong to no sequence are not
// written. Of the options num_threads and parallel_for count, here and below. Errors:
// out_of_memory, for one KV head in double a thread; internal, of a caller's parallel_for, where
// the results may be written in part; those of check_sequences(); a negative num_threads; a null
// out.
FULMEN_API Status attention_reference(const Problem& problem, const AttentionTensors& tensors,
                                      double* out, double* lse,
                                      const AttentionOptions& options = {});

// The gradients' row-major doubles, of the tensors' shapes, each null where it is not wanted.
struct ReferenceGradients {
  double* dq = nullptr;      // problem.q_shape()
  double* dk = nullptr;      // problem.k_shape()
  double* dv = nullptr;      // problem.v_shape()
  double* dbias = nullptr;   // [batch, num_heads, seqlen_q, seqlen_k], 1 instead where
                             // problem.dbias has stride 0
  double* dsinks = nullptr;  // [num_heads]
  // Null, or as many as tensors.function_tensors: of each tensor's shape, null where not wanted.
  double* const* function_gradients = nullptr;
};
// Exact gradients in double precision by plain loops, from q, k, v, the optional inputs, dout and
// dlse; tensors.out and tensors.lse are ignored: the forward pass is computed again. Packed rows
// that belong to no sequence are not written. problem: of make_backward_problem. Errors:
// out_of_memory; internal, of a caller's parallel_for; those of check_sequences().
FULMEN_API Status attention_backward_reference(const Problem& problem,
                                               const AttentionTensors& tensors,
                                               const ReferenceGradients& gradients,
                                               const AttentionOptions& options = {});

// Which elements of the softmax dropout keeps (1) and drops (0), by Philox 4x32-10 (Salmon et
// al. 2011) from tensors.dropout_seed and dropout_offset. keep:
// [batch, num_heads, seqlen_q, seqlen_k] bytes, row-major, with the problem's lengths. Errors: an
// empty problem; a null keep.
FULMEN_API Status dropout_mask(const Problem& problem, const AttentionTensors& tensors,
                               uint8_t* keep);

// The largest error of one tensor, beside its bound.
struct TensorError {
  std::string tensor;
  double worst_error = 0;
  double baseline_error = 0;
  double bound = 0;
};

struct VerifyReport {
  bool ok = false;
  std::string tensor;         // "out"; backward: the gradient nearest to its bound, or over it
  double worst_error = 0;     // the largest |ours - ref| of it; when not ok, of the element that
                              // breaks the rule
  double baseline_error = 0;  // P = max |same-precision standard attention - ref|
  double bound = 0;           // what that element's error may be: max(2 P, R) + 1e-5, gradients
                              // max(3 P, R) + 1e-5
  double lse_error = 0;       // max |lse - ref| / max(1, |ref|), 0 without an lse
  std::string message;        // when not ok: the worst element with its index, value, expected
                              // value
  // Backward: every one, dq first.
  std::vector<TensorError> gradients{};
  int64_t elements = 0;   // that were compared: of out, or of every gradient; not of lse
  double mean_error = 0;  // the mean |ours - ref| of these
};
// Compares tensors.out (and lse), or in the backward pass every gradient, with the reference under
// the rule of docs/contract.md. O(seqlen^2) time; O(seqlen_k) memory a thread, backward three times
// the gradients in double.
FULMEN_API VerifyReport verify_result(const Problem& problem, const AttentionTensors& tensors,
                                      const AttentionOptions& options = {});

}  // namespace fulmen
