// NVRTC, NVIDIA's run-time compiler: source to cubin, also without a GPU.
#include "gpu/compile/toolchains/runtime_compiler.h"
#include "gpu/libraries/nvidia_libraries.h"
#include "runtime/found_once.h"

namespace fulmen::gpu {

Result<const Compiler*> nvrtc_compiler() {
  constinit static FoundOnce<Result<const Compiler*>> found;
  return found.get([] {
    return open_lasting_compiler(
        {.name = "NVRTC",
         .prefix = "nvrtc",
         .arch_option = "--gpu-architecture=",
         .code_size = "GetCUBINSize",
         .code = "GetCUBIN",
         .options = {"-std=c++20", "--ptxas-options=-v"},  // registers and spills into the log
         .family_options = {},
         .generators = {},
         .beside = nvrtc_beside(),
         .before = "",
         .after = "",
         .needed = "NVRTC 12 or newer is needed",
         .other_chips = "CUDA 12's does for sm_70 and later (pip install nvidia-cuda-nvrtc-cu12, "
                        "and remove CUDA 13's), CUDA 13's for "
                        "sm_75 and later"},
        nvrtc_search());
  });
}

}  // namespace fulmen::gpu
