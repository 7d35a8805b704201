#include "gpu/libraries/nvidia_libraries.h"

namespace fulmen::gpu {

LibrarySearch cuda_search(System system) {
  if (system == System::windows) {
    return {.names = {"nvcuda.dll"},
            .home_variables = {"FULMEN_CUDA_DRIVER_HOME"},
            .system_folders = {"C:/Windows/System32"},
            .python_folders = {},
            .install = "It comes with NVIDIA's driver",
            .home_parts = {"/bin", ""}};
  }
  return {.names = {"libcuda.so.1"},
          .home_variables = {"FULMEN_CUDA_DRIVER_HOME"},
          .system_folders = {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"},
          .python_folders = {},
          .install = "It comes with NVIDIA's driver: on Debian, apt-get install nvidia-driver"};
}

LibrarySearch nvrtc_search(System system) {
  const std::string install = "To install it: pip install nvidia-cuda-nvrtc";
  if (system == System::windows) {
    // nvrtc64_120_0.dll is CUDA 12's, nvrtc64_130_0.dll CUDA 13's.
    return {.names = {"nvrtc64_1[2-9]0_0.dll"},
            .home_variables = {"CUDA_HOME", "CUDA_PATH"},
            .system_folders = {"C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v*/bin/x64",
                               "C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v*/bin"},
            .python_folders = {"nvidia/*/bin/x86_64", "nvidia/*/bin", "torch/lib"},
            .install = install,
            .home_parts = {"/bin/x64", "/bin"}};
  }
  return {.names = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"},
          .home_variables = {"CUDA_HOME", "CUDA_PATH"},
          .system_folders = {"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64"},
          .python_folders = {"nvidia/*/lib", "torch/lib"},
          .install = install};
}

std::string_view nvrtc_beside(System system) {
  return system == System::windows ? "nvrtc-builtins64_" : "libnvrtc-builtins.so";
}

}  // namespace fulmen::gpu
