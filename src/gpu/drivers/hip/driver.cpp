// AMD GPUs through libamdhip64.
#include "gpu/driver.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <vector>

#include "gpu/compile/toolchains/checked_compiler.h"
#include "gpu/compile/toolchains/compiler.h"
#include "gpu/compile/toolchains/hiprtc.h"
#include "gpu/drivers/hip/hip_api.h"
#include "gpu/drivers/relaxed_capture.h"
#include "gpu/targets/chip.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/platform/files.h"
#include "runtime/platform/system.h"

namespace fulmen::gpu {
namespace {

using hip::Api;

class HipDriver final : public Driver {
 public:
  std::string_view name() const noexcept override { return "hip"; }
  Status available() const override {
    const Result<const hip::OpenApi*> opened = hip::open_api();
    if (!opened.ok()) return opened.status();
    // What the vendor's library says of its devices holds for the process: asked again after main()
    // it may crash.
    return found_
        .get([&] {
          api_ = opened.value();
          return find_devices();
        })
        .status;
  }
  std::vector<std::string> selectors() const override {
    std::vector<std::string> list;
    if (!available().ok()) return list;
    for (int n = 0; n < found_.made()->count; ++n) list.push_back(std::to_string(n));
    return list;
  }

  Result<DeviceProperties> properties(int device) const override {
    DeviceProperties p;
    char name[256] = {};
    if (int error = api().hipDeviceGetName(name, sizeof(name), device); error != 0)
      return failure("hipDeviceGetName", error);
    if (int error = api().hipDeviceTotalMem(&p.memory_bytes, device); error != 0)
      return failure("hipDeviceTotalMem", error);
    // Larger than the struct of any release.
    std::vector<std::byte> raw(16384);
    const auto get = api().hipGetDevicePropertiesR0600 != nullptr
                         ? api().hipGetDevicePropertiesR0600
                         : api().hipGetDeviceProperties;
    if (int error = get(raw.data(), device); error != 0)
      return failure("hipGetDeviceProperties", error);
    p.name = name;
    p.arch = hip::arch_of(raw.data(), raw.size());
    if (p.arch.empty())
      return Status(StatusCode::unavailable,
                    fmt::format("{} does not say which chip {} is", api_->path, name));
    std::string storage;
    Chip chip{};
    if (find_chip(p.arch, storage, chip)) {
      p.wave_size = chip.wave_size;
      p.lds_bytes = chip.lds_bytes;
    }
    p.compute_units = attribute(device, kMultiprocessorCount);
    p.cache_bytes = static_cast<std::size_t>(attribute(device, kL2CacheSize));
    p.clock_mhz = attribute(device, kClockRate) / 1000;
    p.memory_clock_mhz = attribute(device, kMemoryClockRate) / 1000;
    int version = 0;
    api().hipRuntimeGetVersion(&version);
    p.software = fmt::format("HIP {}.{}, {}", version / 10000000, version / 100000 % 100,
                             about_compiler(p.arch));
    return p;
  }
  Result<const Compiler*> compiler() const override {
    return checked_compiler(amd_compiler(AmdCompilerUse::device));
  }
  Result<const Compiler*> second_compiler() const override {
    return checked_compiler(second_amd_compiler());
  }

  Result<Module> load(int device, std::span<const std::byte> code) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const RelaxedCapture relaxed(api().hipThreadExchangeStreamCaptureMode);
    hip::ModuleHandle module = nullptr;
    if (int error = api().hipModuleLoadData(&module, code.data()); error != 0)
      return failure("hipModuleLoadData", error);
    return Module{module};
  }
  void unload(int device, Module module) const noexcept override {
    const Current current(*this, device);
    api().hipModuleUnload(static_cast<hip::ModuleHandle>(module.handle));
  }
  // LDS is part of the code object: nothing to set.
  Result<Function> function(int device, Module module, const char* name,
                            int /*lds_bytes*/) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const RelaxedCapture relaxed(api().hipThreadExchangeStreamCaptureMode);
    hip::FunctionHandle function = nullptr;
    if (int error = api().hipModuleGetFunction(&function,
                                               static_cast<hip::ModuleHandle>(module.handle), name);
        error != 0) {
      return failure(fmt::format("hipModuleGetFunction of \"{}\"", name), error);
    }
    return Function{function};
  }

  Status launch(int device, Function function, const Launch& l) const override {
    // HIP counts the grid in lanes, 32 bits of them.
    const int64_t most = UINT32_MAX / l.workgroup_size;
    if (l.workgroups < 1 || l.workgroups > most) {
      return {StatusCode::unsupported,
              fmt::format("grid is {} workgroups of {} lanes: 1 to {} are accepted", l.workgroups,
                          l.workgroup_size, most)};
    }
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    // The argument block as it is, by HIP_LAUNCH_PARAM_BUFFER_POINTER and _SIZE.
    std::size_t bytes = l.argument_bytes;
    void* block[] = {reinterpret_cast<void*>(1), const_cast<void*>(l.arguments),
                     reinterpret_cast<void*>(2), &bytes, reinterpret_cast<void*>(3)};
    const int error = api().hipModuleLaunchKernel(
        static_cast<hip::FunctionHandle>(function.handle), static_cast<unsigned>(l.workgroups), 1,
        1, static_cast<unsigned>(l.workgroup_size), 1, 1, 0, l.stream, nullptr, block);
    return error == 0 ? Status{} : failure("hipModuleLaunchKernel", error);
  }

