// The base of the emulators' drivers. Devices are chips of the table, memory is the host's.
// Launches are complete when they return, so nothing is ever in flight.
#pragma once

#include <string>
#include <vector>

#include "emulator/device_memory.h"
#include "gpu/driver.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu {

class HostMemoryDriver : public Driver {
 public:
  std::vector<std::string> selectors() const override;
  Result<DeviceProperties> properties(int device) const override;

  Result<void*> allocate(int /*device*/, std::size_t bytes) const override {
    return memory_.allocate(bytes);
  }
  void free(int /*device*/, void* memory) const noexcept override { memory_.free(memory); }
  Status copy(int device, void* to, const void* from, std::size_t bytes) const override;
  Status fill(int device, void* to, unsigned char byte, std::size_t bytes) const override;
  Status check_memory(int device, const void* memory) const override;
  Status synchronize(int /*device*/, void* /*stream*/) const override { return {}; }

  Result<Event> create_event(int device) const override;
  void destroy_event(int device, Event event) const noexcept override;
  Status record(int device, Event event, void* stream) const override;
  Result<float> elapsed(int device, Event begin, Event end) const override;

 protected:
  // Device n is chips[n].
  explicit HostMemoryDriver(std::vector<Chip> chips) : chips_(std::move(chips)) {}
  const Chip& chip_of(int device) const { return chips_[static_cast<std::size_t>(device)]; }
  DeviceMemory& memory() const { return memory_; }
  // Kernels have one function, fulmen_ and what it computes.
  static Status check_function(const char* name);
  // Errors: a workgroup that is not whole waves of wave_size lanes, or has more than 1024 lanes; a
  // grid of more than 2^31 - 1.
  static Status check_shape(const Launch& launch, int wave_size);

 private:
  std::vector<Chip> chips_;
  mutable DeviceMemory memory_;
};

}  // namespace fulmen::gpu
