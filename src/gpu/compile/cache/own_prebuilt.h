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
std::vector<std::string> own_prebuilt_folders();

}  // namespace fulmen::gpu
