// NVIDIA GPUs through libcuda. Kernels are loaded as libraries, which belong to no context:
// whatever context of the device is current at a launch is used, else the device's primary one
// (PyTorch's, and the runtime API's).
#include "gpu/driver.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "gpu/compile/toolchains/compiler.h"
#include "gpu/drivers/cuda/cuda_api.h"
#include "gpu/drivers/relaxed_capture.h"
#include "runtime/fork_safe.h"

namespace fulmen::gpu {
namespace {

using cuda::Api;

class CudaDriver final : public Driver {
 public:
  std::string_view name() const noexcept override { return "cuda"; }
  Status available() const override {
    const Result<const cuda::OpenApi*> opened = cuda::open_api();
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
    for (std::size_t n = 0; n < found_.made()->devices.size(); ++n)
      list.push_back(std::to_string(n));
    return list;
  }

  Result<DeviceProperties> properties(int device) const override {
    DeviceProperties p;
    char name[256] = {};
    int major = 0, minor = 0, cache = 0;
    const cuda::Device d = at(device).device;
    const auto attribute = [&](int& value, int which) {
      return api().cuDeviceGetAttribute(&value, which, d);
    };
    if (int error = api().cuDeviceGetName(name, sizeof(name), d); error != 0)
      return failure("cuDeviceGetName", error);
    if (int error = attribute(major, cuda::kComputeCapabilityMajor); error != 0)
      return failure("cuDeviceGetAttribute", error);
    if (int error = attribute(minor, cuda::kComputeCapabilityMinor); error != 0)
      return failure("cuDeviceGetAttribute", error);
    if (int error = attribute(p.lds_bytes, cuda::kSharedMemoryOptin); error != 0)
      return failure("cuDeviceGetAttribute", error);
    if (int error = attribute(p.compute_units, cuda::kMultiprocessors); error != 0)
      return failure("cuDeviceGetAttribute", error);
    if (int error = attribute(cache, cuda::kL2CacheBytes); error != 0)
      return failure("cuDeviceGetAttribute", error);
    if (int khz = 0; attribute(khz, cuda::kClockRate) == 0) p.clock_mhz = khz / 1000;
    if (int khz = 0; attribute(khz, cuda::kMemoryClockRate) == 0) p.memory_clock_mhz = khz / 1000;
    if (int error = api().cuDeviceTotalMem_v2(&p.memory_bytes, d); error != 0)
      return failure("cuDeviceTotalMem", error);
    p.name = name;
    // Instructions of sm_90a are there on every sm_90.
    p.arch = fmt::format("sm_{}{}{}", major, minor, major == 9 ? "a" : "");
    p.wave_size = 32;
    p.cache_bytes = static_cast<std::size_t>(cache);
    int version = 0;
    api().cuDriverGetVersion(&version);
    const Result<const Compiler*> nvrtc = nvrtc_compiler();
    p.software = fmt::format(
        "driver of CUDA {}.{}, {}", version / 1000, version % 1000 / 10,
        nvrtc.ok() ? nvrtc.value()->identity(p.arch) : "no NVRTC: " + nvrtc.status().message());
    return p;
  }
  Result<const Compiler*> compiler() const override { return nvrtc_compiler(); }

  Result<Module> load(int device, std::span<const std::byte> code) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const RelaxedCapture relaxed(api().cuThreadExchangeStreamCaptureMode);
    cuda::Library library = nullptr;
    if (int error = api().cuLibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr,
                                            nullptr, 0);
        error != 0) {
      return failure("cuLibraryLoadData", error);
    }
    return Module{library};
  }
  void unload(int device, Module module) const noexcept override {
    const Current current(*this, device);
    api().cuLibraryUnload(static_cast<cuda::Library>(module.handle));
  }
  Result<Function> function(int device, Module module, const char* name,
                            int lds_bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const RelaxedCapture relaxed(api().cuThreadExchangeStreamCaptureMode);
    cuda::KernelHandle kernel = nullptr;
    if (int error =
            api().cuLibraryGetKernel(&kernel, static_cast<cuda::Library>(module.handle), name);
        error != 0) {
      return failure(fmt::format("cuLibraryGetKernel of \"{}\"", name), error);
    }
    // Loads the code onto the device now. Loading is lazy by default, and a first launch in a
    // stream capture must not load.
    void* loaded = nullptr;
    if (int error = api().cuKernelGetFunction(&loaded, kernel); error != 0) {
      return failure(fmt::format("cuKernelGetFunction of \"{}\"", name), error);
    }
    if (int error = api().cuKernelSetAttribute(cuda::kFunctionMaxDynamicSharedBytes, lds_bytes,
                                               kernel, at(device).device);
        error != 0) {
      return failure(fmt::format("cuKernelSetAttribute to {} bytes of shared memory", lds_bytes),
                     error);
    }
    return Function{kernel};
  }

