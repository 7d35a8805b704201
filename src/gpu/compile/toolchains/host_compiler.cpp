// The host's own C++ compiler, for the emulator and for score functions.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gpu/compile/toolchains/compiler.h"
#include "runtime/environment.h"
#include "runtime/found_once.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

// Contraction is off: results do not depend on the compiler.
const std::vector<std::string> kHostOptions{"-x",
                                            "c++",
                                            "-std=c++20",
                                            "-g0",
                                            "-shared",
                                            "-fPIC",
                                            "-fvisibility=default",
                                            "-fno-exceptions",
                                            "-fno-rtti",
                                            "-ffp-contract=off",
                                            "-fno-math-errno",
                                            "-w"};

// g++'s passes that a kernel's short loops gain nothing from: a quarter of its time, and most of a
// test of the emulator is its kernels' compilation. clang does not know all of these names.
const std::vector<std::string> kPassesOfGccLeftOut{"-fno-tree-dominator-opts",
                                                   "-fno-tree-dse",
                                                   "-fno-tree-pta",
                                                   "-fno-tree-sink",
                                                   "-fno-ivopts",
                                                   "-fno-tree-slsr",
                                                   "-fno-ssa-phiopt",
                                                   "-fno-tree-loop-im",
                                                   "-fno-tree-loop-ivcanon",
                                                   "-fno-dse",
                                                   "-fno-forward-propagate",
                                                   "-fno-if-conversion",
                                                   "-fno-if-conversion2",
                                                   "-fno-shrink-wrap",
                                                   "-fno-reorder-blocks",
                                                   "-fno-cprop-registers",
                                                   "-fno-split-wide-types",
                                                   "-fno-compare-elim",
                                                   "-fno-move-loop-invariants"};

struct HostProgram {
  std::string path;
  std::string says;  // to --version
};

class HostCompiler final : public Compiler {
 public:
  HostCompiler(const HostProgram& program, const std::vector<std::string>& options)
      : path_(program.path),
        version_(program.says.substr(0, program.says.find('\n'))),
        options_(kHostOptions) {
    options_.insert(options_.end(), options.begin(), options.end());
  }
  std::string_view name() const noexcept override { return "host"; }
  std::string identity(std::string_view /*arch*/) const override {
    return fmt::format("{} {}", version_, fmt::join(options_, " "));
  }
  Result<CompiledCode> compile(const CompileRequest& request) const override {
    const TemporaryDirectory directory;
    if (!directory.status().ok()) return directory.status();
    const std::string source = directory.path() + "/kernel.cpp",
                      object = directory.path() + "/kernel.so";
    if (Status status = write_file(source, request.source); !status.ok()) return status;
    std::vector<std::string> command{path_};
    command.insert(command.end(), options_.begin(), options_.end());
    command.insert(command.end(), {source, "-o", object});
    Result<std::string> log = run_program(command, directory.path());
    if (!log.ok())
      return Status(log.status().code(),
                    fmt::format("kernel \"{}\": {}", request.name, log.status().message()));
    Result<std::vector<std::byte>> code = read_file(object);
    if (!code.ok()) return code.status();
    return CompiledCode{std::move(code).value(), std::move(log).value()};
  }

 private:
  std::string path_, version_;
  std::vector<std::string> options_;
};

Result<HostProgram> find_host_program() {
  const std::string chosen = environment("FULMEN_HOST_CXX");
  std::vector<std::string> names{"c++", "g++", "clang++", "clang++-19"};
  if (!chosen.empty()) names = {chosen};
  std::string refused;
  for (const std::string& name : names) {
    const std::string path = find_program(name);
    if (path.empty()) continue;
    const Result<std::string> version = run_program({path, "--version"});
    if (version.ok()) return HostProgram{path, version.value()};
    refused += fmt::format(
        "; {}", version.status().message().substr(0, version.status().message().find('\n')));
  }
  if (!chosen.empty()) {
    return Status(
        StatusCode::unavailable,
        fmt::format(
            "FULMEN_HOST_CXX is \"{}\": a C++ compiler is needed, its path or a name in PATH{}",
            chosen, refused.empty() ? "; there is no such program" : refused));
  }
  return Status(
      StatusCode::unavailable,
      fmt::format("kernels of this processor are compiled with the host's C++ compiler: none of "
                  "{} is in PATH and runs; "
                  "install one (apt-get install g++) or set FULMEN_HOST_CXX{}",
                  fmt::join(names, ", "), refused));
}

Result<HostProgram> host_program() {
  constinit static FoundOnce<Result<HostProgram>> found;
  return found.get(find_host_program);
}

}  // namespace

Result<const Compiler*> host_compiler() {
  constinit static FoundOnce<Result<const Compiler*>> found;
  return found.get([]() -> Result<const Compiler*> {
    const Result<HostProgram> program = host_program();
    if (!program.ok()) return program.status();
    // Quick to compile, and lines for the emulator's reports.
    std::vector<std::string> options{"-O1"};
    // Compilers made of clang, which stops at these options, have names of all kinds.
    if (program->says.find("Free Software Foundation") != std::string::npos)
      options.insert(options.end(), kPassesOfGccLeftOut.begin(), kPassesOfGccLeftOut.end());
    return new HostCompiler(program.value(), options);
  });
}

Result<std::unique_ptr<const Compiler>> host_compiler_for(const std::vector<std::string>& flags) {
  const Result<HostProgram> program = host_program();
  if (!program.ok()) return program.status();
  std::vector<std::string> options{"-O3"};
  options.insert(options.end(), flags.begin(), flags.end());
  return std::unique_ptr<const Compiler>(
      std::make_unique<const HostCompiler>(program.value(), options));
}

}  // namespace fulmen::gpu
