// Which of the compilers for AMD chips serves.
#include <fmt/format.h>

#include "gpu/compile/toolchains/compiler.h"
#include "gpu/compile/toolchains/hiprtc.h"
#include "runtime/environment.h"
#include "runtime/found_once.h"

namespace fulmen::gpu {
namespace {

Result<const Compiler*> runtime_else_clang() {
  // Once clang serves, no kernel has to wait for another search for hipRTC, and all come from one
  // compiler.
  constinit static FoundOnce<Result<const Compiler*>> found;
  return found.get([]() -> Result<const Compiler*> {
    const Result<const Compiler*> runtime = hiprtc_compiler();
    if (runtime.ok()) return runtime;
    const Result<const Compiler*> clang = offline_clang_compiler();
    if (clang.ok()) return clang;
    return Status(StatusCode::unavailable,
                  fmt::format("{}; {}", runtime.status().message(), clang.status().message()));
  });
}

Result<const Compiler*> named(const std::string& name) {
  if (name == "hiprtc") return hiprtc_compiler();
  if (name == "clang") return offline_clang_compiler();
  return clang_at(name);
}

}  // namespace

Result<const Compiler*> amd_compiler(AmdCompilerUse use) {
  const std::string chosen = environment("FULMEN_AMD_COMPILER");
  if (chosen.empty())
    return use == AmdCompilerUse::device ? runtime_else_clang() : offline_clang_compiler();
  Result<const Compiler*> compiler = named(chosen);
  if (compiler.ok()) return compiler;
  return Status(StatusCode::unavailable,
                fmt::format("FULMEN_AMD_COMPILER is \"{}\": hiprtc, clang, or the path of a clang "
                            "that runs is needed; {}",
                            chosen, compiler.status().message()));
}

Result<const Compiler*> second_amd_compiler() {
  if (!environment("FULMEN_AMD_COMPILER").empty())
    return Status(StatusCode::unavailable, "FULMEN_AMD_COMPILER is set");
  const Result<const Compiler*> first = amd_compiler(AmdCompilerUse::device);
  if (!first.ok() || first.value()->name() != "hipRTC")
    return Status(StatusCode::unavailable, "there is no second compiler");
  return offline_clang_compiler();
}

}  // namespace fulmen::gpu
