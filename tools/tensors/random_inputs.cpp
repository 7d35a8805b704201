#include "tools/tensors/random_inputs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <stdexcept>

#include "fulmen/quantize.h"
#include "tools/tensors/float_conversion.h"

namespace fulmen::tools {
namespace {

constexpr std::size_t kPoolSize = std::size_t{1} << 18;
constexpr std::size_t kRun = 4096;  // elements copied from one random place of the pool

}  // namespace

NormalPool::NormalPool(uint64_t seed) : generator_(seed), normals_(kPoolSize) {
  std::normal_distribution<float> normal;
  for (float& x : normals_) x = normal(generator_);
}

void NormalPool::fill(void* data, DType dtype, std::size_t count, float factor) {
  if (!has_values()) return;
  const auto element = static_cast<std::size_t>(size_of(dtype));
  std::vector<float> scaled;
  if (count < kPoolSize) {  // converting the whole pool would take longer than all the rest
    for (std::size_t done = 0; done < count; done += kRun) {
      const std::size_t length = std::min(kRun, count - done);
      const float* from = normals_.data() + generator_() % (kPoolSize - kRun);
      scaled.assign(from, from + length);
      for (float& x : scaled) x *= factor;
      convert_from_fp32(scaled.data(), dtype, static_cast<std::byte*>(data) + done * element,
                        length);
    }
    return;
  }
  scaled = normals_;
  for (float& x : scaled) x *= factor;
  std::vector<std::byte> pool(kPoolSize * element);
  convert_from_fp32(scaled.data(), dtype, pool.data(), kPoolSize);
  for (std::size_t done = 0; done < count; done += kRun) {
    const std::size_t from = generator_() % (kPoolSize - kRun);
    std::memcpy(static_cast<std::byte*>(data) + done * element, pool.data() + from * element,
                std::min(kRun, count - done) * element);
  }
}

void NormalPool::fill_mask(void* data, std::size_t count, double share_of_ones) {
  if (!has_values()) return;
  std::bernoulli_distribution one(share_of_ones);
  for (std::size_t i = 0; i < count; ++i) static_cast<uint8_t*>(data)[i] = one(generator_) ? 1 : 0;
}

std::size_t stored_elements(const Tensor& tensor) noexcept {
  int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (tensor.shape[d] == 0) return 0;
    const int64_t size = d < 3 ? tensor.shape[d] : row_elements(tensor.dtype, tensor.shape[d]);
    last += (size - 1) * tensor.strides[d];
  }
  return static_cast<std::size_t>(last) + 1;
}

Memory random_tensor(NormalPool& pool, Tensor& tensor, float factor) {
  const std::size_t count = stored_elements(tensor);
  // One more byte: a tensor without elements still has an address.
  Memory memory(count * static_cast<std::size_t>(size_of(tensor.dtype)) + 1);
  if (memory.data() == nullptr) throw std::bad_alloc();
  tensor.data = memory.data();
  pool.fill(memory.data(), tensor.dtype, count, factor);
  return memory;
}

std::vector<Memory> random_codes(NormalPool& pool, Tensor& tensor, Tensor& scale, float factor) {
  std::vector<Memory> memory;
  NormalPool no_values = NormalPool::without_values();
  memory.push_back(random_tensor(no_values, tensor));
  if (scale.shape != std::array<int64_t, 4>{}) memory.push_back(random_tensor(no_values, scale));
  if (!pool.has_values()) return memory;
  const auto& s = tensor.shape;
  Tensor numbers = Tensor::bshd(nullptr, DType::fp32, s[0], s[1], s[2], s[3]);
  const Memory of_numbers = random_tensor(pool, numbers, factor);
  if (const Status status = quantize_kv(numbers, tensor, scale); !status.ok())
    throw std::runtime_error(status.message());
  return memory;
}

Tensor scale_of_heads(const Tensor& codes) {
  if (block_bytes(codes.dtype) > 0) return {};
  return Tensor::bshd(nullptr, DType::fp32, 1, 1, codes.shape[2], 1);
}

}  // namespace fulmen::tools
