#include "runtime/tensor_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace fulmen {
namespace {

// A row of blocks as its bytes.
Tensor in_elements(Tensor t) {
  t.shape[3] = row_elements(t.dtype, t.shape[3]);
  return t;
}

bool extent_fits(const Tensor& t, int element_bits) {
  int64_t elements = 1, last = 0;  // an empty dim counts as 1: kernels multiply the others
  for (int d = 0; d < 4; ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(t.shape[d], 1), &elements)) return false;
    if (t.shape[d] > 1 && __builtin_mul_overflow(t.shape[d] - 1, t.strides[d], &reach))
      return false;
    if (__builtin_add_overflow(last, reach, &last)) return false;
  }
  return elements <= int64_t{1} << element_bits && last < int64_t{1} << kOffsetBits;
}

// An output's elements lie apart: sorted by stride, each dim steps over the whole extent of the
// smaller ones.
bool overlaps_itself(const Tensor& t) {
  for (const int64_t size : t.shape) {
    if (size == 0) return false;
  }
  std::array<int, 4> order{0, 1, 2, 3};
  for (int i = 0; i < 4; ++i) {
    for (int j = i + 1; j < 4; ++j) {
      if (t.strides[order[j]] < t.strides[order[i]]) std::swap(order[i], order[j]);
    }
  }
  int64_t extent = 0;  // largest offset reached by the dims so far
  for (const int d : order) {
    if (t.shape[d] == 1) continue;
    if (t.strides[d] <= extent) return true;
    extent += (t.shape[d] - 1) * t.strides[d];
  }
  return false;
}

}  // namespace

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

bool is_float(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::fp16 || dtype == DType::bf16;
}
bool is_kv_format(DType dtype) { return dtype >= DType::int8 && dtype <= DType::q5_1; }
std::string name_of(DType dtype) {
  const std::string name = to_string(dtype);
  return name == "unknown dtype" ? fmt::format("{}", static_cast<int>(dtype)) : name;
}

Status check_view(const char* name, const Tensor& t, int element_bits) {
  for (const int64_t size : t.shape) {
    if (size < 0 || size > kMaxLength)
      return invalid(fmt::format("{}.shape is {}: each dim must be 0 to 2^40", name, t.shape));
  }
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] > 1 && t.strides[d] < 0)
      return invalid(
          fmt::format("{}.strides is {}: negative strides are not accepted", name, t.strides));
  }
  if (t.shape[3] > 1 && t.strides[3] != 1) {
    return invalid(fmt::format("{}.strides is {}: the last dim must be contiguous, stride 1", name,
                               t.strides));
  }
  if (block_bytes(t.dtype) > 0 && t.shape[3] % kBlockNumbers != 0) {
    return invalid(
        fmt::format("{}.shape is {}: {} has blocks of {} numbers, the last dim must be "
                    "a multiple of it",
                    name, t.shape, to_string(t.dtype), kBlockNumbers));
  }
  if (!extent_fits(in_elements(t), element_bits)) {
    return invalid(
        fmt::format("{} with shape {} and strides {} is more memory than can be: up to 2^{} "
                    "elements, the farthest 2^{} away, are "
                    "accepted",
                    name, t.shape, t.strides, element_bits, kOffsetBits));
  }
  return {};
}

TensorSpec spec_of(const Tensor& t) {
  TensorSpec spec{t.dtype, true, t.strides};
  for (int d = 0; d < 4; ++d) {
    if (t.shape[d] <= 1) spec.strides[d] = d == 3 ? 1 : 0;
  }
  return spec;
}

Status check_shape(const char* name, const Tensor& t, const Shape& want, const char* meaning) {
  if (t.shape == want) return {};
  return invalid(fmt::format("{}.shape is {}: {} = {} is needed", name, t.shape, meaning, want));
}

Status check_numbers(const char* name, const Tensor& t, TensorSpec& spec) {
  if (t.dtype != DType::int32)
    return invalid(fmt::format("{}.dtype is {}: int32 is needed", name, name_of(t.dtype)));
  if (Status status = check_view(name, t); !status.ok()) return status;
  spec = spec_of(t);
  return {};
}

Status check_output(const char* name, const Tensor& t) {
  if (!overlaps_itself(in_elements(t))) return {};
  return invalid(fmt::format(
      "{} with shape {} and strides {} overlaps itself: each element needs its own place", name,
      t.shape, t.strides));
}

bool rows_of_k_and_v_agree(const Problem& p) {
  const Shape shape = p.k_shape();
  for (int d = 0; d < 4; ++d) {
    if (shape[d] > 1 && p.k.strides[d] != p.v.strides[d]) return false;
  }
  return true;
}

}  // namespace fulmen