  Status encode_tensor_map(int device, const TensorMapShape& s,
                           kernels::TensorMap& map) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    constexpr unsigned kRank = 4, kColumns = 64;
    unsigned long long extents[kRank], strides[kRank - 1];
    for (unsigned n = 0; n < kRank; ++n) extents[n] = static_cast<unsigned long long>(s.extent[n]);
    for (unsigned n = 0; n + 1 < kRank; ++n)
      strides[n] = static_cast<unsigned long long>(s.stride[n]);
    const unsigned box[] = {kColumns, static_cast<unsigned>(s.box_rows),
                            static_cast<unsigned>(s.box_heads), 1},
                   ones[] = {1, 1, 1, 1};
    // Where a row is one box, 256 bytes would bring the next head's row, which is read at another
    // time.
    const int promotion = s.read_once && s.extent[0] <= kColumns ? cuda::kTensorMapPromote128
                                                                 : cuda::kTensorMapPromote256;
    const int error = api().cuTensorMapEncodeTiled(
        &map, s.half ? cuda::kTensorMapFloat16 : cuda::kTensorMapBfloat16, kRank,
        const_cast<void*>(s.data), extents, strides, box, ones, 0, cuda::kTensorMapSwizzle128,
        promotion, 0);
    return error == 0 ? Status{} : failure("cuTensorMapEncodeTiled", error);
  }

  Status launch(int device, Function function, const Launch& l) const override {
    if (l.workgroups < 1 || l.workgroups > INT32_MAX) {
      return {StatusCode::unsupported,
              fmt::format("grid is {} workgroups: 1 to {} are accepted", l.workgroups, INT32_MAX)};
    }
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    void* parameters[] = {const_cast<void*>(l.arguments)};
    cuda::LaunchAttribute early{cuda::kProgrammaticStreamSerialization, {}};
    early.value.programmatic_stream_serialization_allowed = 1;
    const cuda::LaunchConfig config{
        static_cast<unsigned>(l.workgroups),
        1,
        1,
        static_cast<unsigned>(l.workgroup_size),
        1,
        1,
        static_cast<unsigned>(l.lds_bytes),
        l.stream,
        &early,
        l.programmatic_launch && at(device).programmatic_launch ? 1U : 0U};
    const int error = api().cuLaunchKernelEx(
        &config, static_cast<cuda::KernelHandle>(function.handle), parameters, nullptr);
    return error == 0 ? Status{} : failure("cuLaunchKernelEx", error);
  }

  Result<void*> allocate(int device, std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    cuda::DevicePointer pointer = 0;
    const int error = api().cuMemAlloc_v2(&pointer, bytes);
    if (error == kOutOfMemory)
      return Status(StatusCode::out_of_memory,
                    fmt::format("no memory for {} bytes on cuda:{}", bytes, device));
    if (error != 0) return failure("cuMemAlloc", error);
    return std::bit_cast<void*>(pointer);
  }
  void free(int device, void* memory) const noexcept override {
    const Current current(*this, device);
    api().cuMemFree_v2(reinterpret_cast<cuda::DevicePointer>(memory));
  }
  Result<void*> allocate_in_stream(int device, void* stream, std::size_t bytes) const override {
    {
      const Current current(*this, device);
      cuda::DevicePointer pointer = 0;
      const bool can =
          current.ok() && api().cuMemAllocAsync != nullptr && api().cuMemFreeAsync != nullptr;
      if (can && api().cuMemAllocAsync(&pointer, bytes, stream) == 0)
        return std::bit_cast<void*>(pointer);
    }
    return allocate(device, bytes);  // a device without memory pools
  }
  void free_in_stream(int device, void* stream, void* memory) const noexcept override {
    {
      const Current current(*this, device);
      const auto pointer = reinterpret_cast<cuda::DevicePointer>(memory);
      if (api().cuMemFreeAsync != nullptr && api().cuMemFreeAsync(pointer, stream) == 0) return;
    }
    free(device, memory);  // memory of allocate(); free() waits for the work that uses it
  }
  Status copy(int device, void* to, const void* from, std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    // Waits for every stream: a copy on the default stream does not wait for non-blocking ones.
    if (int error = api().cuCtxSynchronize(); error != 0) return failure("cuCtxSynchronize", error);
    if (int error = api().cuMemcpy(pointer_of(to), pointer_of(from), bytes); error != 0)
      return failure("cuMemcpy", error);
    const int error = api().cuCtxSynchronize();
    return error == 0 ? Status{} : failure("cuCtxSynchronize", error);
  }
  Status fill(int device, void* to, unsigned char byte, std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    if (int error = api().cuMemsetD8_v2(pointer_of(to), byte, bytes); error != 0)
      return failure("cuMemsetD8", error);
    const int error = api().cuCtxSynchronize();
    return error == 0 ? Status{} : failure("cuCtxSynchronize", error);
  }
  Result<void*> create_stream(int device) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    cuda::Stream stream = nullptr;
    if (int error = api().cuStreamCreate(&stream, cuda::kStreamNonBlocking); error != 0)
      return failure("cuStreamCreate", error);
    return stream;
  }
  void destroy_stream(int device, void* stream) const noexcept override {
    const Current current(*this, device);
    api().cuStreamDestroy_v2(stream);
  }
  Status copy_in_stream(int device, void* stream, void* to, const void* from,
                        std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const int error = api().cuMemcpyAsync(pointer_of(to), pointer_of(from), bytes, stream);
    return error == 0 ? Status{} : failure("cuMemcpyAsync", error);
  }
  Status fill_in_stream(int device, void* stream, void* to, unsigned char byte,
                        std::size_t bytes) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const int error = api().cuMemsetD8Async(pointer_of(to), byte, bytes, stream);
    return error == 0 ? Status{} : failure("cuMemsetD8Async", error);
  }
  Status check_memory(int device, const void* memory) const override {
    unsigned type = 0;
    if (api().cuPointerGetAttribute(&type, cuda::kPointerMemoryType, pointer_of(memory)) != 0) {
      return {StatusCode::invalid_argument, "it is the host's ordinary memory, or freed"};
    }
    // Page-locked host memory is mapped into every device; managed memory says it is the device's.
    if (type == cuda::kMemoryHost) return {};
    int ordinal = 0;
    const int error =
        api().cuPointerGetAttribute(&ordinal, cuda::kPointerDeviceOrdinal, pointer_of(memory));
    if ((error == 0 && ordinal == device) || has_access(device, memory)) return {};
    if (error != 0) return failure("cuPointerGetAttribute", error);
    return Status{StatusCode::invalid_argument, fmt::format("it belongs to cuda:{}", ordinal)};
  }
  bool is_capturing(int device, void* stream) const noexcept override {
    const Current current(*this, device);
    int state = 0;  // CU_STREAM_CAPTURE_STATUS_NONE
    return current.ok() && api().cuStreamIsCapturing(stream, &state) == 0 && state != 0;
  }
  void beside_captures(const std::function<void()>& work) const override {
    const RelaxedCapture relaxed(api().cuThreadExchangeStreamCaptureMode);
    work();
  }
  Status synchronize(int device, void* stream) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const int error = api().cuStreamSynchronize(stream);
    return error == 0 ? Status{} : failure("cuStreamSynchronize", error);
  }

  Result<Event> create_event(int device) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    cuda::Event event = nullptr;
    if (int error = api().cuEventCreate(&event, 0); error != 0)
      return failure("cuEventCreate", error);
    return Event{event};
  }
  void destroy_event(int device, Event event) const noexcept override {
    const Current current(*this, device);
    api().cuEventDestroy_v2(static_cast<cuda::Event>(event.handle));
  }
  Status record(int device, Event event, void* stream) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    const int error = api().cuEventRecord(static_cast<cuda::Event>(event.handle), stream);
    return error == 0 ? Status{} : failure("cuEventRecord", error);
  }
  Result<float> elapsed(int device, Event begin, Event end) const override {
    const Current current(*this, device);
    if (!current.ok()) return current.status();
    if (int error = api().cuEventSynchronize(static_cast<cuda::Event>(end.handle)); error != 0) {
      return failure("cuEventSynchronize", error);
    }
    float milliseconds = 0;
    const int error =
        api().cuEventElapsedTime(&milliseconds, static_cast<cuda::Event>(begin.handle),
                                 static_cast<cuda::Event>(end.handle));
    if (error != 0) return failure("cuEventElapsedTime", error);
    return milliseconds;
  }

 private:
  // Returns true if the device may use memory of another device, or of none: a peer's, or memory
  // mapped for several devices (expandable segments).
  bool has_access(int device, const void* memory) const {
    const Current current(*this, device);
    unsigned long long flags = 0;  // the driver writes 32 bits, its documentation gives no size
    return current.ok() &&
           api().cuPointerGetAttribute(&flags, cuda::kPointerAccessFlags, pointer_of(memory)) ==
               0 &&
           flags != 0;
  }

  static constexpr int kOutOfMemory = 2;
  // Older ones cannot capture such a launch.
  static constexpr int kLeastVersionOfProgrammaticLaunch = 12030;
  struct Primary {  // a device's primary context, retained at first use
    cuda::Context context = nullptr;
    int error = 0;
  };
  struct DeviceState {
    cuda::Device device = 0;
    bool programmatic_launch = false;            // whether it takes programmatic dependent launches
    MadeOnce<const Primary>* primary = nullptr;  // for the rest of the process
  };
  struct Found {
    Status status;
    std::vector<DeviceState> devices{};
  };

  // Keeps a context of the device current while it lives: the caller's if it belongs to the device,
  // otherwise the primary one.
  class Current {
   public:
    Current(const CudaDriver& driver, int device) : driver_(driver) {
      cuda::Device current = -1;
      const DeviceState& state = driver.at(device);
      if (driver.api().cuCtxGetDevice(&current) == 0 && current == state.device) return;
      const Primary& primary = state.primary->get([&] {
        Primary retained;
        retained.error = driver.api().cuDevicePrimaryCtxRetain(&retained.context, state.device);
        return retained;
      });
      error_ =
          primary.error != 0 ? primary.error : driver.api().cuCtxPushCurrent_v2(primary.context);
      pushed_ = error_ == 0;
    }
    ~Current() {
      cuda::Context popped = nullptr;
      if (pushed_) driver_.api().cuCtxPopCurrent_v2(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    bool ok() const noexcept { return error_ == 0; }
    Status status() const {
      return ok() ? Status{} : driver_.failure("the device's context", error_);
    }

   private:
    const CudaDriver& driver_;
    int error_ = 0;
    bool pushed_ = false;
  };

  static cuda::DevicePointer pointer_of(const void* memory) {
    return reinterpret_cast<cuda::DevicePointer>(memory);
  }
  const Api& api() const { return api_->api; }
  const DeviceState& at(int device) const {
    return found_.made()->devices[static_cast<std::size_t>(device)];
  }
  Status failure(const std::string& call, int error) const {
    const char *name = nullptr, *text = nullptr;
    api().cuGetErrorName(error, &name);
    api().cuGetErrorString(error, &text);
    return {StatusCode::internal,
            fmt::format("{}: {} ({})", call, text != nullptr ? text : "unknown error",
                        name != nullptr ? name : std::to_string(error))};
  }

  Found find_devices() const {
    Found found;
    int count = 0;
    if (int error = api().cuInit(0); error != 0) return {unavailable(failure("cuInit", error))};
    int version = 0;
    api().cuDriverGetVersion(&version);
    if (int error = api().cuDeviceGetCount(&count); error != 0)
      return {unavailable(failure("cuDeviceGetCount", error))};
    if (count == 0)
      return {{StatusCode::unavailable, fmt::format("{} finds no NVIDIA device", api_->path)}};
    for (int n = 0; n < count; ++n) {
      DeviceState state;
      if (int error = api().cuDeviceGet(&state.device, n); error != 0)
        return {unavailable(failure("cuDeviceGet", error))};
      state.primary = new MadeOnce<const Primary>;
      int major = 0;
      if (int error =
              api().cuDeviceGetAttribute(&major, cuda::kComputeCapabilityMajor, state.device);
          error != 0) {
        return {unavailable(failure("cuDeviceGetAttribute", error))};
      }
      state.programmatic_launch = major >= 9 && version >= kLeastVersionOfProgrammaticLaunch;
      found.devices.push_back(state);
    }
    return found;
  }
  Status unavailable(const Status& status) const {
    return {StatusCode::unavailable,
            fmt::format("no NVIDIA device can be used: {}, says {}", status.message(), api_->path)};
  }

  // What available() found. It is asked before anything else: a process that uses other devices
  // never opens the library.
  mutable MadeOnce<const Found> found_;
  mutable const cuda::OpenApi* api_ = nullptr;
};

}  // namespace

const Driver& cuda_driver() {
  constinit static MadeOnce<const CudaDriver> made;
  return made.get();
}

}  // namespace fulmen::gpu
