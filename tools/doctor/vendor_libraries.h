// Files of vendors' libraries, by name, where drivers, SDKs and Python packages keep them.
#pragma once

#include <string>
#include <vector>

#include "gpu/libraries/rocm_layouts.h"
#include "tools/doctor/system_facts.h"

namespace fulmen::tools {

struct LibraryFile {
  std::string path;
  std::string owner;        // "AMD's packages"
  bool in_python = false;   // a Python package's: torch/lib, torch.libs, _rocm_sdk_*
  bool known_name = false;  // a name that Fulmen looks for
};

// Returns the files of this library, of any release, where Fulmen looks for it, in that order, each
// file once.
std::vector<LibraryFile> rocm_libraries(const SystemFacts& facts, const gpu::RocmLibrary& library);

// Says of those that serve where they are, who put them there, and which one is taken: the one that
// the process has loaded, else the first.
std::string found_and_taken(const SystemFacts& facts, const gpu::RocmLibrary& library,
                            const std::vector<LibraryFile>& files);

// Paths of libraries that begin so and that the process has mapped.
std::vector<std::string> mapped_libraries(const SystemFacts& facts, const std::string& name);

// Programs in $PATH and in ROCm's folders that may be a clang for AMD chips, in the order in which
// they are tried.
std::vector<std::string> clangs(const SystemFacts& facts);

std::string paths_of(const std::vector<LibraryFile>& files);

}  // namespace fulmen::tools
