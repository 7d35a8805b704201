#include "gpu/libraries/amd_libraries.h"

#include <utility>

namespace fulmen::gpu {
namespace {

// The release in Windows' names, two digits each: hiprtc0602.dll. It does not match
// hiprtc-builtins0602.dll, which is code that hipRTC reads.
constexpr std::string_view kRelease = "[0-9][0-9][0-9][0-9].dll";

LibrarySearch linux_search(const RocmLibrary& library, std::string install) {
  LibrarySearch search{.names = {},
                       .home_variables = {"ROCM_PATH", "HIP_PATH"},
                       .system_folders = {},
                       .python_folders = {},
                       .install = std::move(install)};
  const std::string stem = library.stem;
  for (const char* release = library.releases; *release != '\0'; ++release)
    search.names.push_back(stem + ".so." + *release);
  search.names.push_back(stem + ".so");
  search.names.push_back(stem + std::string(kWheelHash));
  for (const RocmLayout& layout : kRocmLayouts) {
    if (layout.below == RocmLayout::Below::loader) continue;
    (layout.below == RocmLayout::Below::root       ? search.system_folders
     : layout.below == RocmLayout::Below::packages ? search.python_folders
                                                   : search.environment_folders)
        .emplace_back(layout.folder);
  }
  return search;
}

LibrarySearch windows_search(std::vector<std::string> names, std::string install) {
  return {.names = std::move(names),
          .home_variables = {"ROCM_PATH", "HIP_PATH"},
          .system_folders = {"C:/Program Files/AMD/ROCm/*/bin", "C:/Windows/System32"},
          .python_folders = {"torch/lib", "_rocm_sdk_*/bin"},
          .install = std::move(install),
          .home_parts = {"/bin"}};
}

}  // namespace

LibrarySearch hip_search(System system) {
  if (system == System::windows) {
    // The driver installs it in System32, for each release of HIP's interface; the SDK another one.
    return windows_search({"amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"},
                          "To install it: AMD's driver (Adrenalin), or the HIP SDK for Windows");
  }
  return linux_search(kHipRuntime,
                      "To install it: AMD's ROCm packages (rocm-hip-runtime), or on Debian apt-get "
                      "install libamdhip64-5");
}

LibrarySearch hiprtc_search(System system) {
  if (system == System::windows) {
    // No driver brings hipRTC. hiprtc0507.dll and older ones belong to ROCm 5.
    return windows_search({"hiprtc0[6-9][0-9][0-9].dll"},
                          "It comes with the HIP SDK for Windows, and PyTorch's ROCm packages");
  }
  LibrarySearch search =
      linux_search(kHipRtc, "It comes with AMD's ROCm packages (hip-runtime-amd)");
  search.refused = {"libhiprtc.so.5"};
  return search;
}

LibrarySearch comgr_search(System system) {
  if (system == System::windows) {
    return windows_search({"amd_comgr" + std::string(kRelease), "amd_comgr.dll", "amd_comgr_3.dll",
                           "amd_comgr_2.dll"},
                          "It comes with the HIP SDK for Windows, and PyTorch's ROCm packages");
  }
  return linux_search(kComgr, "It comes with AMD's ROCm packages (comgr)");
}

}  // namespace fulmen::gpu
