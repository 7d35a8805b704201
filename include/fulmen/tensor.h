// Tensor: a view of memory that Fulmen reads or writes. Views own nothing.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "fulmen/export.h"

namespace fulmen {

enum class DType : int { fp32 = 0, fp16 = 1, bf16 = 2, boolean = 3, int32 = 4 };  // boolean: one byte an element, 0 is false
// "fp16", and the bytes of an element.
FULMEN_API const char* to_string(DType dtype) noexcept;
constexpr int64_t size_of(DType dtype) noexcept {
  return dtype == DType::fp32 || dtype == DType::int32 ? 4 : dtype == DType::boolean ? 1 : 2;
}

// Four logical dims with strides counted in elements. q, k, v and out use the order [batch, seqlen, head, head_dim] whatever
// their order in memory; bias and keep_mask use [batch, head, seqlen_q, seqlen_k]. The last dim is contiguous (stride 1).
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> strides{};

  // The usual views. The data of an input may be const: inputs are never written. What the call writes (out, lse, gradients, a
  // KV cache) has to be the program's to write, whatever type its pointer has.
  // Memory order [batch, seqlen, head, head_dim]: also the interleaved [batch, seqlen, head * head_dim] of chess engines.
  static FULMEN_API Tensor bshd(const void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads,
                                int64_t head_dim) noexcept;
  // Memory order [batch, head, seqlen, head_dim], still viewed as [batch, seqlen, head, head_dim].
  static FULMEN_API Tensor bhsd(const void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads,
                                int64_t head_dim) noexcept;
  // Row-major bias or mask [batch, head, seqlen_q, seqlen_k]. A dim given as 1 is broadcast (its stride becomes 0). lse and dlse
  // have seqlen_k 1.
  static FULMEN_API Tensor bhqk(const void* data, DType dtype, int64_t batch, int64_t heads, int64_t seqlen_q,
                                int64_t seqlen_k) noexcept;
  // [n]: sinks and alibi_slopes (n heads), cu_seqlens (batch + 1), seqlens_k and leftpad_k (batch).
  static FULMEN_API Tensor vector(const void* data, DType dtype, int64_t n) noexcept;
  // Row-major [rows, columns]: block_table (batch, max_pages), rotary_cos and rotary_sin (positions, rotary_dim / 2).
  static FULMEN_API Tensor matrix(const void* data, DType dtype, int64_t rows, int64_t columns) noexcept;
};

// "fp16 [2, 64, 24, 32] strides [49152, 768, 32, 1]"
FULMEN_API std::string to_string(const Tensor& tensor);

}  // namespace fulmen
