// What a compiler made for an AMD device is checked before it is loaded, and once: its place in the
// cache is its verdict.
#pragma once

#include "gpu/compile/report/amd_disassembler.h"
#include "gpu/compile/toolchains/compiler.h"

namespace fulmen::gpu {

// Compiles as `compiler` does and refuses code in which amd_findings() finds something
// (verification_failed), with what and where. Its identity is another one, so that a cache has code
// from it only if that passed. Where the code cannot be disassembled, it is taken, and a line in
// the log says once that it was not checked.
class CheckedCompiler final : public Compiler {
 public:
  CheckedCompiler(const Compiler& compiler, const AmdDisassembler& disassembler)
      : compiler_(compiler), disassembler_(disassembler) {}
  std::string_view name() const noexcept override { return compiler_.name(); }
  std::string identity(std::string_view arch) const override;
  Result<CompiledCode> compile(const CompileRequest& request) const override;

 private:
  const Compiler& compiler_;
  const AmdDisassembler& disassembler_;
};

// The compiler with this check around it, for the process's life. The compiler as it is where there
// is no disassembler, which a line in the log says once, or where FULMEN_AMD_CHECK=0.
Result<const Compiler*> checked_compiler(const Result<const Compiler*>& compiler);

}  // namespace fulmen::gpu