  Result<void*> allocate(int device, std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    void* memory = nullptr;
    const int error = api().hipMalloc(&memory, bytes);
    if (error == kOutOfMemory) {
      forget_error();
      return Status(StatusCode::out_of_memory,
                    fmt::format("no memory for {} bytes on hip:{}", bytes, device));
    }
    if (error != 0) return failure("hipMalloc", error);
    return memory;
  }
  void free(int device, void* memory) const noexcept override {
    const Current current(*this, device);
    api().hipFree(memory);
  }
  Result<void*> allocate_in_stream(int device, void* stream, std::size_t bytes) const override {
    {
      const Current current(*this, device);
      void* memory = nullptr;
      const bool can =
          current.ok() && api().hipMallocAsync != nullptr && api().hipFreeAsync != nullptr;
      if (can && api().hipMallocAsync(&memory, bytes, stream) == 0) return memory;
      if (can) forget_error();
    }
    return allocate(device, bytes);  // a device without memory pools
  }
  void free_in_stream(int device, void* stream, void* memory) const noexcept override {
    {
      const Current current(*this, device);
      if (api().hipFreeAsync != nullptr) {
        if (api().hipFreeAsync(memory, stream) == 0) return;
        forget_error();
      }
    }
    free(device, memory);  // memory of allocate(); free() waits for the work that uses it
  }
  Status copy(int device, void* to, const void* from, std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    // Waits for every stream: a copy on the default stream does not wait for non-blocking ones.
    if (int error = api().hipDeviceSynchronize(); error != 0)
      return failure("hipDeviceSynchronize", error);
    if (int error = api().hipMemcpy(to, from, bytes, hip::kMemcpyDefault); error != 0)
      return failure("hipMemcpy", error);
    const int error = api().hipDeviceSynchronize();
    return error == 0 ? Status{} : failure("hipDeviceSynchronize", error);
  }
  Status fill(int device, void* to, unsigned char byte, std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    if (int error = api().hipMemset(to, byte, bytes); error != 0)
      return failure("hipMemset", error);
    const int error = api().hipDeviceSynchronize();
    return error == 0 ? Status{} : failure("hipDeviceSynchronize", error);
  }
  Status check_memory(int device, const void* memory) const override {
    hip::PointerAttributes attributes{};
    // ROCm 5 gives an error for memory that it does not know, later ones no address for the device.
    if (const int error = api().hipPointerGetAttributes(&attributes, memory);
        error != 0 || attributes.device_pointer == nullptr) {
      if (error != 0) forget_error();
      if (has_access(device, memory)) return {};
      return {StatusCode::invalid_argument, "it is the host's ordinary memory, or freed"};
    }
    // Page-locked host memory is mapped into every device, memory that the caller registered
    // perhaps elsewhere.
    if (attributes.host_pointer != nullptr && attributes.device_pointer != memory) {
      return {StatusCode::invalid_argument,
              "it is host memory that the device has at another address (hipHostGetDevicePointer "
              "tells which)"};
    }
    if (attributes.host_pointer != nullptr || attributes.device == device ||
        has_access(device, memory))
      return {};
    return {StatusCode::invalid_argument, fmt::format("it belongs to hip:{}", attributes.device)};
  }
  bool is_capturing(int device, void* stream) const noexcept override {
    if (api().hipStreamIsCapturing == nullptr) return false;
    const Current current(*this, device);
    int state = 0;  // hipStreamCaptureStatusNone
    const int error = current.ok() ? api().hipStreamIsCapturing(stream, &state) : -1;
    if (error == 0) return state != 0;
    forget_error();
    return error == kImplicitCapture;
  }
  void beside_captures(const std::function<void()>& work) const override {
    const RelaxedCapture relaxed(api().hipThreadExchangeStreamCaptureMode);
    work();
  }
  Status synchronize(int device, void* stream) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const int error = api().hipStreamSynchronize(stream);
    return error == 0 ? Status{} : failure("hipStreamSynchronize", error);
  }

  Result<Event> create_event(int device) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    hip::Event event = nullptr;
    if (int error = api().hipEventCreate(&event); error != 0)
      return failure("hipEventCreate", error);
    return Event{event};
  }
  void destroy_event(int device, Event event) const noexcept override {
    const Current current(*this, device);
    api().hipEventDestroy(static_cast<hip::Event>(event.handle));
  }
  Status record(int device, Event event, void* stream) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const int error = api().hipEventRecord(static_cast<hip::Event>(event.handle), stream);
    return error == 0 ? Status{} : failure("hipEventRecord", error);
  }
  Result<float> elapsed(int device, Event begin, Event end) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    if (int error = api().hipEventSynchronize(static_cast<hip::Event>(end.handle)); error != 0) {
      return failure("hipEventSynchronize", error);
    }
    float milliseconds = 0;
    const int error = api().hipEventElapsedTime(
        &milliseconds, static_cast<hip::Event>(begin.handle), static_cast<hip::Event>(end.handle));
    if (error != 0) return failure("hipEventElapsedTime", error);
    return milliseconds;
  }

 private:
  // Returns true if the device may use mapped memory (hipMemMap: PyTorch's expandable segments).
  // Its attributes may name the device that reserved the addresses, or none. Other memory is an
  // error here.
  bool has_access(int device, const void* memory) const {
    if (api().hipMemGetAccess == nullptr) return false;
    const hip::MemoryLocation location{.id = device};
    unsigned long long flags = 0;
    if (api().hipMemGetAccess(&flags, &location, const_cast<void*>(memory)) == 0) return flags != 0;
    forget_error();
    return false;
  }

  // Says which compiler serves and, where clang does without having been chosen, why hipRTC does
  // not.
  std::string about_compiler(std::string_view arch) const {
    const Result<const Compiler*> found = compiler();
    if (!found.ok()) return "no compiler: " + found.status().message();
    std::string about = found.value()->identity(arch);
    if (found.value()->name() == "hipRTC" || !environment("FULMEN_AMD_COMPILER").empty())
      return about;
    const Result<const Compiler*> runtime = hiprtc_compiler();
    if (!runtime.ok())
      about += fmt::format("; clang, as hipRTC is not there: {}", runtime.status().message());
    return about;
  }

  static constexpr int kOutOfMemory = 2;
  static constexpr int kImplicitCapture = 906;  // a captured stream waits for the default one
  // hipDeviceAttribute_t since ROCm 5.
  static constexpr int kClockRate = 5, kL2CacheSize = 19, kMemoryClockRate = 60,
                       kMultiprocessorCount = 63;  // clocks in kHz

  // Makes the device the thread's current one while it lives.
  class Current {
   public:
    Current(const HipDriver& driver, int device) : driver_(driver) {
      error_ = driver.api().hipGetDevice(&before_);
      if (error_ == 0 && before_ != device) {
        error_ = driver.api().hipSetDevice(device);
        changed_ = error_ == 0;
      }
    }
    ~Current() {
      if (changed_) driver_.api().hipSetDevice(before_);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    bool ok() const noexcept { return error_ == 0; }
    Status status() const { return ok() ? Status{} : driver_.failure("hipSetDevice", error_); }

   private:
    const HipDriver& driver_;
    int before_ = 0, error_ = 0;
    bool changed_ = false;
  };

  const Api& api() const { return api_->api; }
  int attribute(int device, int which) const {
    int value = 0;
    return api().hipDeviceGetAttribute(&value, which, device) == 0 ? value : 0;
  }
  // HIP keeps the last error until it is asked for. PyTorch, which asks after its own launch, would
  // take it for its own.
  void forget_error() const { static_cast<void>(api().hipGetLastError()); }
  Status failure(const std::string& call, int error) const {
    forget_error();
    const char *name = api().hipGetErrorName(error), *text = api().hipGetErrorString(error);
    return {StatusCode::internal,
            fmt::format("{}: {} ({})", call, text != nullptr ? text : "unknown error",
                        name != nullptr ? name : std::to_string(error))};
  }

  struct Found {
    Status status;
    int count = 0;
  };
  Found find_devices() const {
    const char* call = "hipInit";
    int error = api().hipInit(0), count = 0;
    if (error == 0) {
      call = "hipGetDeviceCount";
      error = api().hipGetDeviceCount(&count);
    }
    if (error == 0 && count > 0) return {{}, count};
    return {{StatusCode::unavailable,
             fmt::format("no AMD device: {}, says {}{}",
                         error == 0 ? "none is found" : failure(call, error).message(), api_->path,
                         access_to_kernel_driver())}};
  }
  // HIP's errors do not tell a machine without a device from one whose device this process may not
  // use.
  static std::string access_to_kernel_driver() {
    constexpr const char* kInterface = "/dev/kfd";
    if (platform::kThisSystem != platform::System::linux) return "";
    std::error_code error;
    if (!platform::facts_of(kInterface, platform::Links::followed, error)) {
      return fmt::format(
          "; there is no {}: no AMD GPU, its kernel driver is not loaded (modprobe amdgpu), or it "
          "is not given to "
          "this container (--device=/dev/kfd --device=/dev/dri)",
          kInterface);
    }
    if (platform::can_use(kInterface)) return "";
    return fmt::format("; {} is not this user's to open (usermod -aG render $USER)", kInterface);
  }

  // What available() found. It is asked before anything else: a process that uses other devices
  // never opens the library.
  mutable MadeOnce<const Found> found_;
  mutable const hip::OpenApi* api_ = nullptr;
};

}  // namespace

const Driver& hip_driver() {
  constinit static MadeOnce<const HipDriver> made;
  return made.get();
}

}  // namespace fulmen::gpu
