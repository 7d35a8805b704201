// An installed clang as the compiler for AMD chips: no ROCm is needed, kernels use compiler
// builtins alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/compile/toolchains/amd_options.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/compile/toolchains/first_llvm.h"
#include "gpu/libraries/library_build.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/found_once.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

const std::vector<std::string> kHipOptions{
    "-x", "hip", "-nogpuinc", "-nogpulib", "--offload-device-only", "--no-gpu-bundle-output", "-O3",
    "-std=c++20", "-ffp-contract=fast", "-fno-math-errno", "-Wall", "-Wno-unused",
    "-fuse-cuid=none",  // else the temporary folder's name is in the code
    // Every HIP from 5 on loads version 4; HIP before 6.3 cannot load 6, clang 21's own.
    "-mcode-object-version=4", "-Rpass-analysis=kernel-resource-usage"};

// What is said of a compilation that went well: the warnings with all around them, else the
// resources alone, a line each. Kernels are expansions of macros, and clang repeats these after
// every line.
std::string short_log(const std::string& log) {
  if (log.find("warning:") != std::string::npos) return log;
  std::string kept;
  for (std::size_t at = 0; at < log.size();) {
    const std::size_t end = std::min(log.find('\n', at), log.size() - 1) + 1;
    if (const std::string_view line(log.data() + at, end - at);
        line.find("remark:") != std::string_view::npos)
      kept += line;
    at = end;
  }
  return kept;
}

// One build of clang among all, without running it: a process that finds its kernels in the cache
// has no 20 ms for `--version`. A wrapper (ccache, amdclang++) does not change with the compiler
// behind it and is asked.
Result<std::string> version_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (!error && real.filename().string().find("clang") != std::string::npos) {
    if (std::string build = file_build(path); !build.empty()) return build;
  }
  const Result<std::string> said = run_program({path, "--version"});
  return said.ok() ? said.value().substr(0, said.value().find('\n')) : said;
}

class OfflineClang final : public Compiler {
 public:
  OfflineClang(std::string path, std::string version)
      : path_(std::move(path)), version_(std::move(version)) {}
  std::string_view name() const noexcept override { return "clang"; }
  std::string identity(std::string_view arch) const override {
    return fmt::format("{} {} {}", version_, fmt::join(kHipOptions, " "),
                       fmt::join(options_for(arch, kAmdFamilyOptions), " "));
  }
  Result<CompiledCode> compile(const CompileRequest& request) const override {
    const TemporaryDirectory directory;
    if (!directory.status().ok()) return directory.status();
    const std::string source = directory.path() + "/kernel.hip",
                      object = directory.path() + "/kernel.co";
    // Its first lines have a name, too: logs of the same source are the same.
    if (Status status = write_file(source, "#line 1 \"kernel.hip\"\n" + request.source);
        !status.ok())
      return status;
    std::vector<std::string> command{path_};
    command.insert(command.end(), kHipOptions.begin(), kHipOptions.end());
    const std::vector<std::string> more = options_for(request.arch, kAmdFamilyOptions);
    command.insert(command.end(), more.begin(), more.end());
    command.insert(command.end(), {"--offload-arch=" + request.arch, source, "-o", object});
    const Result<std::string> log = run_program(command, directory.path());
    if (!log.ok()) {
      return Status(log.status().code(), fmt::format("kernel \"{}\" for {}: {}", request.name,
                                                     request.arch, log.status().message()));
    }
    Result<std::vector<std::byte>> code = read_file(object);
    if (!code.ok()) return code.status();
    return CompiledCode{std::move(code).value(), short_log(log.value())};
  }
  const std::string& path() const { return path_; }
  // Asked once, and only for a chip that some clang does not know.
  bool knows(const std::string& arch) const {
    const int first = first_llvm(arch), version = version_in_name(path_);
    if (first == 0) return true;
    if (version > 0) return version >= first;
    {
      const std::scoped_lock lock(mutex_);
      if (const auto said = known_.find(arch); said != known_.end()) return said->second;
    }
    std::vector<std::string> command{path_};
    command.insert(command.end(), kHipOptions.begin(), kHipOptions.end());
    command.insert(command.end(), {"--offload-arch=" + arch, "-fsyntax-only", "/dev/null"});
    const bool known = run_program(command).ok();
    const std::scoped_lock lock(mutex_);
    return known_.emplace(arch, known).first->second;
  }

 private:
  std::string path_, version_;
  mutable Mutex mutex_;
  mutable std::map<std::string, bool> known_;
};

