// What NVRTC and hipRTC have in common: the same calls under two prefixes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/compile/toolchains/amd_options.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/libraries/library_search.h"

namespace fulmen::gpu {

struct RuntimeCompilerKind {
  std::string_view name;             // "NVRTC"
  std::string_view prefix;           // "nvrtc": of nvrtcCreateProgram and the others
  std::string_view arch_option;      // "--gpu-architecture="
  std::string_view code_size, code;  // "GetCUBINSize", "GetCUBIN": calls without the prefix
  std::vector<std::string> options;
  std::vector<FamilyOptions> family_options;
  // What its identity has the builds of besides its own: by the beginnings of files' names, loaded
  // libraries that make the code, and what is in the library's folder.
  std::vector<std::string> generators;
  std::string_view beside;
  std::string_view before, after;  // put around the source
  std::string_view needed;         // "NVRTC 12 or newer is needed"
  std::string_view other_chips;    // what to do where the compiler refuses the chip's option
};

// Opens the library. Errors: not there, or an entry point is missing.
Result<std::unique_ptr<const Compiler>> open_runtime_compiler(const RuntimeCompilerKind& kind,
                                                              const LibrarySearch& search);
// The same for a compiler that stays until the process ends.
Result<const Compiler*> open_lasting_compiler(const RuntimeCompilerKind& kind,
                                              const LibrarySearch& search);

}  // namespace fulmen::gpu
