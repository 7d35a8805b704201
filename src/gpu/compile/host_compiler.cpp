// The host's own C++ compiler, for the emulator.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "gpu/compile/compiler.h"
#include "gpu/compile/run_program.h"

namespace fulmen::gpu {
namespace {

// Quick to compile, and lines for the emulator's reports. Contraction is off: results do not depend on the compiler.
const std::vector<std::string> kOptions{"-x",
                                        "c++",
                                        "-std=c++20",
                                        "-O1",
                                        "-g0",
                                        "-shared",
                                        "-fPIC",
                                        "-fvisibility=default",
                                        "-fno-exceptions",
                                        "-fno-rtti",
                                        "-ffp-contract=off",
                                        "-fno-math-errno",
                                        "-w"};

class HostCompiler final : public Compiler {
 public:
  HostCompiler(std::string path, std::string version) : path_(std::move(path)), version_(std::move(version)) {}
  std::string_view name() const noexcept override { return "host"; }
  std::string identity() const override { return fmt::format("{} {}", version_, fmt::join(kOptions, " ")); }
  Result<CompiledCode> compile(const CompileRequest& request) const override {
    const TemporaryDirectory directory;
    if (!directory.status().ok()) return directory.status();
    const std::string source = directory.path() + "/kernel.cpp", object = directory.path() + "/kernel.so";
    if (Status status = write_file(source, request.source); !status.ok()) return status;
    std::vector<std::string> command{path_};
    command.insert(command.end(), kOptions.begin(), kOptions.end());
    command.insert(command.end(), {source, "-o", object});
    Result<std::string> log = run_program(command);
    if (!log.ok()) return Status(log.status().code(), fmt::format("kernel \"{}\": {}", request.name, log.status().message()));
    Result<std::vector<std::byte>> code = read_file(object);
    if (!code.ok()) return code.status();
    return CompiledCode{std::move(code).value(), std::move(log).value()};
  }

 private:
  std::string path_, version_;
};

Result<const Compiler*> find() {
  std::vector<std::string> names{"c++", "g++", "clang++", "clang++-19"};
  if (const char* chosen = std::getenv("FULMEN_HOST_CXX"); chosen != nullptr && *chosen != '\0') names = {chosen};
  for (const std::string& name : names) {
    const std::string path = find_program(name);
    if (path.empty()) continue;
    const Result<std::string> version = run_program({path, "--version"});
    if (version.ok()) return new HostCompiler(path, version.value().substr(0, version.value().find('\n')));
  }
  return Status(StatusCode::unavailable,
                fmt::format("the emulator compiles kernels with the host's C++ compiler: none of {} is in PATH; "
                            "install one (apt-get install g++) or set FULMEN_HOST_CXX",
                            fmt::join(names, ", ")));
}

}  // namespace

Result<const Compiler*> host_compiler() {
  static const Result<const Compiler*> kCompiler = find();
  return kCompiler;
}

}  // namespace fulmen::gpu
