// The emulated GPU as a driver: devices are chips, memory is the host's, launches run at once.
#include "gpu/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "gpu/chip.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/compile/toolchains/run_program.h"
#include "gpu/drivers/emulated/device_memory.h"
#include "gpu/drivers/emulated/lds_banks.h"
#include "gpu/drivers/emulated/workgroup.h"
#include "runtime/environment.h"
#include "runtime/hooks.h"

namespace fulmen::gpu {
namespace {

using emulated::LaunchShape;

Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

// A kernel's shared object.
struct Loaded {
  void* library = nullptr;
  void (*kernel)(const void*) = nullptr;
  int argument_bytes = 0;
};

class EmulatedDriver final : public Driver {
 public:
  std::string_view name() const noexcept override { return "emulated"; }
  Status available() const override { return {}; }
  std::vector<std::string> selectors() const override {
    std::vector<std::string> names;
    for (const Chip& chip : chips()) names.emplace_back(chip.arch);
    return names;
  }
  Result<DeviceProperties> properties(int device) const override {
    const Chip& chip = chips()[static_cast<std::size_t>(device)];
    DeviceProperties p;
    p.name = p.arch = chip.arch;
    p.wave_size = chip.wave_size;
    p.lds_bytes = chip.lds_bytes;
    p.compute_units = 4;
    p.memory_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    return p;
  }
  Result<const Compiler*> compiler() const override { return host_compiler(); }

  Result<Module> load(int device, std::span<const std::byte> code) const override {
    // A path of its own: dlopen takes an equal path for the library that it has.
    const TemporaryDirectory directory;
    const std::string path = directory.path() + "/kernel.so";
    if (!directory.status().ok()) return directory.status();
    if (Status status = write_file(path, std::string(reinterpret_cast<const char*>(code.data()), code.size())); !status.ok()) {
      return status;
    }
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* error = library == nullptr ? dlerror() : nullptr;
    if (struct statvfs disk{}; library == nullptr && statvfs(path.c_str(), &disk) == 0 && (disk.f_flag & ST_NOEXEC) != 0) {
      return Status(StatusCode::unavailable,
                    fmt::format("the emulator cannot load kernels from {}, which is mounted noexec: set TMPDIR to a folder that "
                                "programs may run from",
                                std::filesystem::path(directory.path()).parent_path().string()));
    }
    if (library == nullptr) {
      return Status(StatusCode::internal,
                    fmt::format("the kernel's shared object cannot be loaded: {}", error != nullptr ? error : ""));
    }
    auto bind = reinterpret_cast<void (*)(const EmulatorApi*)>(dlsym(library, "fulmen_bind"));
    const auto* bytes = static_cast<const int*>(dlsym(library, "fulmen_argument_bytes"));
    auto kernel = reinterpret_cast<void (*)(const void*)>(dlsym(library, "fulmen_kernel"));
    if (bind == nullptr || bytes == nullptr || kernel == nullptr) {
      dlclose(library);
      return Status(StatusCode::internal,
                    "the shared object is no kernel: fulmen_bind, fulmen_kernel or fulmen_argument_bytes is missing");
    }
    bind(&emulated::api(chips()[static_cast<std::size_t>(device)].wave_size));
    return Module{new Loaded{library, kernel, *bytes}};
  }
  void unload(int /*device*/, Module module) const noexcept override {
    auto* loaded = static_cast<Loaded*>(module.handle);
    dlclose(loaded->library);
    delete loaded;
  }
  Result<Function> function(int device, Module module, const char* name, int lds_bytes) const override {
    const Chip& chip = chips()[static_cast<std::size_t>(device)];
    if (std::strcmp(name, "fulmen_kernel") != 0) return invalid(fmt::format("the kernel has no function \"{}\"", name));
    if (lds_bytes > chip.lds_bytes) return invalid(fmt::format("{} bytes of LDS: {} has {}", lds_bytes, chip.arch, chip.lds_bytes));
    return Function{module.handle};
  }

