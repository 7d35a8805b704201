// Turning kernel source into code for one chip.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/status.h"

namespace fulmen::gpu {

struct CompileRequest {
  std::string name;    // for messages and reports: "forward bf16 d128 ..."
  std::string source;  // complete: kernel_source() has resolved every #include
  std::string arch;    // "gfx1100", "sm_90a"
  int workgroup_size = 0;
};

struct CompiledCode {
  std::vector<std::byte> code;  // an ELF: code object, cubin, or a host's shared object
  std::string log;              // what the compiler said: resources (registers, spills) where it
                                // reports them
};

// Thread-safe. Errors carry the compiler's own words: internal, this source does not compile;
// verification_failed, its machine code breaks a rule (both are the same each time); unavailable,
// the compiler did not run.
class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual std::string_view name() const noexcept = 0;  // "NVRTC", "hipRTC", "clang", "host"
  // Part of the cache's key: anything that may change the chip's code, options and version.
  virtual std::string identity(std::string_view arch) const = 0;
  virtual Result<CompiledCode> compile(const CompileRequest& request) const = 0;
};

// Compilers that need no GPU: NVRTC, and installed clangs (amdclang++, clang++-19, the newest, ...)
// for AMD, of which each chip has the first one that knows it. For `fulmen compile`, and clang also
// for the hip driver where there is no hipRTC. Errors say what was looked for, where, and what
// installs it.
Result<const Compiler*> nvrtc_compiler();
Result<const Compiler*> offline_clang_compiler();
// This clang, by its path or its name in PATH. Errors say why it is none.
Result<const Compiler*> clang_at(const std::string& program);

// The compiler for AMD chips: what $FULMEN_AMD_COMPILER says (hiprtc, clang, or the path of a
// clang) and never another one. Where it is not set: for a device's kernels hipRTC, clang where
// there is none; offline clang, which tells a kernel's registers.
enum class AmdCompilerUse { device, offline };
Result<const Compiler*> amd_compiler(AmdCompilerUse use);
// What may compile a device's kernel that hipRTC cannot: clang, where hipRTC serves without having
// been chosen.
Result<const Compiler*> second_amd_compiler();
// The host's own C++ compiler ($FULMEN_HOST_CXX, else c++, g++, clang++, clang++-19), for the
// emulator: a shared object.
Result<const Compiler*> host_compiler();
// The same program for code that is to be fast. flags: the instructions that there are.
Result<std::unique_ptr<const Compiler>> host_compiler_for(const std::vector<std::string>& flags);

}  // namespace fulmen::gpu
