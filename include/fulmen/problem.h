// Problem: everything about a call but its pointers. One description flows through validation,
// planning, running and benchmarks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/head_dims.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

inline constexpr int64_t kMaxHeadDim = FULMEN_MAX_HEAD_DIM, kMaxHeadDimV = FULMEN_MAX_HEAD_DIM_V;

struct TensorSpec {
  DType dtype = DType::fp32;
  bool present = false;
  // In elements, logical order of the Tensor; broadcast dims have stride 0.
  std::array<int64_t, 4> strides{};
  bool operator==(const TensorSpec&) const = default;
};
// Whether a problem is the output's or the gradients'.
enum class Pass : int { forward = 0, backward = 1 };

struct Problem {
  Pass pass = Pass::forward;
  DType dtype = DType::fp32;  // of q and out, and of their gradients
  DType k_dtype = dtype;      // of k and its gradient
  DType v_dtype = dtype;      // of v and its gradient
  int64_t batch = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  float softmax_scale = 1.0F;
  float softcap = 0.0F;
  // With sequences of different lengths seqlen_q and seqlen_k are the most that any has, at most
  // the rows of packed tensors, and `diagonal` is not used: each sequence has its own, key
  // length - query length, or 0 with `top_left`.
  int64_t total_q = 0;    // rows of q where it is packed
  int64_t total_k = 0;    // rows of k and v where they are packed
  int64_t padded_k = 0;   // rows that a sequence has in k and v where they are neither packed nor
                          // paged: seqlen_k or more
  int64_t num_pages = 0;  // where k and v are paged
  int64_t page_size = 0;
  int64_t max_pages = 0;  // columns of block_table
  bool top_left = false;  // the diagonal is that of Causal::top_left
  // Query i attends the keys that these three allow.
  int64_t diagonal = 0;       // offset of the diagonal: seqlen_k - seqlen_q for bottom-right, 0 for
                              // top-left
  int64_t window_left = -1;   // keys j >= i + diagonal - window_left, -1 unlimited
  int64_t window_right = -1;  // keys j <= i + diagonal + window_right, -1 unlimited (causal
                              // gives 0)
  // Probability in units of 1 / 65536: what the mask's random numbers are compared with. 0: no
  // dropout.
  int dropout = 0;
  bool deterministic = true;
  // Heads wider than 256: v is the first dims of k, the same memory by the same strides (latent
  // attention). A run whose v lies elsewhere is right, too, and slower, which is logged.
  bool values_in_keys = false;
  Precision precision = Precision::exact;
  TensorSpec q, k, v, out, bias, keep_mask, alibi_slopes, sinks, lse;
  // Backward alone; dbias: dims that it sums over have stride 0.
  TensorSpec dout, dlse, dq, dk, dv, dbias, dsinks;
  TensorSpec cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, leftpad_k;
  TensorSpec k_scale, v_scale;
  TensorSpec q_scale;
  // A block mask: its sizes, 0 where there is none.
  int64_t mask_block_q = 0;
  int64_t mask_block_k = 0;
  TensorSpec kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices;
  // score_mod and mask_mod with their tensors.
  ScoreFunctions functions;

