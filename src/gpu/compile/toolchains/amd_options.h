// What every compiler for AMD is told of a family of chips.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fulmen::gpu {

struct FamilyOptions {
  std::string_view family;  // what the names of its chips begin with
  std::vector<std::string> options;
};

// The options for a chip.
inline std::vector<std::string> options_for(std::string_view arch,
                                            const std::vector<FamilyOptions>& families) {
  std::vector<std::string> options;
  for (const FamilyOptions& f : families) {
    if (arch.starts_with(f.family))
      options.insert(options.end(), f.options.begin(), f.options.end());
  }
  return options;
}

inline const std::vector<FamilyOptions> kAmdFamilyOptions{
    // RDNA3 and 3.5: of two instructions that are issued as one (VOPD), one may read a register
    // before what was just computed is in it, where their sources are registers of the same parity.
    // Compilers know that from LLVM 24 on (docs/internals/amd_facts.md).
    {"gfx11", {"-mllvm", "-amdgpu-enable-vopd=0"}},
    // Else clang 22 pairs outputs of different products to rescale them, and moves all of them to
    // and fro in every turn of the loop (docs/internals/amd_facts.md).
    {"gfx950", {"-fno-slp-vectorize"}},
};

}  // namespace fulmen::gpu
