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

  // Memory order [batch, seqlen, head, head_dim]: also the interleaved [batch, seqlen, head * head_dim] of chess engines.
  static FULMEN_API Tensor bshd(void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) noexcept;
  // Memory order [batch, head, seqlen, head_dim], still viewed as [batch, seqlen, head, head_dim].
  static FULMEN_API Tensor bhsd(void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) noexcept;
  // Row-major bias or mask [batch, head, seqlen_q, seqlen_k]. A dim given as 1 is broadcast (its stride becomes 0).
  static FULMEN_API Tensor bhqk(void* data, DType dtype, int64_t batch, int64_t heads, int64_t seqlen_q, int64_t seqlen_k) noexcept;
};

// "fp16 [2, 64, 24, 32] strides [49152, 768, 32, 1]"
FULMEN_API std::string to_string(const Tensor& tensor);

}  // namespace fulmen
