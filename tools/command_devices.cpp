#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "fulmen/backend.h"

namespace fulmen::tools {
namespace {

Status list_devices() {
  const std::string preferred = default_device();
  for (const DeviceInfo& device : devices()) {
    fmt::print("{}{}\n  chip      {}\n", device.name, device.name == preferred ? " (default)" : "", device.chip);
    if (!device.features.empty()) fmt::print("  features  {}\n", device.features);
    fmt::print("  usable    {}\n", device.usable ? "yes" : "no: " + device.reason);
  }
  for (const auto& backend : backends()) {
    fmt::print("kernels of {}\n", backend->name());
    for (const Kernel* kernel : backend->kernels()) fmt::print("  {:28} {}\n", kernel->name(), kernel->layout());
  }
  return {};
}

}  // namespace

Command devices_command(CLI::App& app) {
  return {app.add_subcommand("devices", "list devices, what they offer, what is usable and why not"), list_devices};
}

}  // namespace fulmen::tools
