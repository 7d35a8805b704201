// The emulated GPU as a driver: kernels are the host's code, and a wave's lanes are fibers.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>

#include "emulator/host_memory_driver.h"
#include "emulator/source/lds_banks.h"
#include "emulator/source/mbarriers.h"
#include "emulator/source/workgroup.h"
#include "gpu/compile/shared_object.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/emulated_work.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/hooks.h"
#include "runtime/platform/files.h"
#include "runtime/run_program.h"

namespace fulmen::gpu {
namespace {

using emulated::LaunchShape;

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

// A kernel's shared object.
struct Loaded {
  std::shared_ptr<void> library;
  void (*kernel)(const void*) = nullptr;
  long long (*take_exponentials)() = nullptr;
  int argument_bytes = 0;
  int cluster = 1;  // workgroups that share one
};

class EmulatedDriver final : public HostMemoryDriver {
 public:
  EmulatedDriver() : HostMemoryDriver(chips()) {}
  std::string_view name() const noexcept override { return "emulated"; }
  Status available() const override { return {}; }
  Result<const Compiler*> compiler() const override { return host_compiler(); }

  Result<Module> load(int device, std::span<const std::byte> code) const override {
    Result<std::shared_ptr<void>> loaded = load_shared_object(code, "the emulator");
    if (!loaded.ok()) return loaded.status();
    void* const library = loaded->get();
    void (*bind)(const kernels::EmulatorApi*) = nullptr;
    void (*kernel)(const void*) = nullptr;
    long long (*take_exponentials)() = nullptr;
    const int *bytes = nullptr, *cluster = nullptr;
    platform::find_symbol(library, "fulmen_bind", bind);
    platform::find_symbol(library, "fulmen_argument_bytes", bytes);
    platform::find_symbol(library, "fulmen_cluster", cluster);
    platform::find_symbol(library, "fulmen_kernel", kernel);
    platform::find_symbol(library, "fulmen_take_exponentials", take_exponentials);
    if (bind == nullptr || bytes == nullptr || cluster == nullptr || kernel == nullptr ||
        take_exponentials == nullptr) {
      return Status(StatusCode::internal,
                    "the shared object is no kernel: one of its five symbols is missing");
    }
    bind(&emulated::api(chip_of(device).wave_size));
    return Module{
        new Loaded{std::move(loaded).value(), kernel, take_exponentials, *bytes, *cluster}};
  }
  void unload(int /*device*/, Module module) const noexcept override {
    delete static_cast<Loaded*>(module.handle);
  }
  Result<Function> function(int device, Module module, const char* name,
                            int lds_bytes) const override {
    const Chip& chip = chip_of(device);
    if (Status status = check_function(name); !status.ok()) return status;
    if (lds_bytes > chip.lds_bytes)
      return invalid(
          fmt::format("{} bytes of LDS: {} has {}", lds_bytes, chip.arch, chip.lds_bytes));
    return Function{module.handle};
  }

  Status encode_tensor_map(int device, const TensorMapShape& shape,
                           kernels::TensorMap& map) const override {
    const Chip& chip = chips()[static_cast<std::size_t>(device)];
    if (!chip.target->prefill_tma) return Driver::encode_tensor_map(device, shape, map);
    return emulated::encode_tensor_map(shape, map);
  }
  Status launch(int device, Function function, const Launch& l) const override {
    const Chip& chip = chip_of(device);
    const auto& loaded = *static_cast<const Loaded*>(function.handle);
    if (Status status = check_shape(l, chip.wave_size); !status.ok()) return status;
    if (l.lds_bytes > chip.lds_bytes)
      return invalid(
          fmt::format("{} bytes of LDS: {} has {}", l.lds_bytes, chip.arch, chip.lds_bytes));
    if (l.argument_bytes != static_cast<std::size_t>(loaded.argument_bytes)) {
      return invalid(fmt::format("{} bytes of arguments: the kernel takes {}", l.argument_bytes,
                                 loaded.argument_bytes));
    }
    if (l.workgroups % loaded.cluster != 0)
      return invalid(fmt::format("{} workgroups: the kernel takes multiples of {}, a cluster's",
                                 l.workgroups, loaded.cluster));
    alignas(64) std::byte arguments[4096];  // as CUDA takes of any driver
    if (l.argument_bytes > sizeof(arguments))
      return invalid(fmt::format("{} bytes of arguments: up to {} are taken", l.argument_bytes,
                                 sizeof(arguments)));
    std::memcpy(arguments, l.arguments, l.argument_bytes);
    emulated::LdsBanks own;
    const bool print = environment_flag("FULMEN_EMULATOR_BANKS");
    EmulatedWork* const work = counted_work();
    emulated::LdsBanks* const banks =
        print || work != nullptr ? &own : emulated::LdsBankCount::active();
    // AMD's hardware splits 16-byte accesses of rows at multiples of 8.
    const int lds_alignment = chip.vendor == Vendor::nvidia ? 16 : 8;
    const LaunchShape shape{.wave_size = chip.wave_size,
                            .workgroup_size = l.workgroup_size,
                            .lds_bytes = l.lds_bytes,
                            .lds_alignment = lds_alignment,
                            .programmatic_launch = l.programmatic_launch,
                            .lds_reads = chip.lds_reads,
                            .banks = banks,
                            .work = work,
                            .cluster = loaded.cluster};
    MemoryMap map = memory().map();
    const emulated::MemoryCheck accessible = [&map](const void* p, std::size_t bytes) {
      return map.contains(reinterpret_cast<uint64_t>(p), bytes);
    };
    if (work != nullptr) loaded.take_exponentials();  // drops those of earlier launches
    for (int64_t id = 0; id < l.workgroups / loaded.cluster; ++id) {
      std::string error = emulated::run_workgroup(shape, id, loaded.kernel, arguments, accessible);
      if (!error.empty()) return {StatusCode::internal, std::move(error)};
    }
    if (work != nullptr) {
      work->lds_cycles += static_cast<double>(own.cycles());
      work->exponentials += static_cast<double>(loaded.take_exponentials());
      work->launches += 1;
    }
    if (print)
      log_line(fmt::format("LDS of a launch on {}, {} bank conflicts:\n{}", chip.arch,
                           own.conflicts(), own.report()));
    return {};
  }
};

}  // namespace

const Driver& emulated_driver() {
  constinit static MadeOnce<const EmulatedDriver> made;
  return made.get();
}

}  // namespace fulmen::gpu
