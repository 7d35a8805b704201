#include "fulmen/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fulmen {

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::fp16:
      return "fp16";
    case DType::bf16:
      return "bf16";
    case DType::boolean:
      return "boolean";
  }
  return "unknown dtype";
}

Tensor Tensor::bshd(void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) noexcept {
  return {data, dtype, {batch, seqlen, heads, head_dim}, {seqlen * heads * head_dim, heads * head_dim, head_dim, 1}};
}

Tensor Tensor::bhsd(void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) noexcept {
  return {data, dtype, {batch, seqlen, heads, head_dim}, {heads * seqlen * head_dim, head_dim, seqlen * head_dim, 1}};
}

Tensor Tensor::bhqk(void* data, DType dtype, int64_t batch, int64_t heads, int64_t seqlen_q, int64_t seqlen_k) noexcept {
  const auto stride = [](int64_t size, int64_t step) { return size == 1 ? 0 : step; };
  return {data,
          dtype,
          {batch, heads, seqlen_q, seqlen_k},
          {stride(batch, heads * seqlen_q * seqlen_k), stride(heads, seqlen_q * seqlen_k), stride(seqlen_q, seqlen_k), 1}};
}

std::string to_string(const Tensor& tensor) {
  return fmt::format("{} {} strides {}", to_string(tensor.dtype), tensor.shape, tensor.strides);
}

}  // namespace fulmen
