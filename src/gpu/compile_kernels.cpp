// fulmen/compile.h.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <sstream>

#include "fulmen/compile.h"
#include "fulmen/names.h"
#include "fulmen/printable.h"
#include "gpu/compile/at_once.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/cache_folder.h"
#include "gpu/compile/report/report.h"
#include "gpu/launch/specialisation.h"
#include "gpu/shipped.h"
#include "gpu/targets/chip.h"
#include "runtime/fork_safe.h"
#include "runtime/run_program.h"

namespace fulmen {
namespace {

// Whether each of the words, with spaces between them, is one of the name's.
bool has_words(const std::string& name, const std::string& words) {
  std::istringstream each(words);
  for (std::string word; each >> word;) {
    if ((' ' + name + ' ').find(' ' + word + ' ') == std::string::npos) return false;
  }
  return true;
}

Status compile_one(const gpu::Compiler& compiler, const gpu::Chip& chip,
                   const gpu::Specialisation& s, const CompileKernelsOptions& options,
                   KernelReport& report) {
  const bool amd = chip.vendor == gpu::Vendor::amd;
  const Result<gpu::CompileRequest> request =
      compile_request(s, chip, amd ? gpu::Platform::amd : gpu::Platform::nvidia);
  if (!request.ok()) return request.status();
  const Result<gpu::CompiledCode> code = gpu::cached_compile(&compiler, {}, request.value());
  if (!code.ok()) return code.status();
  report = gpu::report_on(chip, request.value(), code.value(), s.lds_bytes);
  // Wrong machine code is reported, and not handed on.
  return options.out_folder.empty() || !report.findings.empty()
             ? Status{}
             : gpu::write_prebuilt(options.out_folder, request.value(), code.value());
}

Status unknown_arch(const std::string& arch) {
  std::vector<std::string> known;
  for (const gpu::Chip& row : gpu::chips()) known.emplace_back(row.arch);
  return {StatusCode::invalid_argument,
          fmt::format(
              "arch is \"{}\": AMD chips from gfx803 and NVIDIA chips from sm_70 are accepted; {}",
              printable(arch), names_like(arch, known))};
}

// A chip without a row in our table that its compiler refuses does not exist as far as we know: the
// caller's mistake.
Status refused_arch(const std::string& arch, const gpu::Chip& chip, const Status& status) {
  const bool refused =
      status.code() == StatusCode::internal || status.code() == StatusCode::unavailable;
  if (!chip.products.empty() || !refused) return status;
  const std::string said = status.message().substr(0, status.message().find('\n'));
  return {StatusCode::invalid_argument, fmt::format("{}; this one's kernels cannot be compiled: {}",
                                                    unknown_arch(arch).message(), said)};
}

struct Target {
  std::unique_ptr<std::string> storage;  // what the chip's name is a view of
  gpu::Chip chip;
  const gpu::Compiler* compiler;
};

Result<Target> find_target(const std::string& arch) {
  Target target{std::make_unique<std::string>(), {}, nullptr};
  if (!gpu::find_chip(arch, *target.storage, target.chip)) return unknown_arch(arch);
  const bool amd = target.chip.vendor == gpu::Vendor::amd;
  const Result<const gpu::Compiler*> compiler =
      amd ? gpu::amd_compiler(gpu::AmdCompilerUse::offline) : gpu::nvrtc_compiler();
  if (!compiler.ok()) return compiler.status();
  target.compiler = compiler.value();
  return target;
}

}  // namespace

Status check_arch(const std::string& arch) {
  const Result<Target> target = find_target(arch);
  if (!target.ok()) return target.status();
  // Only the compiler knows which chips it compiles for. A source without code asks it in a moment.
  const auto& [storage, chip, compiler] = target.value();
  const Result<gpu::CompiledCode> code =
      compiler->compile({"nothing", "// asks whether the compiler knows the chip\n", arch, 0});
  return code.ok() ? Status{} : refused_arch(arch, chip, code.status());
}

Result<std::vector<KernelReport>> compile_kernels(const std::string& arch,
                                                  const CompileKernelsOptions& options) {
  const Result<Target> target = find_target(arch);
  if (!target.ok()) return target.status();
  // What would fail after minutes of compiling is said before.
  if (!options.out_folder.empty()) {
    if (Status status = gpu::make_folder(options.out_folder); !status.ok()) return status;
  }
  const auto& [storage, chip, compiler] = target.value();
  std::vector<gpu::Specialisation> kernels = options.pairs ? gpu::pair_kernels(chip)
                                             : options.common
                                                 ? gpu::common_kernels(chip)
                                                 : gpu::shipped_kernels(chip, options.all);
  const std::size_t all = kernels.size();
  const std::string first = kernels.empty() ? "" : gpu::to_string(kernels.front());
  std::erase_if(kernels, [&](const gpu::Specialisation& s) {
    return !has_words(gpu::to_string(s), options.only);
  });
  if (kernels.empty()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("only is \"{}\": words of kernels' names are accepted, none of the "
                              "{} of {} has them all; one is \"{}\"",
                              printable(options.only), all, arch, first));
  }
  std::vector<KernelReport> reports(kernels.size());
  std::vector<Status> failures(kernels.size());
  WorkLock telling;
  std::size_t done = 0;
  gpu::at_once(kernels.size(), [&](std::size_t n) {
    failures[n] = compile_one(*compiler, chip, kernels[n], options, reports[n]);
    if (!options.on_kernel) return;
    const std::scoped_lock one_tells(telling);
    options.on_kernel(++done, kernels.size());
  });
  for (const Status& status : failures) {
    if (!status.ok()) return refused_arch(arch, chip, status);
  }
  return reports;
}

std::vector<CachedKernel> cached_kernels() {
  std::vector<CachedKernel> list;
  for (gpu::CacheEntry& entry : gpu::list_cache()) {
    list.push_back({std::move(entry.arch), std::move(entry.name), std::move(entry.file),
                    entry.bytes, entry.last_used});
  }
  return list;
}

Result<int> clear_kernel_cache() { return gpu::clear_cache(); }

void end_compilers() noexcept { end_programs(); }

}  // namespace fulmen
