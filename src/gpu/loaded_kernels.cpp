#include "gpu/loaded_kernels.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/report/amd_metadata.h"
#include "runtime/fork_safe.h"
#include "runtime/log_once.h"

namespace fulmen::gpu {
namespace {

Platform platform_of(const Driver& driver, const Chip& chip) {
  if (driver.name() == "emulated") return Platform::emulated;
  return chip.vendor == Vendor::amd ? Platform::amd : Platform::nvidia;
}

struct Loaded {
  Module module;
  KernelOnDevice kernel;
};

Result<CompiledCode> compile_by(const Result<const Compiler*>& compiler,
                                const CompileRequest& request, const Chip& chip) {
  Result<CompiledCode> code =
      cached_compile(compiler.ok() ? compiler.value() : nullptr, compiler.status(), request);
  if (!code.ok() || chip.vendor != Vendor::amd) return code;
  // The emulator's code has no such metadata, and passes.
  if (Status status = check_wave_size(code->code, chip.wave_size); !status.ok()) return status;
  return code;
}

// By the driver's compiler; where that fails by the second one, which `note` then says.
Result<CompiledCode> compile(const Driver& driver, const CompileRequest& request, const Chip& chip,
                             std::string& note) {
  const Result<const Compiler*> first = driver.compiler();
  Result<CompiledCode> code = compile_by(first, request, chip);
  if (code.ok() || !first.ok()) return code;
  const Result<const Compiler*> second = driver.second_compiler();
  if (!second.ok()) return code;
  Result<CompiledCode> other = compile_by(second, request, chip);
  const std::string& why = code.status().message();
  if (!other.ok())
    return Status(code.status().code(), fmt::format("{}; {}", why, other.status().message()));
  note = fmt::format("\"{}\" was compiled by {}, as {} could not: {}", request.name,
                     second.value()->name(), first.value()->name(), sentence_of(why));
  log_line_once(note);
  return other;
}

Result<Loaded> compile_and_load(const Driver& driver, const Device& device,
                                const Specialisation& s) {
  const Result<CompileRequest> request =
      compile_request(s, device.chip, platform_of(driver, device.chip));
  if (!request.ok()) return request.status();
  std::string note;
  const Result<CompiledCode> code = compile(driver, request.value(), device.chip, note);
  if (!code.ok()) return code.status();
  const Result<Module> module = driver.load(device.ordinal, code->code);
  if (!module.ok())
    return Status(module.status().code(),
                  fmt::format("kernel \"{}\": {}", request->name, module.status().message()));
  const Result<Function> function =
      driver.function(device.ordinal, module.value(), "fulmen_kernel", s.lds_bytes);
  if (!function.ok()) {
    driver.unload(device.ordinal, module.value());
    return function.status();
  }
  KernelOnDevice kernel{function.value(), hex(sha256(code->code)), request->name, 0,
                        std::move(note)};
  const Result<std::vector<AmdKernelMetadata>> metadata = read_amd_metadata(code->code);
  if (metadata.ok() && !metadata->empty()) kernel.scratch_bytes = metadata->front().scratch_bytes;
  return Loaded{module.value(), std::move(kernel)};
}

}  // namespace

Result<KernelOnDevice> load_kernel(const Driver& driver, const Device& device,
                                   const Specialisation& s) {
  constinit static Mutex mutex;
  constinit static MadeOnce<std::map<std::string, KernelOnDevice>> made;
  auto& all = made.get();
  const std::string key = fmt::format("{}\n{}\n{}", device.info.name, s.entry, prelude(s));
  {
    const std::scoped_lock lock(mutex);
    if (const auto found = all.find(key); found != all.end()) return found->second;
  }
  // Outside the lock: other kernels need not wait for this compilation. Two threads may load the
  // same one; the first is kept.
  const Result<Loaded> loaded = compile_and_load(driver, device, s);
  if (!loaded.ok()) return loaded.status();
  const auto [kept, is_first] = [&] {
    const std::scoped_lock lock(mutex);
    const auto [at, added] = all.emplace(key, loaded->kernel);
    return std::pair{at->second, added};
  }();
  if (!is_first) driver.unload(device.ordinal, loaded->module);
  return kept;
}

}  // namespace fulmen::gpu
