#include "gpu/loaded_kernels.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>

#include "gpu/compile/cache/cache.h"
#include "gpu/compile/cache/sha256.h"
#include "gpu/compile/report/amd_metadata.h"
#include "runtime/fork_safe.h"

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

Result<Loaded> compile_and_load(const Driver& driver, const Device& device, const Specialisation& s) {
  const Platform platform = platform_of(driver, device.chip);
  Result<CompileRequest> request = compile_request(s, device.chip, platform);
  if (!request.ok()) return request.status();
  const Result<const Compiler*> compiler = driver.compiler();
  Result<CompiledCode> code = cached_compile(compiler.ok() ? compiler.value() : nullptr, compiler.status(), request.value());
  if (!code.ok()) return code.status();
  if (platform == Platform::amd) {
    if (Status status = check_wave_size(code->code, device.chip.wave_size); !status.ok()) return status;
  }
  const Result<Module> module = driver.load(device.ordinal, code->code);
  if (!module.ok()) return module.status();
  const Result<Function> function = driver.function(device.ordinal, module.value(), "fulmen_kernel", s.lds_bytes);
  if (!function.ok()) {
    driver.unload(device.ordinal, module.value());
    return function.status();
  }
  return Loaded{module.value(), {function.value(), hex(sha256(code->code)), request->name}};
}

}  // namespace

Result<KernelOnDevice> load_kernel(const Driver& driver, const Device& device, const Specialisation& s) {
  constinit static Mutex mutex;
  constinit static MadeOnce<std::map<std::string, KernelOnDevice>> made;
  auto& all = made.get();
  const std::string key = fmt::format("{}\n{}\n{}", device.info.name, s.entry, prelude(s));
  {
    const std::scoped_lock lock(mutex);
    if (const auto found = all.find(key); found != all.end()) return found->second;
  }
  // Outside the lock: other kernels need not wait for this compilation. Two threads may load the same one; the first is kept.
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
