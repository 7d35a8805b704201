#include "emulator/host_memory_driver.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>

#include "runtime/platform/system.h"

namespace fulmen::gpu {
namespace {

using Clock = std::chrono::steady_clock;

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

Clock::time_point& time_of(Event event) { return *static_cast<Clock::time_point*>(event.handle); }

}  // namespace

std::vector<std::string> HostMemoryDriver::selectors() const {
  std::vector<std::string> names;
  for (const Chip& chip : chips_) names.emplace_back(chip.arch);
  return names;
}

Result<DeviceProperties> HostMemoryDriver::properties(int device) const {
  constexpr int kComputeUnits = 4;  // few, so that small problems fill the device
  const Chip& chip = chip_of(device);
  DeviceProperties p;
  p.name = p.arch = chip.arch;
  p.wave_size = chip.wave_size;
  p.lds_bytes = chip.lds_bytes;
  p.compute_units = kComputeUnits;
  p.memory_bytes = platform::memory_bytes();
  return p;
}

Status HostMemoryDriver::copy(int /*device*/, void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  if (Status status = memory_.check_range("to", to, bytes); !status.ok()) return status;
  if (Status status = memory_.check_range("from", from, bytes); !status.ok()) return status;
  std::memmove(to, from, bytes);
  return {};
}

Status HostMemoryDriver::fill(int /*device*/, void* to, unsigned char byte,
                              std::size_t bytes) const {
  if (bytes == 0) return {};
  if (Status status = memory_.check_range("to", to, bytes); !status.ok()) return status;
  std::memset(to, byte, bytes);
  return {};
}

Status HostMemoryDriver::check_memory(int /*device*/, const void* memory) const {
  return memory_.contains(memory)
             ? Status{}
             : invalid("it is the host's memory, not allocated on an emulated device");
}

Result<Event> HostMemoryDriver::create_event(int /*device*/) const {
  return Event{new Clock::time_point};
}

void HostMemoryDriver::destroy_event(int /*device*/, Event event) const noexcept {
  delete static_cast<Clock::time_point*>(event.handle);
}

Status HostMemoryDriver::record(int /*device*/, Event event, void* /*stream*/) const {
  time_of(event) = Clock::now();
  return {};
}

Result<float> HostMemoryDriver::elapsed(int /*device*/, Event begin, Event end) const {
  return std::chrono::duration<float, std::milli>(time_of(end) - time_of(begin)).count();
}

Status HostMemoryDriver::check_function(const char* name) {
  return std::string_view(name).starts_with("fulmen_")
             ? Status{}
             : invalid(fmt::format("the kernel has no function \"{}\"", name));
}

Status HostMemoryDriver::check_shape(const Launch& launch, int wave_size) {
  constexpr int kMostLanes = 1024;
  if (launch.workgroup_size <= 0 || launch.workgroup_size > kMostLanes ||
      launch.workgroup_size % wave_size != 0) {
    return invalid(fmt::format("workgroup size is {}: a multiple of {} up to {} is needed",
                               launch.workgroup_size, wave_size, kMostLanes));
  }
  if (launch.workgroups < 0 || launch.workgroups > INT32_MAX) {
    return invalid(fmt::format("grid is {}: 0 to {} is accepted", launch.workgroups, INT32_MAX));
  }
  return {};
}

}  // namespace fulmen::gpu
