#include "gpu/gpu_devices.h"

#include <algorithm>
#include <cctype>

namespace fulmen::testing {

std::vector<std::string> gpu_devices() {
  std::vector<std::string> names;
  for (const char* chip : {"gfx1100", "gfx1151", "gfx1201", "gfx942", "sm_80"}) names.push_back(std::string("emulated:") + chip);
  for (const auto& backend : backends()) {
    if (backend->name() != "hip" && backend->name() != "cuda") continue;
    const std::vector<DeviceInfo> all = backend->devices();
    const auto usable = std::find_if(all.begin(), all.end(), [](const DeviceInfo& d) { return d.usable; });
    if (usable != all.end()) names.push_back(usable->name);
  }
  return names;
}

std::string why_unusable(const std::string& device) {
  const std::string backend = device.substr(0, device.find(':'));
  std::string reason = "there is no device " + device;
  for (const DeviceInfo& info : devices()) {
    if (info.name == device && info.usable) return "";
    if (info.name == device || info.name == backend) reason = info.reason;
  }
  return reason;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

}  // namespace fulmen::testing
