#include "gpu/libraries/amd_libraries.h"

#include <utility>

namespace fulmen::gpu {
namespace {

// The release in Windows' names, two digits each: hiprtc0602.dll. It does not match
// hiprtc-builtins0602.dll, which is code that hipRTC reads.
constexpr std::string_view kRelease = "[0-9][0-9][0-9][0-9].dll";

// PyTorch's wheels carry libraries without a version, or under a hash; those of AMD's own SDK are
// in a package beside it.
LibrarySearch search_of(System system, std::vector<std::string> names, std::string install) {
  LibrarySearch search{.names = std::move(names),
                       .home_variables = {"ROCM_PATH", "HIP_PATH"},
                       .system_folders = {"/opt/rocm/lib", "/opt/rocm-*/lib"},
                       .python_folders = {"torch/lib", "torch.libs", "_rocm_sdk_*/lib"},
                       .install = std::move(install)};
  if (system == System::windows) {
    search.home_parts = {"/bin"};
    search.system_folders = {"C:/Program Files/AMD/ROCm/*/bin", "C:/Windows/System32"};
    search.python_folders = {"torch/lib", "_rocm_sdk_*/bin"};
  }
  return search;
}

}  // namespace

LibrarySearch hip_search(System system) {
  if (system == System::windows) {
    // The driver installs it in System32, for each release of HIP's interface; the SDK another one.
    return search_of(system, {"amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"},
                     "To install it: AMD's driver (Adrenalin), or the HIP SDK for Windows");
  }
  return search_of(system,
                   {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so",
                    "libamdhip64" + std::string(kWheelHash)},
                   "To install it: AMD's ROCm packages (rocm-hip-runtime), or on Debian apt-get "
                   "install libamdhip64-5");
}

LibrarySearch hiprtc_search(System system) {
  if (system == System::windows) {
    // No driver brings hipRTC. hiprtc0507.dll and older ones belong to ROCm 5.
    return search_of(system, {"hiprtc0[6-9][0-9][0-9].dll"},
                     "It comes with the HIP SDK for Windows, and PyTorch's ROCm packages");
  }
  LibrarySearch search = search_of(
      system,
      {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "libhiprtc" + std::string(kWheelHash)},
      "It comes with AMD's ROCm packages (hip-runtime-amd)");
  search.refused = {"libhiprtc.so.5"};
  return search;
}

LibrarySearch comgr_search(System system) {
  if (system == System::windows) {
    return search_of(system,
                     {"amd_comgr" + std::string(kRelease), "amd_comgr.dll", "amd_comgr_3.dll",
                      "amd_comgr_2.dll"},
                     "It comes with the HIP SDK for Windows, and PyTorch's ROCm packages");
  }
  return search_of(system,
                   {"libamd_comgr.so.3", "libamd_comgr.so.2", "libamd_comgr.so",
                    "libamd_comgr" + std::string(kWheelHash)},
                   "It comes with AMD's ROCm packages (comgr)");
}

}  // namespace fulmen::gpu
