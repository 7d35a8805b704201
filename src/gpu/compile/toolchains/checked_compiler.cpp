#include "gpu/compile/toolchains/checked_compiler.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "gpu/compile/report/amd_check.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/log_once.h"

namespace fulmen::gpu {
namespace {

// Raise it with what the rules find, or who disassembles for them: cached kernels are then checked
// again.
constexpr int kRules = 5;

void say_unchecked(const std::string& reason) {
  log_line_once("machine code of AMD kernels is not checked: " + reason);
}

}  // namespace

std::string CheckedCompiler::identity(std::string_view arch) const {
  return fmt::format("{}, checked by rules {}", compiler_.identity(arch), kRules);
}

Result<CompiledCode> CheckedCompiler::compile(const CompileRequest& request) const {
  Result<CompiledCode> compiled = compiler_.compile(request);
  if (!compiled.ok()) return compiled;
  const Result<std::string> text = disassembler_.text_of(compiled->code, request.arch);
  if (!text.ok()) {
    say_unchecked(text.status().message());
    return compiled;
  }
  const std::vector<std::string> findings =
      amd_findings(text.value(), amd_kernel_facts(compiled->code, request.arch));
  if (findings.empty()) return compiled;
  return Status(
      StatusCode::verification_failed,
      fmt::format(
          "kernel \"{}\" for {}: what {} made of it is wrong: {}{}. Another compiler may do better "
          "(FULMEN_AMD_COMPILER); FULMEN_AMD_CHECK=0 runs it as it is",
          request.name, request.arch, compiler_.name(), findings.front(),
          findings.size() > 1 ? fmt::format(", and {} more", findings.size() - 1) : ""));
}

Result<const Compiler*> checked_compiler(const Result<const Compiler*>& compiler) {
  if (!compiler.ok() || environment("FULMEN_AMD_CHECK") == "0") return compiler;
  const Result<const AmdDisassembler*> disassembler = amd_disassembler();
  if (!disassembler.ok()) {
    say_unchecked(disassembler.status().message());
    return compiler;
  }
  constinit static Mutex mutex;
  // Never freed: as compilers are.
  constinit static MadeOnce<std::map<const Compiler*, const Compiler*>> made;
  auto& checked = made.get();
  const std::scoped_lock lock(mutex);
  const Compiler*& known = checked[compiler.value()];
  if (known == nullptr) known = new CheckedCompiler(*compiler.value(), *disassembler.value());
  return known;
}

}  // namespace fulmen::gpu
