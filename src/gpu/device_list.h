// The devices of a driver by name, with what planning needs to know of each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fulmen/backend.h"
#include "gpu/driver.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu {

struct Device {
  int ordinal = 0;
  DeviceInfo info;
  DeviceProperties properties;
  Chip chip{};
};

class DeviceList {
 public:
  explicit DeviceList(const Driver& driver) : driver_(driver) {}
  // Opens the driver at the first call that can; the list is then the same for ever.
  std::shared_ptr<const std::vector<Device>> devices() const;
  // By name, alive as long as the process; the driver's name alone is its first usable device. Null
  // when there is none.
  const Device* find(const std::string& name) const;

 private:
  const Driver& driver_;
};

}  // namespace fulmen::gpu
