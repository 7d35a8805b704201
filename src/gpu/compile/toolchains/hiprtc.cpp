#include "gpu/compile/toolchains/hiprtc.h"

#include "gpu/compile/toolchains/runtime_compiler.h"
#include "runtime/found_once.h"

namespace fulmen::gpu {

Result<const Compiler*> hiprtc_compiler() {
  static FoundOnce<Result<const Compiler*>> found;
  return found.get([] {
    return open_lasting_compiler(
        {.name = "hipRTC",
         .prefix = "hiprtc",
         .arch_option = "--offload-arch=",
         .code_size = "GetCodeSize",
         .code = "GetCode",
         .options = {"-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno"},
         .family_options = kRdna3Options,
         // AMD's libamd_comgr has LLVM in it; distributions link theirs to the shared libraries.
         .generators = {"libamd_comgr", "libLLVM", "libclang-cpp"},
         .beside = "",
         // It puts all of hip_runtime.h before the source, which has an exp2(float), log2 and tanh of its own.
         .before = "namespace fulmen_device {\n",
         .after = "\n}\n",
         .needed = "ROCm 6 or newer is needed",
         .other_chips = ""},
        // Not of ROCm 5: its hipRTC is part of libamdhip64, and Debian's crashes in its compiler library. clang serves there.
        // PyTorch's wheels carry it without a version, or under a hash.
        {.names = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so", "libhiprtc" + std::string(kWheelHash)},
         .home_variables = {"ROCM_PATH", "HIP_PATH"},
         .system_folders = {"/opt/rocm/lib", "/opt/rocm-*/lib"},
         .python_folders = {"torch/lib", "torch.libs", "_rocm_sdk_*/lib"},
         .install = "It comes with AMD's ROCm packages (hip-runtime-amd)",
         .refused = {"libhiprtc.so.5"}});
  });
}

}  // namespace fulmen::gpu
