// hipRTC, AMD's run-time compiler.
#pragma once

#include "gpu/compile/toolchains/compiler.h"

namespace fulmen::gpu {

// Errors: the library is not there, with where it was looked for.
Result<const Compiler*> hiprtc_compiler();

}  // namespace fulmen::gpu
