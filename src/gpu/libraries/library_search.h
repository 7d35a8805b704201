// Finding a vendor's shared library where drivers, SDKs and Python packages keep them.
#pragma once

#include <string>
#include <vector>

#include "fulmen/status.h"
#include "gpu/libraries/rocm_layouts.h"
#include "runtime/platform/system.h"

namespace fulmen::gpu {

using platform::System;

struct LibrarySearch {
  std::vector<std::string> names;           // "libnvrtc.so.13", the best first; a glob pattern is
                                            // matched with files' names, and of several the last is
                                            // taken: the newest of hiprtc0602.dll, hiprtc0701.dll
  std::vector<std::string> home_variables;  // "CUDA_HOME": its home_parts are looked in
  std::vector<std::string> system_folders;  // "/usr/local/cuda/lib64"; of "/opt/rocm-*/lib" the
                                            // newest release comes first
  std::vector<std::string> python_folders;  // below a Python environment's site-packages:
                                            // "nvidia/cu13/lib"
  std::string install;                      // what to do where there is none: one command or
                                            // sentence
  std::vector<std::string> refused{};       // sonames of releases that do not serve, by whatever
                                            // name they are found
  std::vector<std::string> home_parts{"/lib64", "/lib"};
  std::vector<std::string> environment_folders{};  // below a Python environment's root, as conda
                                                   // has libraries: "lib"
};

struct FoundLibrary {
  void* handle = nullptr;
  std::string path;
};

// Order: loaded in this process already by whatever path, home variables (who sets one means it),
// the Python packages beside this library (PyTorch opens its own later: one process then has one
// HIP runtime), the loader's own path, system folders, Python environments: the one that this
// library is installed in, $VIRTUAL_ENV, $CONDA_PREFIX, that of the python3 in PATH, and where pip
// puts what root (/usr/local) or a user (~/.local) installs without one. The error says what was
// looked for, where, and `install`.
Result<FoundLibrary> find_library(const LibrarySearch& search);

// Returns the files below these environments' folders of packages that match a pattern such as
// "nvidia/*/bin/nvdisasm".
std::vector<std::string> find_in_python_packages(const std::vector<std::string>& patterns);

}  // namespace fulmen::gpu
