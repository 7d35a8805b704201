#include "gpu/device_list.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

// The chip's name points into memory that lives as long as the process.
bool find_kept_chip(const std::string& arch, Chip& chip) {
  constinit static Mutex mutex;
  constinit static MadeOnce<std::map<std::string, std::string>> made;
  auto& names = made.get();
  const std::scoped_lock lock(mutex);
  return find_chip(arch, names[arch], chip);
}

Device describe(const Driver& driver, int ordinal, const std::string& selector) {
  Device device;
  device.ordinal = ordinal;
  device.info.name = fmt::format("{}:{}", driver.name(), selector);
  Result<DeviceProperties> properties = driver.properties(ordinal);
  if (!properties.ok()) {
    device.info.reason = properties.status().message();
    return device;
  }
  device.properties = std::move(properties).value();
  const DeviceProperties& p = device.properties;
  device.info.chip = p.name == p.arch ? p.arch : fmt::format("{} ({})", p.name, p.arch);
  if (!find_kept_chip(p.arch, device.chip)) {
    device.info.reason = fmt::format(
        "{} is no chip that Fulmen has kernels for: AMD from gfx803 and NVIDIA from sm_70 are "
        "served",
        p.arch);
    return device;
  }
  device.info.usable = true;
  const std::string clocks =
      p.clock_mhz > 0 ? fmt::format("{} MHz, memory {} MHz, ", p.clock_mhz, p.memory_clock_mhz)
                      : "";
  device.info.features = fmt::format(
      "{} compute units, wave{}, {} KiB LDS, {:.1f} GiB, {}kernels for {}{}{}", p.compute_units,
      device.chip.wave_size, p.lds_bytes / 1024, static_cast<double>(p.memory_bytes) / (1 << 30),
      clocks, device.chip.target->name, p.software.empty() ? "" : ", ", p.software);
  if (p.lds_bytes > 0 && p.lds_bytes < device.chip.lds_bytes) device.chip.lds_bytes = p.lds_bytes;
  return device;
}

std::vector<Device> describe_all(const Driver& driver) {
  std::vector<Device> devices;
  const std::vector<std::string> selectors = driver.selectors();
  for (std::size_t n = 0; n < selectors.size(); ++n)
    devices.push_back(describe(driver, static_cast<int>(n), selectors[n]));
  return devices;
}

}  // namespace

std::shared_ptr<const std::vector<Device>> DeviceList::devices() const {
  using List = std::shared_ptr<const std::vector<Device>>;
  constinit static WorkLock asking;  // a vendor's library
  constinit static Mutex mutex;
  constinit static MadeOnce<std::map<const Driver*, List>> made;
  auto& lists = made.get();
  const auto known = [&]() -> List {
    const std::scoped_lock lock(mutex);
    const auto found = lists.find(&driver_);
    return found == lists.end() ? nullptr : found->second;
  };
  if (List list = known(); list != nullptr) return list;
  const std::scoped_lock one_asks(asking);
  if (List list = known(); list != nullptr) return list;
  if (const Status status = driver_.available(); !status.ok()) {
    Device none;
    none.info.name = std::string(driver_.name());
    none.info.reason = status.message();
    // Not kept: it may be available later.
    return std::make_shared<const std::vector<Device>>(1, std::move(none));
  }
  auto list = std::make_shared<const std::vector<Device>>(describe_all(driver_));
  const std::scoped_lock lock(mutex);
  return lists.emplace(&driver_, std::move(list)).first->second;
}

const Device* DeviceList::find(const std::string& name) const {
  const bool any = name == driver_.name();
  const auto list = devices();
  for (const Device& device : *list) {
    if (device.info.usable && (any || device.info.name == name)) return &device;
  }
  return nullptr;
}

}  // namespace fulmen::gpu
