#include <fmt/format.h>

#include <memory>
#include <sstream>

#include "fulmen/backend.h"
#include "fulmen/printable.h"
#include "tools/commands.h"

namespace fulmen::tools {
namespace {

// Words in lines of at most 110 characters, the text's own lines kept, all but the first indented to stand below it.
std::string wrapped(const std::string& text) {
  constexpr std::size_t kColumns = 110;
  constexpr const char* kIndent = "            ";
  std::string all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!all.empty()) all += std::string("\n") + kIndent;
    std::size_t column = 0;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (column > 0 && column + 1 + word.size() > kColumns) {
        all += std::string("\n") + kIndent;
        column = 0;
      }
      if (column > 0) all += ' ';
      all += printable(word);
      column += word.size() + (column > 0 ? 1 : 0);
    }
  }
  return all;
}

Status list_devices() {
  const std::string preferred = default_device();
  for (const DeviceInfo& device : devices()) {
    fmt::print("{}{}\n", printable(device.name), device.name == preferred ? " (default)" : "");
    if (!device.chip.empty()) fmt::print("  chip      {}\n", printable(device.chip));
    if (!device.features.empty()) fmt::print("  features  {}\n", wrapped(device.features));
    fmt::print("  usable    {}\n", device.usable ? "yes" : wrapped("no: " + device.reason));
  }
  for (const auto& backend : backends()) {
    fmt::print("kernels of {}\n", printable(backend->name()));
    for (const Kernel* kernel : backend->kernels()) {
      const std::string computes =
          fmt::format("{}{}", kernel->pass() == Pass::forward ? "forward" : "backward", kernel->dropout() ? ", dropout" : "");
      fmt::print("  {:30} {:18} {}\n", printable(kernel->name()), computes, kernel->layout());
    }
  }
  return {};
}

}  // namespace

Command devices_command(CLI::App& app) {
  return {app.add_subcommand("devices", "list devices, what they offer, what is usable and why not"), list_devices};
}

}  // namespace fulmen::tools
