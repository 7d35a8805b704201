// What every compiler for AMD is told of a family of chips.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

namespace fulmen::gpu {

struct FamilyOptions {
  std::string_view family;  // what the names of its chips begin with
  std::vector<std::string> options;

  bool concern(std::string_view arch) const { return arch.starts_with(family); }
  // The end of a compiler's identity.
  std::string text() const {
    return options.empty() ? "" : fmt::format(", {}: {}", family, fmt::join(options, " "));
  }
};

// RDNA3 and 3.5: of two instructions that are issued as one (VOPD), one may read a register before
// what was just computed is in it, where their sources are registers of the same parity. Compilers
// know that from LLVM 24 on (docs/internals/amd_facts.md).
inline const FamilyOptions kRdna3Options{"gfx11", {"-mllvm", "-amdgpu-enable-vopd=0"}};

}  // namespace fulmen::gpu
