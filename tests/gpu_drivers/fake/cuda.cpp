// libcuda.so.1 without a GPU: two devices, an sm_90 and an sm_80. Code is what the fake NVRTC
// makes.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "gpu_drivers/fake/fake_cubin.h"
#include "gpu_drivers/fake/fake_gpu.h"

namespace {

using fulmen::fake::state;

using Error = int;
constexpr Error kInvalidValue = 1, kInvalidContext = 201, kInvalidImage = 200,
                kNoBinaryForGpu = 209, kNotFound = 500;
constexpr unsigned kDefaultShared = 48 * 1024, kMaxShared = 227 * 1024;

struct Device {
  const char* name;
  int major, minor;
};
constexpr std::array kDevices{Device{"NVIDIA H200", 9, 0}, Device{"NVIDIA A100", 8, 0}};

struct Context {
  int device;
  bool primary;
};
std::array<Context, 2> primaries{{{0, true}, {1, true}}};
std::array<int, 2> retained{};

// Kept after their destruction, so that a later use is detected.
struct Kernel;
struct Library {
  bool alive = true;
  fulmen::fake::FakeCubin cubin;
  std::vector<std::unique_ptr<Kernel>> kernels;
};
struct Kernel {
  const Library* library;
  std::array<unsigned, 2> shared{kDefaultShared, kDefaultShared};  // allowed, a device
  bool loaded = false;
};
std::vector<std::unique_ptr<Library>>& libraries() {
  static auto* const kLibraries = new std::vector<std::unique_ptr<Library>>;
  return *kLibraries;
}

// Streams that cuStreamCreate made.
std::set<void*>& own_streams() {
  static auto* const kStreams = new std::set<void*>;
  return *kStreams;
}

bool initialised = false;

std::vector<Context*>& contexts() {
  thread_local std::vector<Context*> stack;
  return stack;
}

Error enter(const char* call, bool breaks_capture = true) {
  if (!initialised) state().complain(std::string(call) + " before cuInit");
  return state().enter(call, breaks_capture);
}
// The same for calls that work on the current context.
Error enter_context(const char* call, bool breaks_capture = true) {
  const Error error = enter(call, breaks_capture);
  if (!contexts().empty()) return error;
  state().complain(std::string(call) + " without a current context");
  return kInvalidContext;
}

void* pointer(unsigned long long address) { return reinterpret_cast<void*>(address); }

bool runs_on(const std::string& arch, const Device& device) {
  const std::string name = "sm_" + std::to_string(device.major) + std::to_string(device.minor);
  return arch == name || arch == name + "a";
}

}  // namespace

FULMEN_FAKE_EXPORT Error cuInit(unsigned /*flags*/) {
  const std::lock_guard lock(state().mutex);
  initialised = true;
  // As without a usable GPU: also for a process that cannot ask the library before its driver does.
  if (const char* error = std::getenv("FULMEN_FAKE_CUDA_INIT")) return std::atoi(error);
  return state().enter("cuInit");
}
FULMEN_FAKE_EXPORT Error cuDriverGetVersion(int* version) {
  const std::lock_guard lock(state().mutex);
  *version = 13000;
  return state().enter("cuDriverGetVersion");
}
FULMEN_FAKE_EXPORT Error cuGetErrorName(Error error, const char** text) {
  switch (error) {
    case kInvalidValue:
      *text = "CUDA_ERROR_INVALID_VALUE";
      return 0;
    case 2:
      *text = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case 100:
      *text = "CUDA_ERROR_NO_DEVICE";
      return 0;
    case kNoBinaryForGpu:
      *text = "CUDA_ERROR_NO_BINARY_FOR_GPU";
      return 0;
    case kNotFound:
      *text = "CUDA_ERROR_NOT_FOUND";
      return 0;
    case 700:
      *text = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return 0;
    default:
      *text = nullptr;
      return kInvalidValue;
  }
}
FULMEN_FAKE_EXPORT Error cuGetErrorString(Error error, const char** text) {
  switch (error) {
    case kInvalidValue:
      *text = "invalid argument";
      return 0;
    case 2:
      *text = "out of memory";
      return 0;
    case 100:
      *text = "no CUDA-capable device is detected";
      return 0;
    case kNoBinaryForGpu:
      *text = "no kernel image is available for execution on the device";
      return 0;
    case kNotFound:
      *text = "named symbol not found";
      return 0;
    case 700:
      *text = "an illegal memory access was encountered";
      return 0;
    default:
      *text = nullptr;
      return kInvalidValue;
  }
}