  bool operator==(const Problem&) const = default;
  int64_t group_size() const noexcept { return num_kv_heads > 0 ? num_heads / num_kv_heads : 0; }
  // What an element that is kept is multiplied with: 1 / (1 - p).
  float dropout_scale() const noexcept { return 65536.0F / static_cast<float>(65536 - dropout); }
  bool packed_q() const noexcept { return cu_seqlens_q.present; }
  bool packed_k() const noexcept { return cu_seqlens_k.present && !block_table.present; }
  // Whether the numbers of k or v are not those of q's dtype as they are stored: of another dtype,
  // or with a scale.
  bool quantized_kv() const noexcept {
    return k_dtype != dtype || v_dtype != dtype || k_scale.present || v_scale.present ||
           q_scale.present;
  }
  bool paged() const noexcept { return block_table.present; }
  // Whether there is a query and a key.
  bool has_products() const noexcept { return batch > 0 && seqlen_q > 0 && seqlen_k > 0; }
  bool has_block_mask() const noexcept { return kv_indices.present; }
  // Blocks of queries and of keys of a block mask.
  int64_t query_blocks() const noexcept {
    return mask_block_q > 0 ? (seqlen_q + mask_block_q - 1) / mask_block_q : 0;
  }
  int64_t key_blocks() const noexcept {
    return mask_block_k > 0 ? (seqlen_k + mask_block_k - 1) / mask_block_k : 0;
  }
  // Whether the sequences' lengths are values that are known only in run().
  bool variable_lengths() const noexcept {
    return cu_seqlens_q.present || cu_seqlens_k.present || seqlens_k.present ||
           block_table.present || leftpad_k.present;
  }
  using Shape = std::array<int64_t, 4>;
  // The tensors' shapes: of q and dq, k and dk, v and dv, out and dout, lse and dlse, and of bias
  // and keep_mask where nothing is broadcast, as far as they are read.
  Shape q_shape() const noexcept { return query_rows(num_heads, head_dim); }
  Shape k_shape() const noexcept { return key_rows(head_dim); }
  Shape v_shape() const noexcept { return key_rows(head_dim_v); }
  Shape out_shape() const noexcept { return query_rows(num_heads, head_dim_v); }
  Shape lse_shape() const noexcept {
    return {packed_q() ? 1 : batch, num_heads, packed_q() ? total_q : seqlen_q, 1};
  }
  // Of k_scale and v_scale: a scale of each token lies as the rows of k and v do, another goes by
  // batch.
  Shape k_scale_shape() const noexcept { return scales(k_scale, head_dim); }
  Shape v_scale_shape() const noexcept { return scales(v_scale, 1); }
  Shape score_shape() const noexcept { return {batch, num_heads, seqlen_q, seqlen_k}; }
  // The useful multiply-adds of the products, 2 flops each: q k^T and p v; backward q k^T, dout
  // v^T, and those of dq, dk and dv. Where lengths differ, an estimate from the shapes: the rows of
  // q that there are, each as in a sequence of the most keys.
  FULMEN_API double flops() const noexcept;
  // Bytes of inputs read once and outputs written once; of paged keys those that block_table could
  // name.
  FULMEN_API double bytes() const noexcept;

 private:
  Shape scales(const TensorSpec& spec, int64_t dim) const noexcept {
    return spec.strides[1] != 0 ? key_rows(dim) : Shape{batch, 1, num_kv_heads, dim};
  }
  Shape query_rows(int64_t heads, int64_t dim) const noexcept {
    return {packed_q() ? 1 : batch, packed_q() ? total_q : seqlen_q, heads, dim};
  }
  Shape key_rows(int64_t dim) const noexcept {
    if (paged()) return {num_pages, page_size, num_kv_heads, dim};
    return {packed_k() ? 1 : batch,
            packed_k()           ? total_k
            : variable_lengths() ? padded_k
                                 : seqlen_k,
            num_kv_heads, dim};
  }
};

// Checks the tensors (not their pointers) against the contract and returns the Problem, or a Status
// naming the bad argument.
FULMEN_API Result<Problem> make_problem(const AttentionTensors& tensors,
                                        const AttentionOptions& options);

// The same for the backward pass: out, lse and dout are needed, and one of dq, dk, dv, dbias and
// dsinks at least.
FULMEN_API Result<Problem> make_backward_problem(const AttentionTensors& tensors,
                                                 const AttentionOptions& options);

// "bf16 b=64 sq=64 sk=64 h=24/24 d=32 scale=0.1768 bias=bf16 ..."
FULMEN_API std::string to_string(const Problem& problem);
FULMEN_API std::size_t hash_value(const Problem& problem) noexcept;

}  // namespace fulmen

// So that a program may keep its plans in a std::unordered_map<fulmen::Problem, fulmen::Plan>.
template <>
struct std::hash<fulmen::Problem> {
  std::size_t operator()(const fulmen::Problem& problem) const noexcept {
    return fulmen::hash_value(problem);
  }
};
