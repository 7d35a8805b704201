// Where ROCm's libraries lie on Linux, and under which names: the one table, which the search
// (amd_libraries.cpp) and `fulmen doctor` read.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace fulmen::gpu {

struct RocmLayout {
  // loader: a folder that the loader looks into by itself; environment: below its root; packages:
  // below its site-packages.
  enum class Below { loader, root, packages, environment };
  const char* owner;  // who puts libraries there
  Below below;
  const char* folder;  // of several that a '*' means the newest release is taken
};

// In the order of the search, which begins with what the process has loaded, $ROCM_PATH, $HIP_PATH,
// the packages beside this library, and $LD_LIBRARY_PATH.
inline constexpr RocmLayout kRocmLayouts[] = {
    {"the distribution", RocmLayout::Below::loader, "/usr/lib/*-linux-gnu"},
    {"the distribution", RocmLayout::Below::loader, "/usr/lib64"},
    {"the distribution", RocmLayout::Below::loader, "/usr/lib"},
    {"an administrator", RocmLayout::Below::loader, "/usr/local/lib"},
    {"WSL's driver", RocmLayout::Below::loader, "/usr/lib/wsl/lib"},
    {"AMD's packages", RocmLayout::Below::root, "/opt/rocm/lib"},
    {"AMD's packages of one release", RocmLayout::Below::root, "/opt/rocm/core-*/lib"},
    {"AMD's packages of one release", RocmLayout::Below::root, "/opt/rocm-*/lib"},
    {"PyTorch's wheel", RocmLayout::Below::packages, "torch/lib"},
    {"PyTorch's wheel", RocmLayout::Below::packages, "torch.libs"},
    {"AMD's Python packages", RocmLayout::Below::packages, "_rocm_sdk_*/lib"},
    {"conda", RocmLayout::Below::environment, "lib"}};

// libamdhip64.so.7 is {"libamdhip64", '7'}. Releases: those that serve, the newest first; after
// them come the name without one, and a wheel's with its hash.
struct RocmLibrary {
  const char* stem;
  const char* releases;
};
inline constexpr RocmLibrary kHipRuntime{"libamdhip64", "765"};
// hipRTC of ROCm 5 is part of libamdhip64, and Debian's crashes in its compiler library.
inline constexpr RocmLibrary kHipRtc{"libhiprtc", "76"};
inline constexpr RocmLibrary kComgr{"libamd_comgr", "32"};

// The hash that follows the name of a library which a Python wheel bundles: libhiprtc-1a2b3c4d.so.
// The pattern has eight digits, because there is a libhiprtc-builtins.so, too.
inline constexpr std::string_view kWheelHash =
    "-[0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f][0-9a-f]*.so*";

// Compares texts by the numbers in them: core-7.14 before core-10.0.
inline bool is_older(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto take_number = [&](std::string_view& text) {
    const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
    std::string_view number = text.substr(0, static_cast<std::size_t>(end - text.begin()));
    text.remove_prefix(number.size());
    number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
    return number;
  };
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a), y = take_number(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

inline void sort_newest_first(std::vector<std::string>& paths) {
  std::sort(paths.begin(), paths.end(),
            [](const std::string& a, const std::string& b) { return is_older(b, a); });
}

}  // namespace fulmen::gpu
