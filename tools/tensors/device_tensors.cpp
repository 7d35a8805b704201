#include "tools/tensors/device_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/tensors/random_inputs.h"

namespace fulmen::tools {
namespace {

constexpr std::size_t kPoisonBlock = std::size_t{1} << 20;

std::size_t bytes_of(const Tensor& tensor) {
  return stored_elements(tensor) * static_cast<std::size_t>(size_of(tensor.dtype));
}

}  // namespace

std::vector<Tensor AttentionTensors::*> outputs_of(Pass pass) {
  std::vector<Tensor AttentionTensors::*> outputs;
  for (const TensorField& field : kTensorTable) {
    if (field.written[static_cast<std::size_t>(pass)]) outputs.push_back(field.tensor.output());
  }
  return outputs;
}

std::shared_ptr<const Backend> backend_of(const std::string& device) {
  for (const auto& backend : backends()) {
    if (backend->name() == device.substr(0, device.find(':'))) return backend;
  }
  return nullptr;
}

bool uses_host_memory(const std::string& device) {
  const auto backend = backend_of(device);
  return backend != nullptr && backend->uses_host_memory();
}

bool is_emulated(const std::string& device) { return device.starts_with("emulated"); }

DeviceMemory::DeviceMemory(std::shared_ptr<const Backend> backend, std::string device,
                           std::size_t bytes)
    : backend_(std::move(backend)), device_(std::move(device)) {
  if (bytes > 0) data_ = backend_->allocate(device_, bytes);
  if (data_ != nullptr) bytes_ = bytes;
}
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : backend_(std::move(other.backend_)),
      device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) backend_->free(device_, data_);
}

Status DeviceMemory::poison() const {
  if (data_ == nullptr) return {};
  const std::vector<unsigned char> block(std::min(bytes_, kPoisonBlock), 0xFF);
  for (std::size_t done = 0; done < bytes_; done += block.size()) {
    const std::size_t bytes = std::min(block.size(), bytes_ - done);
    const Status status =
        backend_->copy(device_, static_cast<std::byte*>(data_) + done, block.data(), bytes);
    if (!status.ok()) return status;
  }
  return {};
}

Status DeviceTensors::mirror(const Tensor& host, Tensor& device, std::size_t shift) {
  if (host.data == nullptr) return {};
  const std::size_t bytes = bytes_of(host);
  // A tensor without elements still has an address.
  DeviceMemory& memory =
      memory_.emplace_back(backend_, device_, bytes + shift + (bytes == 0 ? 1 : 0));
  if (memory.data() == nullptr)
    return {StatusCode::out_of_memory, fmt::format("no memory for {} bytes on {}", bytes, device_)};
  device.data = static_cast<std::byte*>(memory.data()) + shift;
  return backend_->copy(device_, device.data, host.data, bytes);
}

Result<std::unique_ptr<DeviceTensors>> DeviceTensors::make(const std::string& device,
                                                           const AttentionTensors& host,
                                                           std::size_t shift_elements) {
  auto made = std::make_unique<DeviceTensors>();
  made->device_ = device.empty() ? default_device() : device;
  made->backend_ = backend_of(made->device_);
  made->host_ = made->tensors_ = host;
  if (made->backend_ == nullptr)
    return Status(StatusCode::invalid_argument,
                  fmt::format("device {}: see `fulmen devices`", device));
  if (made->backend_->uses_host_memory()) return made;
  for (const TensorField& field : kTensorTable) {
    const Tensor& from = host->*field.tensor;
    const std::size_t shift = shift_elements * static_cast<std::size_t>(size_of(from.dtype));
    if (Status status = made->mirror(from, made->tensors_->*field.tensor, shift); !status.ok())
      return status;
  }
  // Values that are the first dims of keys (Problem::values_in_keys) are so there, too.
  if (host.v.data == host.k.data) made->tensors_.v.data = made->tensors_.k.data;
  return made;
}

Status DeviceTensors::move_outputs(Pass pass, bool to_device) const {
  if (backend_->uses_host_memory()) return {};
  for (Tensor AttentionTensors::* const one : outputs_of(pass)) {
    const Tensor &host = host_.*one, &device = tensors_.*one;
    if (host.data == nullptr) continue;
    const Status status = to_device
                              ? backend_->copy(device_, device.data, host.data, bytes_of(host))
                              : backend_->copy(device_, host.data, device.data, bytes_of(host));
    if (!status.ok()) return status;
  }
  return {};
}
Status DeviceTensors::upload_outputs(Pass pass) const { return move_outputs(pass, true); }
Status DeviceTensors::download(Pass pass) const { return move_outputs(pass, false); }

}  // namespace fulmen::tools