FULMEN_FAKE_EXPORT Error cuDeviceGetCount(int* count) {
  const std::lock_guard lock(state().mutex);
  *count = static_cast<int>(kDevices.size());
  return enter("cuDeviceGetCount");
}
FULMEN_FAKE_EXPORT Error cuDeviceGet(int* device, int ordinal) {
  const std::lock_guard lock(state().mutex);
  *device = ordinal;
  return enter("cuDeviceGet");
}
FULMEN_FAKE_EXPORT Error cuDeviceGetName(char* name, int bytes, int device) {
  const std::lock_guard lock(state().mutex);
  const char* text = kDevices.at(static_cast<std::size_t>(device)).name;
  std::memcpy(name, text, std::min(static_cast<std::size_t>(bytes), std::strlen(text) + 1));
  return enter("cuDeviceGetName");
}
FULMEN_FAKE_EXPORT Error cuDeviceGetAttribute(int* value, int attribute, int device) {
  const std::lock_guard lock(state().mutex);
  const Device& d = kDevices.at(static_cast<std::size_t>(device));
  switch (attribute) {
    case 10:
      *value = 32;
      break;
    case 13:
      *value = 1'980'000;
      break;  // CU_DEVICE_ATTRIBUTE_CLOCK_RATE
    case 36:
      *value = 2'619'000;
      break;  // CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE
    case 16:
      *value = 132;
      break;
    case 38:
      *value = 50 << 20;
      break;
    case 75:
      *value = d.major;
      break;
    case 76:
      *value = d.minor;
      break;
    case 97:
      *value = static_cast<int>(kMaxShared);
      break;
    default:
      state().complain("an attribute that no driver asks for: " + std::to_string(attribute));
      return kInvalidValue;
  }
  return enter("cuDeviceGetAttribute");
}
FULMEN_FAKE_EXPORT Error cuDeviceTotalMem_v2(std::size_t* bytes, int /*device*/) {
  const std::lock_guard lock(state().mutex);
  *bytes = std::size_t{141} << 30U;
  return enter("cuDeviceTotalMem");
}

FULMEN_FAKE_EXPORT Error cuDevicePrimaryCtxRetain(Context** context, int device) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuDevicePrimaryCtxRetain"); error != 0) return error;
  const auto n = static_cast<std::size_t>(device);
  if (++retained[n] > 1) state().complain("a primary context is retained again");
  *context = &primaries[n];
  return 0;
}
// For tests: a context as an application makes it.
FULMEN_FAKE_EXPORT Error cuCtxCreate_v2(Context** context, unsigned /*flags*/, int device) {
  const std::lock_guard lock(state().mutex);
  *context = new Context{device, false};
  contexts().push_back(*context);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuCtxDestroy_v2(Context* context) {
  const std::lock_guard lock(state().mutex);
  if (contexts().empty() || contexts().back() != context)
    state().complain("a context that is not current is destroyed");
  contexts().pop_back();
  delete context;
  return 0;
}
FULMEN_FAKE_EXPORT Error cuCtxGetCurrent(Context** context) {
  const std::lock_guard lock(state().mutex);
  *context = contexts().empty() ? nullptr : contexts().back();
  return enter("cuCtxGetCurrent", false);
}
FULMEN_FAKE_EXPORT Error cuCtxGetDevice(int* device) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuCtxGetDevice", false); error != 0) return error;
  if (contexts().empty()) return kInvalidContext;
  *device = contexts().back()->device;
  return 0;
}
FULMEN_FAKE_EXPORT Error cuCtxPushCurrent_v2(Context* context) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuCtxPushCurrent", false); error != 0) return error;
  contexts().push_back(context);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuCtxPopCurrent_v2(Context** context) {
  const std::lock_guard lock(state().mutex);
  if (contexts().empty()) return kInvalidContext;
  *context = contexts().back();
  contexts().pop_back();
  return enter("cuCtxPopCurrent", false);
}
FULMEN_FAKE_EXPORT Error cuCtxSynchronize() {
  const std::lock_guard lock(state().mutex);
  return enter_context("cuCtxSynchronize");
}

