#include "fulmen/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <limits>

namespace fulmen {
namespace {

// Saturates: make_problem refuses a view that large, whereas a stride that wrapped around could
// look valid.
int64_t product(std::initializer_list<int64_t> factors) noexcept {
  int64_t result = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) return std::numeric_limits<int64_t>::max();
  }
  return result;
}

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
    case DType::int64:
      return "int64";
    case DType::int8:
      return "int8";
    case DType::uint8:
      return "uint8";
  }
  return "unknown dtype";
}

Tensor::Strides Tensor::bshd_strides(int64_t seqlen, int64_t heads, int64_t head_dim) noexcept {
  return {product({seqlen, heads, head_dim}), product({heads, head_dim}), head_dim, 1};
}

Tensor::Strides Tensor::bhsd_strides(int64_t seqlen, int64_t heads, int64_t head_dim) noexcept {
  return {product({heads, seqlen, head_dim}), head_dim, product({seqlen, head_dim}), 1};
}

Tensor::Strides Tensor::bhqk_strides(int64_t batch, int64_t heads, int64_t seqlen_q,
                                     int64_t seqlen_k) noexcept {
  const auto stride = [](int64_t size, int64_t step) { return size == 1 ? 0 : step; };
  return {stride(batch, product({heads, seqlen_q, seqlen_k})),
          stride(heads, product({seqlen_q, seqlen_k})), stride(seqlen_q, seqlen_k), 1};
}

std::string to_string(const Tensor& tensor) {
  return fmt::format("{} {} strides {}", to_string(tensor.dtype), tensor.shape, tensor.strides);
}

}  // namespace fulmen
