// The memory of a description's buffers.
#pragma once

#include <string>
#include <vector>

#include "bench/amd/run_kernel/description.h"
#include "emulator/device_memory.h"

namespace fulmen::run_kernel {

class Buffers {
 public:
  // Allocates and fills them. Errors: a file that is no .npy or cannot be read.
  static Result<Buffers> make(const std::vector<Buffer>& buffers);
  Buffers(Buffers&&) = default;
  Buffers& operator=(Buffers&&) = delete;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers();

  // name: one of them.
  uint64_t address(const std::string& name) const;
  gpu::MemoryMap map() const { return memory_->map(); }
  // Writes those that ask for it. Errors: a shape of more bytes than the buffer has; a file that
  // cannot be written.
  Status save(const std::vector<Buffer>& buffers) const;

 private:
  struct Place {
    std::string name;
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  Buffers() : memory_(std::make_unique<gpu::DeviceMemory>()) {}
  const Place& find(const std::string& name) const;

  std::unique_ptr<gpu::DeviceMemory> memory_;
  std::vector<Place> places_;
};

}  // namespace fulmen::run_kernel