  Status launch(int device, Function function, const Launch& l) const override {
    const Chip& chip = chips()[static_cast<std::size_t>(device)];
    const auto& loaded = *static_cast<const Loaded*>(function.handle);
    constexpr int kMostLanes = 1024;
    if (l.workgroup_size <= 0 || l.workgroup_size > kMostLanes || l.workgroup_size % chip.wave_size != 0) {
      return invalid(
          fmt::format("workgroup size is {}: a multiple of {} up to {} is needed", l.workgroup_size, chip.wave_size, kMostLanes));
    }
    if (l.workgroups < 0 || l.workgroups > INT32_MAX)
      return invalid(fmt::format("grid is {}: 0 to {} is accepted", l.workgroups, INT32_MAX));
    if (l.lds_bytes > chip.lds_bytes)
      return invalid(fmt::format("{} bytes of LDS: {} has {}", l.lds_bytes, chip.arch, chip.lds_bytes));
    if (l.argument_bytes != static_cast<std::size_t>(loaded.argument_bytes)) {
      return invalid(fmt::format("{} bytes of arguments: the kernel takes {}", l.argument_bytes, loaded.argument_bytes));
    }
    alignas(64) std::byte arguments[1024];
    if (l.argument_bytes > sizeof(arguments)) return invalid("more than 1024 bytes of arguments");
    std::memcpy(arguments, l.arguments, l.argument_bytes);
    emulated::LdsBanks own;
    const bool print = environment_flag("FULMEN_EMULATOR_BANKS");
    emulated::LdsBanks* const banks = print ? &own : emulated::LdsBankCount::active();
    // AMD's hardware splits 16-byte accesses of rows at multiples of 8.
    const int lds_alignment = chip.vendor == Vendor::nvidia ? 16 : 8;
    const LaunchShape shape{chip.wave_size, l.workgroup_size, l.lds_bytes, lds_alignment, l.programmatic_launch, banks};
    const emulated::MemoryCheck accessible = [this](const void* p, std::size_t bytes) { return memory_.contains(p, bytes); };
    for (int64_t id = 0; id < l.workgroups; ++id) {
      std::string error = emulated::run_workgroup(shape, id, loaded.kernel, arguments, accessible);
      if (!error.empty()) return {StatusCode::internal, std::move(error)};
    }
    if (print) log_line(fmt::format("LDS of a launch on {}, {} bank conflicts:\n{}", chip.arch, own.conflicts(), own.report()));
    return {};
  }

  Result<void*> allocate(int /*device*/, std::size_t bytes) const override { return memory_.allocate(bytes); }
  void free(int /*device*/, void* memory) const noexcept override { memory_.free(memory); }
  Status copy(int /*device*/, void* to, const void* from, std::size_t bytes) const override {
    std::memmove(to, from, bytes);
    return {};
  }
  Status fill(int /*device*/, void* to, unsigned char byte, std::size_t bytes) const override {
    std::memset(to, byte, bytes);
    return {};
  }
  Status check_memory(int /*device*/, const void* memory) const override {
    return memory_.contains(memory, 1) ? Status{} : invalid("it is the host's memory, not allocated on an emulated device");
  }
  Status synchronize(int /*device*/, void* /*stream*/) const override { return {}; }

  Result<Event> create_event(int /*device*/) const override { return Event{new Clock::time_point}; }
  void destroy_event(int /*device*/, Event event) const noexcept override { delete static_cast<Clock::time_point*>(event.handle); }
  Status record(int /*device*/, Event event, void* /*stream*/) const override {
    *static_cast<Clock::time_point*>(event.handle) = Clock::now();
    return {};
  }
  Result<float> elapsed(int /*device*/, Event begin, Event end) const override {
    return std::chrono::duration<float, std::milli>(*static_cast<Clock::time_point*>(end.handle) -
                                                    *static_cast<Clock::time_point*>(begin.handle))
        .count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  mutable emulated::DeviceMemory memory_;
};

}  // namespace

const Driver& emulated_driver() {
  static const auto* const kDriver = new EmulatedDriver;
  return *kDriver;
}

}  // namespace fulmen::gpu
