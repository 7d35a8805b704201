// What every tensor of a call obeys, and how a refusal says so.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "fulmen/tensor.h"

namespace fulmen {

using Shape = std::array<int64_t, 4>;

// The bound of any dim: far over any memory; products of index and stride stay exact.
inline constexpr int64_t kMaxLength = int64_t{1} << 40;
// Bits of a number of elements and of the farthest one's offset: more than can be mapped, yet the
// products that planning and kernels make of sizes stay exact. Scores may be broadcast to far more
// elements than lie in memory.
inline constexpr int kOffsetBits = 48;
inline constexpr int kScoreBits = 60;

Status invalid(std::string message);
bool is_float(DType dtype);
// int8, fp8 and the block formats: of k and v alone.
bool is_kv_format(DType dtype);
// A dtype for a message: one that came as a number through the C ABI shows its value.
std::string name_of(DType dtype);
inline bool absent(const Tensor& tensor) {
  return tensor.data == nullptr && tensor.shape == Shape{};
}

// Sizes and strides that address memory, the last dim contiguous.
Status check_view(const char* name, const Tensor& tensor, int element_bits = kOffsetBits);
Status check_shape(const char* name, const Tensor& tensor, const Shape& want, const char* meaning);
// int32 numbers that say where sequences lie: dtype and view; sets the spec.
Status check_numbers(const char* name, const Tensor& tensor, TensorSpec& spec);
// An output's elements each have a place of their own.
Status check_output(const char* name, const Tensor& tensor);
TensorSpec spec_of(const Tensor& tensor);

// Returns true if k and v have the same strides but in dims of one element, so that v may be k's
// first dims.
bool rows_of_k_and_v_agree(const Problem& p);

}  // namespace fulmen
