// The oracle and the tolerance rule, public so that anyone can check any result.
#pragma once

#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/problem.h"

namespace fulmen {

// Exact attention in double precision by plain loops, all features. out: [batch, seqlen_q, num_heads, head_dim_v] row-major
// doubles; lse: [batch, num_heads, seqlen_q] row-major doubles, or null. tensors.out and tensors.lse are ignored.
// Where memory is too short for one KV head in double a thread, the results are all NaN.
FULMEN_API void attention_reference(const Problem& problem, const AttentionTensors& tensors, double* out, double* lse);

struct VerifyReport {
  bool ok = false;
  double worst_error = 0;     // E = max |ours - ref| over out
  double baseline_error = 0;  // P = max |same-precision standard attention - ref|
  double bound = 0;           // 2 P + 1e-5 (softcap: + 3e-4)
  double lse_error = 0;       // max |lse - ref| / max(1, |ref|), 0 without an lse
  std::string message;        // when not ok: the worst element with its index, value, expected value
};
// Compares tensors.out (and lse) with the reference under the rule of docs/contract.md. O(seqlen^2) time, O(seqlen_k) memory a
// thread.
FULMEN_API VerifyReport verify_result(const Problem& problem, const AttentionTensors& tensors);

}  // namespace fulmen
