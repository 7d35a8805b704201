// Problem: everything about a call but its pointers. One description flows through validation, planning, running and benchmarks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

struct TensorSpec {
  DType dtype = DType::fp32;
  bool present = false;
  std::array<int64_t, 4> strides{};  // in elements, logical order of the Tensor; broadcast dims have stride 0
  bool operator==(const TensorSpec&) const = default;
};

struct Problem {
  DType dtype = DType::fp32;  // of q, k, v and out
  int64_t batch = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  float softmax_scale = 1.0F;
  float softcap = 0.0F;
  // Key range of query i: keys in [i + first_key, i + last_key], already clipped by causal and window; unlimited is kUnlimited.
  int64_t diagonal = 0;       // offset of the diagonal: seqlen_k - seqlen_q for bottom-right, 0 for top-left
  int64_t window_left = -1;   // keys j >= i + diagonal - window_left, -1 unlimited
  int64_t window_right = -1;  // keys j <= i + diagonal + window_right, -1 unlimited (causal gives 0)
  TensorSpec q, k, v, out, bias, keep_mask, alibi_slopes, sinks, lse;

  bool operator==(const Problem&) const = default;
  int64_t group_size() const noexcept { return num_heads / num_kv_heads; }
  // 4 * head pairs * attended keys * dims / 2: the useful multiply-adds of the two products, counted as 2 flops each.
  FULMEN_API double flops() const noexcept;
  // Bytes of q, k, v, bias and keep_mask read once, out and lse written once.
  FULMEN_API double bytes() const noexcept;
};

// Checks the tensors (not their pointers) against the contract and returns the Problem, or a Status naming the bad argument.
FULMEN_API Result<Problem> make_problem(const AttentionTensors& tensors, const AttentionOptions& options);

// "bf16 b=64 sq=64 sk=64 h=24/24 d=32 scale=0.1768 bias=bf16 ..."
FULMEN_API std::string to_string(const Problem& problem);
FULMEN_API std::size_t hash_value(const Problem& problem) noexcept;

}  // namespace fulmen
