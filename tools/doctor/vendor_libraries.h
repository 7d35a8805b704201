// Files of vendors' libraries, by name, where drivers, SDKs and Python packages keep them.
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/system_facts.h"

namespace fulmen::tools {

struct LibraryFile {
  std::string path;
  bool in_python = false;   // a Python package's: torch/lib, torch.libs, _rocm_sdk_*
  bool known_name = false;  // a name that Fulmen looks for
};

// Returns the files whose names begin so ("libamdhip64") in ROCm's folders, the system's, and
// Python environments, each file once.
std::vector<LibraryFile> rocm_libraries(const SystemFacts& facts, const std::string& name);

// Paths of libraries that begin so and that the process has mapped.
std::vector<std::string> mapped_libraries(const SystemFacts& facts, const std::string& name);

// Programs in $PATH and in ROCm's folders that may be a clang for AMD chips, in the order in which
// they are tried.
std::vector<std::string> clangs(const SystemFacts& facts);

std::string paths_of(const std::vector<LibraryFile>& files);

}  // namespace fulmen::tools