FULMEN_FAKE_EXPORT Error cuLibraryLoadData(Library** library, const void* code,
                                           const int* /*jit_options*/, void** /*jit_values*/,
                                           unsigned jit_count, const int* /*options*/,
                                           void** /*values*/, unsigned count) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuLibraryLoadData", !state().relaxed); error != 0) return error;
  if (jit_count != 0 || count != 0)
    state().complain("cuLibraryLoadData with options that are not there");
  auto loaded = std::make_unique<Library>();
  std::memcpy(&loaded->cubin, code, sizeof(loaded->cubin));
  if (std::memcmp(loaded->cubin.magic, fulmen::fake::kFakeCubinMagic,
                  sizeof(loaded->cubin.magic)) != 0)
    return kInvalidImage;
  ++state().modules;
  *library = loaded.get();
  libraries().push_back(std::move(loaded));
  return 0;
}
FULMEN_FAKE_EXPORT Error cuLibraryUnload(Library* library) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuLibraryUnload"); error != 0) return error;
  if (!library->alive) state().complain("a library is unloaded twice");
  library->alive = false;
  --state().modules;
  return 0;
}
FULMEN_FAKE_EXPORT Error cuLibraryGetKernel(Kernel** kernel, Library* library, const char* name) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuLibraryGetKernel", !state().relaxed); error != 0) return error;
  if (!library->alive) state().complain("a kernel of an unloaded library");
  if (std::strcmp(name, library->cubin.kernel) != 0) return kNotFound;
  library->kernels.push_back(std::make_unique<Kernel>(Kernel{.library = library}));
  *kernel = library->kernels.back().get();
  return 0;
}
// With lazy loading, CUDA's default since 12.2, this is what moves code to the current context's
// device.
FULMEN_FAKE_EXPORT Error cuKernelGetFunction(Kernel** function, Kernel* kernel) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuKernelGetFunction", !state().relaxed); error != 0)
    return error;
  if (!runs_on(kernel->library->cubin.arch,
               kDevices.at(static_cast<std::size_t>(contexts().back()->device))))
    return kNoBinaryForGpu;
  kernel->loaded = true;
  *function = kernel;
  return 0;
}
FULMEN_FAKE_EXPORT Error cuKernelSetAttribute(int attribute, int value, Kernel* kernel,
                                              int device) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuKernelSetAttribute", !state().relaxed); error != 0) return error;
  if (attribute != 8)
    state().complain("a kernel's attribute that no driver sets: " + std::to_string(attribute));
  if (value < 0 || static_cast<unsigned>(value) > kMaxShared) return kInvalidValue;
  kernel->shared.at(static_cast<std::size_t>(device)) =
      std::max(kDefaultShared, static_cast<unsigned>(value));
  return 0;
}
// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int number;
  } value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};
FULMEN_FAKE_EXPORT Error cuLaunchKernelEx(const LaunchConfig* config, Kernel* kernel,
                                          void** parameters, void** extra) {
  const auto [grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, attributes,
              attribute_count] = *config;
  const std::lock_guard lock(state().mutex);
  auto& s = state();
  if (const Error error = enter_context("cuLaunchKernelEx", false); error != 0) return error;
  const Context& context = *contexts().back();
  const auto device = static_cast<std::size_t>(context.device);
  if (!kernel->library->alive) s.complain("a launch after its library was unloaded");
  if (!kernel->loaded && s.capturing) s.complain("code is loaded during a stream capture");
  if (!runs_on(kernel->library->cubin.arch, kDevices.at(device))) return kNoBinaryForGpu;
  if (grid_x == 0 || grid_x > INT32_MAX || grid_y != 1 || grid_z != 1 || block_y != 1 ||
      block_z != 1)
    return kInvalidValue;
  if (block_x == 0 || block_x > 1024) return kInvalidValue;
  if (shared > kernel->shared.at(device)) {
    s.complain("a launch with more shared memory than its kernel was allowed");
    return kInvalidValue;
  }
  if (parameters == nullptr || parameters[0] == nullptr || extra != nullptr) {
    s.complain("a launch whose arguments are no list of pointers");
    return kInvalidValue;
  }
  const bool early =
      attribute_count == 1 && attributes[0].id == 6 && attributes[0].value.number == 1;
  if (attribute_count > (early ? 1U : 0U))
    s.complain("a launch with attributes that no driver sets");
  if (early && kDevices.at(device).major < 9)
    s.complain("programmatic stream serialization before sm_90");
  const auto* argument = static_cast<const std::byte*>(parameters[0]);
  s.launches.push_back({kernel->library->cubin.kernel,
                        context.device,
                        &context,
                        grid_x,
                        block_x,
                        shared,
                        stream,
                        {argument, argument + kernel->library->cubin.argument_bytes},
                        early});
  return 0;
}

