#include "fulmen/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <limits>

namespace fulmen {
namespace {

// Saturates: make_problem refuses a view that large, whereas a stride that wrapped around could look valid.
int64_t product(std::initializer_list<int64_t> factors) noexcept {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return std::numeric_limits<int64_t>::max();
  }
  return result;
}

// One type of view serves inputs and outputs.
void* writable(const void* data) noexcept { return const_cast<void*>(data); }

}  // namespace

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
    case DType::int32:
      return "int32";
  }
  return "unknown dtype";
}

Tensor Tensor::bshd(const void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) noexcept {
  return {writable(data),
          dtype,
          {batch, seqlen, heads, head_dim},
          {product({seqlen, heads, head_dim}), product({heads, head_dim}), head_dim, 1}};
}

Tensor Tensor::bhsd(const void* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim) noexcept {
  return {writable(data),
          dtype,
          {batch, seqlen, heads, head_dim},
          {product({heads, seqlen, head_dim}), head_dim, product({seqlen, head_dim}), 1}};
}

Tensor Tensor::bhqk(const void* data, DType dtype, int64_t batch, int64_t heads, int64_t seqlen_q, int64_t seqlen_k) noexcept {
  const auto stride = [](int64_t size, int64_t step) { return size == 1 ? 0 : step; };
  return {writable(data),
          dtype,
          {batch, heads, seqlen_q, seqlen_k},
          {stride(batch, product({heads, seqlen_q, seqlen_k})), stride(heads, product({seqlen_q, seqlen_k})),
           stride(seqlen_q, seqlen_k), 1}};
}

Tensor Tensor::vector(const void* data, DType dtype, int64_t n) noexcept { return bhqk(data, dtype, 1, 1, 1, n); }

Tensor Tensor::matrix(const void* data, DType dtype, int64_t rows, int64_t columns) noexcept {
  return bhqk(data, dtype, 1, 1, rows, columns);
}

std::string to_string(const Tensor& tensor) {
  return fmt::format("{} {} strides {}", to_string(tensor.dtype), tensor.shape, tensor.strides);
}

}  // namespace fulmen
