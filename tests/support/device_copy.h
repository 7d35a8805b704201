// A case's tensors in a device's own memory, with guards around them that must not change.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/fulmen.h"

namespace fulmen::testing {

// Copies of tensors on a device that does not use the host's memory. Around each allocation lie
// guards, bytes that no kernel may change; not on an emulated device, whose emulator refuses every
// access outside an allocation, reads included.
class DeviceCopy {
 public:
  // Every tensor begins `shift` elements after an aligned address. Outputs are copied, too: poison
  // stays poison.
  static Result<std::unique_ptr<DeviceCopy>> make(const std::string& device,
                                                  const AttentionTensors& host, std::size_t shift,
                                                  Pass pass = Pass::forward);
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  ~DeviceCopy();

  const AttentionTensors& tensors() const noexcept { return tensors_; }
  // Scratch of exactly so many bytes, all NaN; null for 0 bytes. A copy has one.
  Result<void*> make_workspace(std::size_t bytes);
  // Copies the pass's outputs to the host's tensors.
  Status download() const;
  // Names a guard or input that was written, or returns "".
  std::string damage() const;

 private:
  struct Block {
    std::string name;
    std::byte* memory = nullptr;   // with guards
    std::size_t before = 0;        // bytes until the data
    std::vector<std::byte> bytes;  // what was put there, guards included
    bool output = false;
    void* host = nullptr;  // the tensor it is a copy of
    std::size_t size = 0;  // of the data
  };

  DeviceCopy(std::string device, std::shared_ptr<const Backend> backend);
  Result<void*> place(const char* name, const void* data, std::size_t size, std::size_t shift,
                      bool output);

  std::string device_;
  std::shared_ptr<const Backend> backend_;
  // A score function's tensor, or its gradient.
  Status place_function_tensor(const char* name, int dims, bool output, Tensor& tensor);

  AttentionTensors tensors_;
  std::vector<FunctionTensor> function_tensors_;
  std::size_t guard_;
  std::vector<Block> blocks_;
};

}  // namespace fulmen::testing
