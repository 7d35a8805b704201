// Kernel source as text: what src/kernels and src/algorithm hold, embedded in the library at build
// time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/status.h"
#include "gpu/targets/chip.h"

namespace fulmen::gpu {

// How the source is compiled: for the chip itself, or for this host beside the emulator.
enum class Platform { amd, nvidia, emulated };

// `prelude` (lines of #define), then src/kernels/<entry> with every #include "..." resolved, once
// each, with #line marks; FULMEN_TARGET_HEADER is what the prelude says, FULMEN_PLATFORM_HEADER the
// platform's. Errors: a file that is not embedded.
Result<std::string> kernel_source(std::string_view entry, std::string_view prelude,
                                  const Chip& chip, Platform platform);

// The same for a kernel that is not embedded: `text` may include embedded files. For tests.
Result<std::string> kernel_source_of(std::string_view text, std::string_view prelude,
                                     const Chip& chip, Platform platform);

// A short name of the code of kernels: of their files ("forward/prefill.h") and all that these
// include for the target ("sm90"; empty: none). Another one where that code is another one;
// comments and other targets' files change nothing.
std::string kernel_source_identity(const std::vector<std::string_view>& entries,
                                   std::string_view target);

}  // namespace fulmen::gpu
