// Prebuilt kernels that the program gave: fulmen/compile.h's add_prebuilt_kernels().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/toolchains/compiler.h"

namespace fulmen::gpu {

bool has_own_prebuilt();
// Looks a kernel up in the packs.
std::optional<CompiledCode> own_prebuilt(const Digest& key);
// What the program's source of prebuilt kernels says; false where there is none. kernel: null asks
// whether it has any for the chip.
bool ask_prebuilt_source(const char* arch, const char* kernel);
std::vector<std::string> own_prebuilt_folders();

}  // namespace fulmen::gpu
