// Names that kernels had in earlier versions.
#pragma once

#include <string>
#include <string_view>

namespace fulmen {

// The present name of a kernel: "cuda.prefill.sm80" for "cuda.forward.sm80" of version 0.1. Any
// other name is returned as it is.
std::string present_kernel_name(std::string_view name);

}  // namespace fulmen
