// Appending to a KV cache: new keys and values go behind those that are there, and new keys and
// queries are rotated on the way. docs/contract.md has the formulas.
#pragma once

#include <cstdint>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/export.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

// The tensors of one call. An absent one has data == nullptr and an all-zero shape.
struct KvCacheTensors {
  // The cache, written: padded [batch, rows, num_kv_heads, head_dim], or with a block_table paged
  // [num_pages, page_size, num_kv_heads, head_dim]; v_cache has head_dim_v. The dtype of the new
  // rows, or int8, fp8 or a block format (fulmen/quantize.h), by which new rows are rounded after
  // they are rotated; strides as anywhere. Of a latent cache v_cache is the first dims of k_cache:
  // the same memory, dtype and strides. v_new is those of k_new then, v_scale is k_scale, new rows
  // are written once, and new keys have no rotary embedding here, as values have none.
  Tensor k_cache{}, v_cache{};
  InputTensor seqlens_k{};    // int32 [1, 1, 1, batch]: rows that are used; row i of k_new becomes
                              // row seqlens_k[b] + i
  InputTensor block_table{};  // optional int32 [1, 1, batch, max_pages], as in AttentionTensors;
                              // the rows that are written lie in no other sequence's pages
  // New rows, both or neither: [batch, seqlen_new, num_kv_heads, head_dim], v_new with head_dim_v,
  // fp32, fp16 or bf16.
  InputTensor k_new{}, v_new{};
  // Rotary position embedding of k_new, and of q, both or neither: fp32 or the new rows' dtype,
  // [1, 1, positions, rotary_dim / 2].
  InputTensor rotary_cos{}, rotary_sin{};
  InputTensor q{};         // optional, where there is a rotary embedding:
                           // [batch, seqlen_q, num_heads, head_dim], the new rows' dtype
  Tensor q_out{};          // output for q, of its shape: other memory, or q itself
  Tensor seqlens_k_out{};  // optional int32 output [1, 1, 1, batch]: seqlens_k + seqlen_new, what
                           // attention over the cache takes
  // Of a cache in int8 or fp8, optional, fp32 or fp16, shaped as in AttentionTensors but for
  // channels. With dim 1 of more than one element, a scale of each token: it is computed and
  // written. Else it is read, and numbers beyond the format's largest become that.
  Tensor k_scale{}, v_scale{};
};

struct KvCacheOptions {
  // Pairs are elements 2 i and 2 i + 1; else i and i + rotary_dim / 2.
  bool rotary_interleaved = true;
  // Query i is at position seqlens_k[b] + i, as under a causal mask or a window; else every query
  // is at seqlens_k[b].
  bool queries_advance = true;
  int num_threads = 0;         // the most CPU threads; 0: OMP_NUM_THREADS, else all processors
                               // (docs/contract.md)
  ParallelFor parallel_for{};  // a user's own thread pool instead of the library's
  // Checks seqlens_k and block_table in a device's own memory, on copies in host memory, for which
  // the call waits. Also FLASH_ATTENTION_VALIDATE=1. Devices that use the host's memory are always
  // checked.
  bool validate = false;
};

// Everything about a call but its pointers.
struct KvCacheProblem {
  DType dtype = DType::fp32;  // of new rows and of q
  DType k_dtype = dtype;      // of k_cache
  DType v_dtype = dtype;      // of v_cache
  int64_t batch = 0;
  int64_t seqlen_new = 0;  // 0 without new rows
  int64_t seqlen_q = 0;
  int64_t num_heads = 0;  // of q
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  // Rows that a sequence may have in the cache: of its padding, or of its max_pages pages.
  int64_t rows = 0;
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t max_pages = 0;
  int64_t rotary_dim = 0;  // 0: no rotary embedding
  int64_t positions = 0;   // of rotary_cos
  bool rotary_interleaved = true;
  bool queries_advance = true;
  bool values_in_keys = false;  // v_cache is the first dims of k_cache: its rows are written there
  TensorSpec k_cache, v_cache, seqlens_k, block_table, k_new, v_new, rotary_cos, rotary_sin, q,
      q_out, seqlens_k_out, k_scale, v_scale;
  bool operator==(const KvCacheProblem&) const = default;
  bool paged() const noexcept { return block_table.present; }
  bool quantized() const noexcept { return k_dtype != dtype || v_dtype != dtype; }
  // How many positions of the rotary embedding a sequence needs from seqlens_k[b] on: as many as
  // new rows, or queries that advance.
  int64_t positions_needed() const noexcept {
    const int64_t queries = queries_advance || seqlen_q == 0 ? seqlen_q : 1;
    return queries > seqlen_new ? queries : seqlen_new;
  }
};

// Checks the tensors, not their pointers, and returns the problem, or a Status naming the bad
// argument.
FULMEN_API Result<KvCacheProblem> make_kv_cache_problem(const KvCacheTensors& tensors,
                                                        const KvCacheOptions& options = {});

// Writes the new rows into the cache, q_out and seqlens_k_out. device: as for attention(). stream:
// a vendor's stream (null: the device's default one), ignored on the CPU; a GPU may still be at
// work on return. Allocates nothing on the CPU. Errors: those of make_kv_cache_problem(); a pointer
// that is null or not aligned to its element; an output that overlaps an input or another output
// (q_out may be q; the caches and their scales may lie in each other's gaps;
// v_cache may be the first dims of k_cache); on devices that use the host's
// memory, and with options.validate on others, values of seqlens_k by which rows go past the cache
// or the last position, and pages that are not there; a backend that cannot. On error nothing is
// written.
FULMEN_API Status append_kv(const KvCacheTensors& tensors, const KvCacheOptions& options = {},
                            const std::string& device = {}, void* stream = nullptr);

}  // namespace fulmen
