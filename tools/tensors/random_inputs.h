// Random inputs fast enough for gigabytes: rows are copied from a pool of normal numbers.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "fulmen/tensor.h"
#include "tools/tensors/memory.h"

namespace fulmen::tools {

class NormalPool {
 public:
  explicit NormalPool(uint64_t seed);
  // Fills nothing, for callers that need shapes and addresses alone.
  static NormalPool without_values() { return NormalPool(); }
  bool has_values() const noexcept { return !normals_.empty(); }
  // Fills count elements with N(0, 1) * factor, rounded to dtype.
  void fill(void* data, DType dtype, std::size_t count, float factor = 1.0F);
  // Fills bytes with 0 or 1, with the given share of ones.
  void fill_mask(void* data, std::size_t count, double share_of_ones);
  std::mt19937_64& generator() noexcept { return generator_; }

 private:
  NormalPool() = default;

  std::mt19937_64 generator_;
  std::vector<float> normals_;
};

// Owned memory for all that a tensor's strides reach, filled with normal numbers; the tensor's data
// points to it. Throws std::bad_alloc.
Memory random_tensor(NormalPool& pool, Tensor& tensor, float factor = 1.0F);
// The same of keys or values in a format of their own: normal numbers are quantized, with the
// scales that `scale` has room for. Returns the memory of both.
std::vector<Memory> random_codes(NormalPool& pool, Tensor& tensor, Tensor& scale,
                                 float factor = 1.0F);
// Returns true for a dtype that only k and v have.
constexpr bool is_quantized(DType dtype) { return size_of(dtype) == 1 && dtype != DType::boolean; }
// The shape of a scale of each head, fp32; of a block format, which has its own, none.
Tensor scale_of_heads(const Tensor& codes);
// Elements from a tensor's first to its last, bytes of blocks; dims of stride 0 count once.
std::size_t stored_elements(const Tensor& tensor) noexcept;

}  // namespace fulmen::tools
