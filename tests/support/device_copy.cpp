#include "support/device_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "plan/plan_impl.h"
#include "plan/registry.h"

namespace fulmen::testing {
namespace {

constexpr std::size_t kGuard = 256;  // keeps the data's alignment
constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kPoisonByte{0xFF};

std::size_t bytes_of(const Tensor& tensor) {
  int64_t last = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (tensor.shape[d] == 0) return 0;
    const int64_t size = d == 3 ? row_elements(tensor.dtype, tensor.shape[d]) : tensor.shape[d];
    last += (size - 1) * tensor.strides[d];
  }
  return static_cast<std::size_t>((last + 1) * size_of(tensor.dtype));
}

}  // namespace

DeviceCopy::DeviceCopy(std::string device, std::shared_ptr<const Backend> backend)
    : device_(std::move(device)),
      backend_(std::move(backend)),
      guard_(backend_->name().starts_with("emulated") ? 0 : kGuard) {}

DeviceCopy::~DeviceCopy() {
  for (const Block& block : blocks_) backend_->free(device_, block.memory);
}

Result<void*> DeviceCopy::place(const char* name, const void* data, std::size_t size,
                                std::size_t shift, bool output) {
  Block block{name, nullptr, guard_ + shift, {}, output, nullptr, size};
  // A tensor without elements still has an address.
  block.bytes.assign(guard_ + shift + std::max<std::size_t>(size, 1) + guard_, kGuardByte);
  if (data != nullptr && size > 0) std::memcpy(block.bytes.data() + block.before, data, size);
  if (data == nullptr)
    std::fill_n(block.bytes.begin() + static_cast<std::ptrdiff_t>(block.before), size, kPoisonByte);
  block.memory = static_cast<std::byte*>(backend_->allocate(device_, block.bytes.size()));
  if (block.memory == nullptr)
    return Status(StatusCode::out_of_memory, fmt::format("no memory for {} on {}", name, device_));
  blocks_.push_back(std::move(block));
  const Block& placed = blocks_.back();
  if (Status status =
          backend_->copy(device_, placed.memory, placed.bytes.data(), placed.bytes.size());
      !status.ok())
    return status;
  return static_cast<void*>(placed.memory + placed.before);
}

Result<std::unique_ptr<DeviceCopy>> DeviceCopy::make(const std::string& device,
                                                     const AttentionTensors& host,
                                                     std::size_t shift, Pass pass) {
  auto backend = backend_of(device);
  if (backend == nullptr) return Status(StatusCode::unavailable, "no backend of device " + device);
  std::unique_ptr<DeviceCopy> made(new DeviceCopy(device, std::move(backend)));
  made->tensors_ = host;
  AttentionTensors& there = made->tensors_;
  for (const TensorField& field : kTensorTable) {
    Tensor& tensor = there->*field.tensor;
    const char* name = field.name;
    const bool output = field.written[static_cast<std::size_t>(pass)];
    if (tensor.data == nullptr) continue;
    if (field.tensor == &AttentionTensors::v && tensor.data == host.k.data) {
      tensor.data = there.k.data;
      continue;
    }
    void* from = tensor.data;
    const Result<void*> placed =
        made->place(name, from, bytes_of(tensor),
                    shift * static_cast<std::size_t>(size_of(tensor.dtype)), output);
    if (!placed.ok()) return placed.status();
    tensor.data = placed.value();
    made->blocks_.back().host = from;
  }
  made->function_tensors_.assign(host.function_tensors.begin(), host.function_tensors.end());
  for (FunctionTensor& one : made->function_tensors_) {
    for (const bool output : {false, true}) {
      if (Status status = made->place_function_tensor("function_tensors", one.dims, output,
                                                      output ? one.gradient : one.tensor);
          !status.ok())
        return status;
    }
  }
  there.function_tensors = made->function_tensors_;
  return made;
}

Status DeviceCopy::place_function_tensor(const char* name, int dims, bool output, Tensor& tensor) {
  if (tensor.data == nullptr) return {};
  Tensor whole = tensor;
  for (auto d = static_cast<std::size_t>(dims); d < 4; ++d) {
    whole.shape[d] = 1;
    whole.strides[d] = 0;
  }
  // Elements before the first one, where strides are negative.
  int64_t before = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    if (whole.strides[d] >= 0) continue;
    whole.strides[d] = -whole.strides[d];
    before += whole.shape[d] > 0 ? (whole.shape[d] - 1) * whole.strides[d] : 0;
  }
  before *= size_of(tensor.dtype);
  void* const host = static_cast<std::byte*>(tensor.data) - before;
  const Result<void*> placed = place(name, host, bytes_of(whole), 0, output);
  if (!placed.ok()) return placed.status();
  blocks_.back().host = host;
  tensor.data = static_cast<std::byte*>(placed.value()) + before;
  return {};
}

Result<void*> DeviceCopy::make_workspace(std::size_t bytes) {
  if (bytes == 0) return static_cast<void*>(nullptr);
  return place("workspace", nullptr, bytes, 0, true);
}

Status DeviceCopy::download() const {
  for (const Block& block : blocks_) {
    if (!block.output || block.host == nullptr || block.size == 0) continue;
    if (Status status =
            backend_->copy(device_, block.host, block.memory + block.before, block.size);
        !status.ok())
      return status;
  }
  return {};
}

std::string DeviceCopy::damage() const {
  for (const Block& block : blocks_) {
    std::vector<std::byte> now(block.bytes.size());
    if (Status status = backend_->copy(device_, now.data(), block.memory, now.size()); !status.ok())
      return status.message();
    for (std::size_t i = 0; i < now.size(); ++i) {
      const bool data = i >= block.before && i < block.before + block.size;
      if (now[i] == block.bytes[i] || (data && block.output)) continue;
      const auto at = static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(block.before);
      return fmt::format("byte {} of {} ({} bytes) was written", at, block.name, block.size);
    }
  }
  return "";
}

}  // namespace fulmen::testing
