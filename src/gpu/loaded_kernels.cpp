#include "gpu/loaded_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "gpu/compile/at_once.h"
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

struct Compiled {
  std::string name;
  Result<CompiledCode> code = Status(StatusCode::internal, "not compiled");
  std::string note;
};

Compiled compile(const Driver& driver, const Device& device, const Specialisation& s) {
  const Result<CompileRequest> request =
      compile_request(s, device.chip, platform_of(driver, device.chip));
  Compiled compiled;
  if (!request.ok()) {
    compiled.code = request.status();
    return compiled;
  }
  compiled.name = request->name;
  compiled.code = compile(driver, request.value(), device.chip, compiled.note);
  return compiled;
}

Result<Loaded> load(const Driver& driver, const Device& device, const Specialisation& s,
                    Compiled compiled) {
  if (!compiled.code.ok()) return compiled.code.status();
  const std::vector<std::byte>& code = compiled.code->code;
  const Result<Module> module = driver.load(device.ordinal, code);
  if (!module.ok())
    return Status(module.status().code(),
                  fmt::format("kernel \"{}\": {}", compiled.name, module.status().message()));
  const Result<Function> function =
      driver.function(device.ordinal, module.value(), entry_name(s).c_str(), s.lds_bytes);
  if (!function.ok()) {
    driver.unload(device.ordinal, module.value());
    return function.status();
  }
  KernelOnDevice kernel{function.value(), hex(sha256(code)), std::move(compiled.name), 0,
                        std::move(compiled.note)};
  const Result<std::vector<AmdKernelMetadata>> metadata = read_amd_metadata(code);
  if (metadata.ok() && !metadata->empty()) kernel.scratch_bytes = metadata->front().scratch_bytes;
  return Loaded{module.value(), std::move(kernel)};
}

// What is loaded in this process, by device and source.
class LoadedKernels {
 public:
  std::optional<KernelOnDevice> find(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    const auto found = all_.find(key);
    return found == all_.end() ? std::nullopt : std::optional(found->second);
  }
  // Another thread may have loaded the same: the first one is kept, and whether it is this one.
  std::pair<KernelOnDevice, bool> add(const std::string& key, const KernelOnDevice& kernel) {
    const std::scoped_lock lock(mutex_);
    const auto [at, added] = all_.emplace(key, kernel);
    return {at->second, added};
  }

 private:
  Mutex mutex_;
  std::map<std::string, KernelOnDevice> all_;
};

LoadedKernels& loaded_kernels() {
  constinit static MadeOnce<LoadedKernels> made;
  return made.get();
}

}  // namespace

Result<std::vector<KernelOnDevice>> load_kernels(const Driver& driver, const Device& device,
                                                 const std::vector<Specialisation>& kernels) {
  std::vector<std::string> keys;
  std::map<std::string, std::size_t> missing;  // each once: its number among the kernels
  for (const Specialisation& s : kernels) {
    keys.push_back(fmt::format("{}\n{}\n{}", device.info.name, s.entry, prelude(s)));
    if (!loaded_kernels().find(keys.back())) missing.emplace(keys.back(), keys.size() - 1);
  }
  std::vector<std::size_t> numbers;
  for (const auto& [key, number] : missing) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end());
  // Outside any lock: other kernels need not wait for these compilations.
  std::vector<Compiled> compiled(numbers.size());
  at_once(numbers.size(),
          [&](std::size_t n) { compiled[n] = compile(driver, device, kernels[numbers[n]]); });
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    const Specialisation& s = kernels[numbers[n]];
    const Result<Loaded> loaded = load(driver, device, s, std::move(compiled[n]));
    if (!loaded.ok()) return loaded.status();
    if (!loaded_kernels().add(keys[numbers[n]], loaded->kernel).second)
      driver.unload(device.ordinal, loaded->module);
  }
  std::vector<KernelOnDevice> all;
  for (const std::string& key : keys) all.push_back(loaded_kernels().find(key).value());
  return all;
}

Result<KernelOnDevice> load_kernel(const Driver& driver, const Device& device,
                                   const Specialisation& specialisation) {
  Result<std::vector<KernelOnDevice>> loaded = load_kernels(driver, device, {specialisation});
  if (!loaded.ok()) return loaded.status();
  return std::move(loaded.value().front());
}

}  // namespace fulmen::gpu
