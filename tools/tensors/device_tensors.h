// A problem's tensors in a device's memory, beside those in the host's. Where the device takes host
// memory they are the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"
#include "fulmen/tensor_fields.h"

namespace fulmen::tools {

// The backend that a device's name begins with, or null.
std::shared_ptr<const Backend> backend_of(const std::string& device);
// Returns true if the device's kernels take the host's memory. False for an unknown device.
bool uses_host_memory(const std::string& device);
// Returns true for an emulated GPU, whose results count and whose times do not.
bool is_emulated(const std::string& device);

// The tensors that a pass writes.
std::vector<Tensor AttentionTensors::*> outputs_of(Pass pass);

// Memory from the backend of a device.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Null data when there is no more (bytes > 0).
  DeviceMemory(std::shared_ptr<const Backend> backend, std::string device, std::size_t bytes);
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();
  void* data() const noexcept { return data_; }
  // Fills it with bits that are NaN in every dtype: what is read before it is written cannot pass
  // for a result.
  Status poison() const;

 private:
  std::shared_ptr<const Backend> backend_;
  std::string device_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class DeviceTensors {
 public:
  // Allocates and copies everything, outputs too: poison on the host is poison there. host must
  // outlive this. shift: elements by which every tensor begins after an aligned address, where the
  // device has memory of its own.
  static Result<std::unique_ptr<DeviceTensors>> make(const std::string& device,
                                                     const AttentionTensors& host,
                                                     std::size_t shift = 0);
  const AttentionTensors& tensors() const noexcept { return tensors_; }
  // Copy what the pass writes to the device again, and from it.
  Status upload_outputs(Pass pass = Pass::forward) const;
  Status download(Pass pass = Pass::forward) const;
  DeviceMemory workspace(std::size_t bytes) const { return {backend_, device_, bytes}; }
  Status synchronize() const { return backend_->synchronize(device_, nullptr); }

 private:
  Status mirror(const Tensor& host, Tensor& device, std::size_t shift);
  Status move_outputs(Pass pass, bool to_device) const;

  std::shared_ptr<const Backend> backend_;
  std::string device_;
  AttentionTensors host_, tensors_;
  std::vector<DeviceMemory> memory_;
};

}  // namespace fulmen::tools