// The installed clangs: each chip has the first one that knows it.
class ClangOfChip final : public Compiler {
 public:
  explicit ClangOfChip(std::vector<std::unique_ptr<const OfflineClang>> clangs)
      : clangs_(std::move(clangs)) {}
  std::string_view name() const noexcept override { return "clang"; }
  std::string identity(std::string_view arch) const override {
    const OfflineClang* clang = first_that_knows(std::string(arch));
    return (clang != nullptr ? *clang : *clangs_.front()).identity(arch);
  }
  Result<CompiledCode> compile(const CompileRequest& request) const override {
    const OfflineClang* clang = first_that_knows(request.arch);
    if (clang != nullptr) return clang->compile(request);
    std::vector<std::string> paths;
    for (const auto& installed : clangs_) paths.push_back(installed->path());
    constexpr int kDistributions = 22;  // the newest that Debian has
    const int first = first_llvm(request.arch), offered = std::max(first, kDistributions);
    return Status(
        StatusCode::unavailable,
        fmt::format("kernel \"{}\": no installed clang knows {}, LLVM {} is the first that does; "
                    "there are {}. To install one: apt-get install clang-{} lld-{}{}",
                    request.name, request.arch, first, fmt::join(paths, ", "), offered, offered,
                    offered > kDistributions ? ", from apt.llvm.org" : ""));
  }

 private:
  const OfflineClang* first_that_knows(const std::string& arch) const {
    const auto first = std::find_if(clangs_.begin(), clangs_.end(),
                                    [&](const auto& clang) { return clang->knows(arch); });
    return first == clangs_.end() ? nullptr : first->get();
  }

  std::vector<std::unique_ptr<const OfflineClang>> clangs_;
};

// 19 first, which tests compile with; then the newest.
std::vector<std::string> candidates_for_clang() {
  std::vector<std::string> names;
  if (const std::string home = environment("ROCM_PATH"); !home.empty()) {
    names.push_back(home + "/llvm/bin/amdclang++");
    names.push_back(home + "/llvm/bin/clang++");
  }
  for (const char* name :
       {"amdclang++", "/opt/rocm/llvm/bin/clang++", "clang++-19", "clang++-22", "clang++-21",
        "clang++-20", "clang++-18", "clang++-17", "clang++-16", "clang++"}) {
    names.emplace_back(name);
  }
  return names;
}

Result<const Compiler*> find_offline_clang() {
  const std::vector<std::string> names = candidates_for_clang();
  std::vector<std::unique_ptr<const OfflineClang>> clangs;
  for (const std::string& name : names) {
    const std::string path = find_program(name);
    if (path.empty()) continue;
    const Result<std::string> version = version_of(path);
    if (version.ok()) clangs.push_back(std::make_unique<OfflineClang>(path, version.value()));
  }
  if (!clangs.empty()) return new ClangOfChip(std::move(clangs));
  return Status(StatusCode::unavailable,
                fmt::format("no clang that compiles for AMD: looked for {} in PATH. To install it: "
                            "apt-get install clang-19 lld-19",
                            fmt::join(names, ", ")));
}

}  // namespace

Result<const Compiler*> offline_clang_compiler() {
  constinit static FoundOnce<Result<const Compiler*>> found;
  return found.get(find_offline_clang);
}

Result<const Compiler*> clang_at(const std::string& program) {
  const std::string path = find_program(program);
  if (path.empty())
    return Status(StatusCode::unavailable, fmt::format("there is no program {}", program));
  constinit static Mutex mutex;
  // Never freed: static objects' destructors may compile.
  constinit static MadeOnce<std::map<std::string, const Compiler*>> made;
  auto& found = made.get();
  {
    const std::scoped_lock lock(mutex);
    if (const auto known = found.find(path); known != found.end()) return known->second;
  }
  // Asked although a clang's file tells its build: this one was not found by its name.
  const Result<std::string> said = run_program({path, "--version"});
  if (!said.ok()) return said.status();
  const std::string first_line = said.value().substr(0, said.value().find('\n'));
  if (first_line.find("clang") == std::string::npos) {
    return Status(StatusCode::unavailable,
                  fmt::format("{} says that it is \"{}\"", path, first_line));
  }
  const Result<std::string> version = version_of(path);
  if (!version.ok()) return version.status();
  const auto* clang = new OfflineClang(path, version.value());
  const std::scoped_lock lock(mutex);
  const auto [kept, is_first] = found.emplace(path, clang);
  if (!is_first) delete clang;
  return kept->second;
}

}  // namespace fulmen::gpu
