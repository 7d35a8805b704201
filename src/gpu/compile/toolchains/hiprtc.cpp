#include "gpu/compile/toolchains/hiprtc.h"

#include "gpu/compile/toolchains/runtime_compiler.h"
#include "gpu/libraries/amd_libraries.h"
#include "runtime/found_once.h"

namespace fulmen::gpu {

Result<const Compiler*> hiprtc_compiler() {
  constinit static FoundOnce<Result<const Compiler*>> found;
  return found.get([] {
    return open_lasting_compiler(
        {.name = "hipRTC",
         .prefix = "hiprtc",
         .arch_option = "--offload-arch=",
         .code_size = "GetCodeSize",
         .code = "GetCode",
         .options = {"-std=c++20", "-O3", "-ffp-contract=fast", "-fno-math-errno"},
         .family_options = kAmdFamilyOptions,
         // AMD's libamd_comgr has LLVM in it; distributions link theirs to the shared libraries.
         .generators = {"libamd_comgr", "libLLVM", "libclang-cpp", "amd_comgr"},
         .beside = "",
         // It puts all of hip_runtime.h before the source, which has an exp2(float), log2 and tanh
         // of its own.
         .before = "namespace fulmen_device {\n",
         .after = "\n}\n",
         .needed = "ROCm 6 or newer is needed",
         .other_chips = ""},
        hiprtc_search());
  });
}

}  // namespace fulmen::gpu
