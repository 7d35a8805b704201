// fulmen/compile.h.
#include <fmt/format.h>

#include "fulmen/compile.h"
#include "gpu/chip.h"
#include "gpu/compile/cache.h"
#include "gpu/compile/report.h"
#include "gpu/launch/shipped.h"

namespace fulmen {

Result<std::vector<KernelReport>> compile_kernels(const std::string& arch, const CompileKernelsOptions& options) {
  std::string storage;
  gpu::Chip chip{};
  if (!gpu::find_chip(arch, storage, chip)) {
    std::string known;
    for (const gpu::Chip& row : gpu::chips()) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.arch);
    return Status(
        StatusCode::invalid_argument,
        fmt::format("arch is \"{}\": AMD chips from gfx803 and NVIDIA chips from sm_70 are accepted, such as {}", arch, known));
  }
  const bool amd = chip.vendor == gpu::Vendor::amd;
  const Result<const gpu::Compiler*> compiler = amd ? gpu::offline_clang_compiler() : gpu::nvrtc_compiler();
  if (!compiler.ok()) return compiler.status();
  std::vector<KernelReport> reports;
  for (const gpu::Specialisation& s : gpu::shipped_kernels(chip, options.all)) {
    const Result<gpu::CompileRequest> request = compile_request(s, chip, amd ? gpu::Platform::amd : gpu::Platform::nvidia);
    if (!request.ok()) return request.status();
    const Result<gpu::CompiledCode> code = gpu::cached_compile(compiler.value(), {}, request.value());
    if (!code.ok()) return code.status();
    if (!options.out_folder.empty()) {
      if (Status status = gpu::write_prebuilt(options.out_folder, request.value(), code.value()); !status.ok()) return status;
    }
    reports.push_back(gpu::report_on(chip, request.value(), code.value(), s.lds_bytes));
  }
  return reports;
}

std::string kernel_cache_folder() { return gpu::cache_directory(); }

std::vector<CachedKernel> cached_kernels() {
  std::vector<CachedKernel> list;
  for (gpu::CacheEntry& entry : gpu::list_cache()) {
    list.push_back({std::move(entry.arch), std::move(entry.name), std::move(entry.file), entry.bytes, entry.last_used});
  }
  return list;
}

Result<int> clear_kernel_cache() { return gpu::clear_cache(); }

}  // namespace fulmen
