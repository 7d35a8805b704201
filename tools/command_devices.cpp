#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "fulmen/backend.h"
#include "fulmen/printable.h"
#include "tools/commands.h"
#include "tools/tensors/device_tensors.h"

namespace fulmen::tools {
namespace {

// Breaks a text into lines of at most 110 characters and keeps its own lines. All lines but the
// first are indented to stand below it.
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

void print_device(const DeviceInfo& device, const std::string& preferred) {
  fmt::print("{}{}\n", printable(device.name), device.name == preferred ? " (default)" : "");
  if (!device.chip.empty()) fmt::print("  chip      {}\n", printable(device.chip));
  if (!device.features.empty()) fmt::print("  features  {}\n", wrapped(device.features));
  fmt::print("  usable    {}\n", device.usable ? "yes" : wrapped("no: " + device.reason));
}

// A backend's emulated chips are like one another: three of them by name.
void print_chips(const std::vector<DeviceInfo>& chips) {
  if (chips.empty()) return;
  constexpr std::size_t kShown = 3;
  std::string names;
  for (std::size_t n = 0; n < std::min(kShown, chips.size()); ++n) {
    names +=
        fmt::format("{}{}", n == 0 ? "" : ", ", printable(chips[n * chips.size() / kShown].name));
  }
  const std::string backend = chips[0].name.substr(0, chips[0].name.find(':'));
  fmt::print("{}\n  chips     {} without a GPU, such as {}\n", printable(backend), chips.size(),
             names);
  fmt::print("  usable    {}\n", chips[0].usable ? "yes" : wrapped("no: " + chips[0].reason));
}

Status list_devices(bool all) {
  const std::string preferred = default_device();
  std::vector<DeviceInfo> chips;
  for (const DeviceInfo& device : devices()) {
    const auto backend_of = [](const DeviceInfo& info) {
      return info.name.substr(0, info.name.find(':'));
    };
    if (!chips.empty() && backend_of(chips[0]) != backend_of(device))
      print_chips(std::exchange(chips, {}));
    if (!all && device.name != preferred && is_emulated(device.name) &&
        device.name.find(':') != std::string::npos) {
      chips.push_back(device);
    } else {
      print_device(device, preferred);
    }
  }
  print_chips(chips);
  if (!all) {
    fmt::print("`fulmen devices --all` lists every chip, and the kernels of each backend\n");
    return {};
  }
  for (const auto& backend : backends()) {
    fmt::print("kernels of {}\n", printable(backend->name()));
    for (const Kernel* kernel : backend->kernels()) {
      const std::string computes =
          fmt::format("{}{}", kernel->pass() == Pass::forward ? "forward" : "backward",
                      kernel->dropout() ? ", dropout" : "");
      fmt::print("  {:30} {:18} {}\n", printable(kernel->name()), computes, kernel->layout());
    }
  }
  return {};
}

}  // namespace

Command devices_command(CLI::App& app) {
  auto all = std::make_shared<bool>(false);
  CLI::App* parser =
      app.add_subcommand("devices", "list devices, what they offer, what is usable and why not");
  parser->add_flag("--all", *all, "every emulated chip, and the kernels of each backend");
  return {parser, [all] { return list_devices(*all); }};
}

}  // namespace fulmen::tools