FULMEN_FAKE_EXPORT Error cuMemAlloc_v2(unsigned long long* memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuMemAlloc"); error != 0) return error;
  *memory =
      reinterpret_cast<unsigned long long>(state().allocate(bytes, contexts().back()->device));
  return 0;
}
FULMEN_FAKE_EXPORT Error cuMemFree_v2(unsigned long long memory) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuMemFree"); error != 0) return error;
  state().free("cuMemFree", pointer(memory));
  return 0;
}
// It computes on the host, so a capture may continue. The map stores the address, where tests can
// read it.
FULMEN_FAKE_EXPORT Error cuTensorMapEncodeTiled(void* map, int dtype, unsigned rank, void* memory,
                                                const unsigned long long* extents,
                                                const unsigned long long* strides,
                                                const unsigned* box,
                                                const unsigned* element_strides, int interleave,
                                                int swizzle, int promotion, int fill) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuTensorMapEncodeTiled", false); error != 0) return error;
  constexpr unsigned kRank = 4, kMostBox = 256, kColumns = 64;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0 ||
      reinterpret_cast<std::uintptr_t>(memory) % 16 != 0)
    return kInvalidValue;
  if (rank != kRank || (dtype != 6 && dtype != 9) || interleave != 0 || swizzle != 3 || fill != 0)
    return kInvalidValue;
  // 256 or 128 bytes.
  if (promotion != 3 && (promotion != 2 || extents[0] > kColumns)) return kInvalidValue;
  for (unsigned n = 0; n < rank; ++n) {
    if (extents[n] == 0 || box[n] == 0 || box[n] > kMostBox || element_strides[n] != 1)
      return kInvalidValue;
    if (n + 1 < rank && (strides[n] == 0 || strides[n] % 16 != 0)) return kInvalidValue;
  }
  if (box[0] != kColumns || box[3] != 1) return kInvalidValue;
  std::memcpy(map, &memory, sizeof(memory));
  return 0;
}
FULMEN_FAKE_EXPORT Error cuMemcpy(unsigned long long to, unsigned long long from,
                                  std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuMemcpy"); error != 0) return error;
  state().check_range("cuMemcpy", pointer(to), bytes);
  state().check_range("cuMemcpy", pointer(from), bytes);
  std::memmove(pointer(to), pointer(from), bytes);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuMemsetD8_v2(unsigned long long to, unsigned char byte,
                                       std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuMemsetD8"); error != 0) return error;
  if (state().find(pointer(to)) == nullptr) return kInvalidValue;
  state().check_range("cuMemsetD8", pointer(to), bytes);
  std::memset(pointer(to), byte, bytes);
  return 0;
}
// A separate stream: another stream's capture may continue beside its work, if the thread's capture
// mode is relaxed where memory may be paged.
FULMEN_FAKE_EXPORT Error cuStreamCreate(void** stream, unsigned flags) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuStreamCreate", !state().relaxed); error != 0)
    return error;
  // CU_STREAM_NON_BLOCKING
  if (flags != 1) state().complain("a stream that waits for the default one");
  *stream = new int(contexts().back()->device);
  own_streams().insert(*stream);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuStreamDestroy_v2(void* stream) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuStreamDestroy", !state().relaxed); error != 0)
    return error;
  if (own_streams().erase(stream) == 0)
    state().complain("a stream that was not created is destroyed");
  delete static_cast<int*>(stream);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuMemcpyAsync(unsigned long long to, unsigned long long from,
                                       std::size_t bytes, void* stream) {
  const std::lock_guard lock(state().mutex);
  if (const Error error =
          enter_context("cuMemcpyAsync", !state().relaxed || own_streams().count(stream) == 0);
      error != 0)
    return error;
  state().check_range("cuMemcpyAsync", pointer(to), bytes);
  state().check_range("cuMemcpyAsync", pointer(from), bytes);
  std::memmove(pointer(to), pointer(from), bytes);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuMemsetD8Async(unsigned long long to, unsigned char byte,
                                         std::size_t bytes, void* stream) {
  const std::lock_guard lock(state().mutex);
  if (const Error error =
          enter_context("cuMemsetD8Async", !state().relaxed || own_streams().count(stream) == 0);
      error != 0)
    return error;
  if (state().find(pointer(to)) == nullptr) return kInvalidValue;
  state().check_range("cuMemsetD8Async", pointer(to), bytes);
  std::memset(pointer(to), byte, bytes);
  return 0;
}
FULMEN_FAKE_EXPORT Error cuPointerGetAttribute(void* value, int attribute,
                                               unsigned long long address) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("cuPointerGetAttribute", false); error != 0) return error;
  const fulmen::fake::Allocation* allocation = state().find(pointer(address));
  if (allocation == nullptr) return kInvalidValue;
  switch (attribute) {
    case 2:
      *static_cast<unsigned*>(value) = 2;
      return 0;  // CU_MEMORYTYPE_DEVICE
    case 9:
      *static_cast<int*>(value) = allocation->device;
      return 0;  // its ordinal
    case 16:
      // CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, of the current context's device:
      // CU_MEM_ACCESS_FLAGS_PROT_READWRITE or none
      if (contexts().empty()) return kInvalidValue;
      *static_cast<unsigned*>(value) =
          contexts().back()->device == allocation->device ||
                  (allocation->other_access >> static_cast<unsigned>(contexts().back()->device) &
                   1U) != 0
              ? 3
              : 0;
      return 0;
    default:
      state().complain("a pointer's attribute that no driver asks for: " +
                       std::to_string(attribute));
      return kInvalidValue;
  }
}
// CU_STREAM_CAPTURE_MODE_RELAXED is 2; threads begin with 0, global.
FULMEN_FAKE_EXPORT Error cuThreadExchangeStreamCaptureMode(int* mode) {
  const std::lock_guard lock(state().mutex);
  const int before = state().relaxed ? 2 : 0;
  state().relaxed = *mode == 2;
  *mode = before;
  return enter("cuThreadExchangeStreamCaptureMode", false);
}
FULMEN_FAKE_EXPORT Error cuStreamIsCapturing(void* /*stream*/, int* capturing) {
  const std::lock_guard lock(state().mutex);
  *capturing = state().capturing ? 1 : 0;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
  return enter_context("cuStreamIsCapturing", false);
}
FULMEN_FAKE_EXPORT Error cuStreamSynchronize(void* stream) {
  const std::lock_guard lock(state().mutex);
  return enter_context("cuStreamSynchronize", !state().relaxed || own_streams().count(stream) == 0);
}

FULMEN_FAKE_EXPORT Error cuEventCreate(int** event, unsigned /*flags*/) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuEventCreate"); error != 0) return error;
  *event = new int(contexts().back()->device);
  ++state().events;
  return 0;
}
FULMEN_FAKE_EXPORT Error cuEventDestroy_v2(int* event) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuEventDestroy"); error != 0) return error;
  delete event;
  --state().events;
  return 0;
}
FULMEN_FAKE_EXPORT Error cuEventRecord(const int* event, void* /*stream*/) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter_context("cuEventRecord"); error != 0) return error;
  if (*event != contexts().back()->device) state().complain("an event of another device");
  return 0;
}
FULMEN_FAKE_EXPORT Error cuEventSynchronize(int* /*event*/) {
  const std::lock_guard lock(state().mutex);
  return enter("cuEventSynchronize");
}
FULMEN_FAKE_EXPORT Error cuEventElapsedTime(float* milliseconds, int* /*begin*/, int* /*end*/) {
  const std::lock_guard lock(state().mutex);
  *milliseconds = 0.5F;
  return enter("cuEventElapsedTime");
}
