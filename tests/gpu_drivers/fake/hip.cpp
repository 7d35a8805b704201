// libamdhip64.so.7 without a GPU: two devices, a gfx1100 and a gfx942. execution.h says what a
// launch does.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "gpu_drivers/fake/code_object.h"
#include "gpu_drivers/fake/execution.h"
#include "gpu_drivers/fake/fake_gpu.h"

namespace {

using fulmen::fake::CodeObjectKernel;
using fulmen::fake::state;

using Error = int;
constexpr Error kInvalidValue = 1, kInvalidDevice = 101, kInvalidImage = 200, kNoBinaryForGpu = 209,
                kNotFound = 500, kLaunchFailure = 719;
constexpr unsigned kMaxLds = 64 * 1024;

struct Device {
  const char* name;
  const char* arch;  // as HIP names it, features and all
  int wave, units;
};
constexpr std::array kDevices{Device{"AMD Radeon RX 7900 XTX", "gfx1100", 32, 96},
                              Device{"AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 64, 304}};

// Modules and functions are kept after their destruction, so that a later use is detected.
struct Module;
struct Function {
  Module* module = nullptr;
  CodeObjectKernel kernel;
};
struct Module {
  int device = 0;
  bool alive = true;
  fulmen::fake::CodeObject code;
  std::unique_ptr<fulmen::fake::Executable> executable;
  std::vector<std::unique_ptr<Function>> functions;
};
std::vector<std::unique_ptr<Module>>& modules() {
  static auto* const kModules = new std::vector<std::unique_ptr<Module>>;
  return *kModules;
}

bool initialised = false;
thread_local int current = 0;

Error enter(const char* call, bool breaks_capture = true) {
  if (!initialised) state().complain(std::string(call) + " before hipInit");
  const Error error = state().enter(call, breaks_capture);
  if (error != 0) state().last_error = error;
  return error;
}

void copy_text(char* to, const char* text, std::size_t bytes) {
  std::memcpy(to, text, std::min(bytes, std::strlen(text) + 1));
}

// Checks an argument block and a grid for this kernel.
Error check_launch(const Function& f, const unsigned (&grid)[3], const unsigned (&block)[3],
                   unsigned shared, void** parameters, void** extra) {
  auto& s = state();
  const auto marker = [&](int n) { return reinterpret_cast<std::uintptr_t>(extra[n]); };
  if (!f.module->alive) s.complain("a launch after its module was unloaded");
  if (f.module->device != current) s.complain("a launch on another device than its module's");
  if (parameters != nullptr || extra == nullptr || marker(0) != 1 || marker(2) != 2 ||
      marker(4) != 3) {
    s.complain("a launch whose arguments are not one buffer");
    return kInvalidValue;
  }
  if (const std::size_t bytes = *static_cast<std::size_t*>(extra[3]);
      bytes != f.kernel.argument_bytes) {
    s.complain("a launch with " + std::to_string(bytes) +
               " bytes of arguments; the code object wants " +
               std::to_string(f.kernel.argument_bytes));
    return kInvalidValue;
  }
  if (grid[0] == 0 || grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1)
    s.complain("a launch whose grid is not one-dimensional");
  if (static_cast<std::uint64_t>(grid[0]) * block[0] > UINT32_MAX) return kInvalidValue;
  if (block[0] == 0 || block[0] > f.kernel.max_workgroup) {
    s.complain("a workgroup of " + std::to_string(block[0]) + " lanes; the code object allows " +
               std::to_string(f.kernel.max_workgroup));
    return kInvalidValue;
  }
  if (shared + f.kernel.lds_bytes > kMaxLds) {
    s.complain("a launch with more LDS than a workgroup can have");
    return kInvalidValue;
  }
  return 0;
}

}  // namespace

FULMEN_FAKE_EXPORT Error hipInit(unsigned /*flags*/) {
  const std::lock_guard lock(state().mutex);
  initialised = true;
  state().prints = fulmen::fake::kExecutes;
  return state().enter("hipInit");
}
FULMEN_FAKE_EXPORT Error hipGetLastError() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().last_error, 0);
}
FULMEN_FAKE_EXPORT const char* hipGetErrorName(Error error) {
  switch (error) {
    case 0:
      return "hipSuccess";
    case kInvalidValue:
      return "hipErrorInvalidValue";
    case 2:
      return "hipErrorOutOfMemory";
    case kNoBinaryForGpu:
      return "hipErrorNoBinaryForGpu";
    case kNotFound:
      return "hipErrorNotFound";
    default:
      return "hipErrorUnknown";
  }
}
FULMEN_FAKE_EXPORT const char* hipGetErrorString(Error error) {
  switch (error) {
    case 0:
      return "no error";
    case kInvalidValue:
      return "invalid argument";
    case 2:
      return "out of memory";
    case kNoBinaryForGpu:
      return "no kernel image is available for execution on the device";
    case kNotFound:
      return "named symbol not found";
    default:
      return "unknown error";
  }
}

FULMEN_FAKE_EXPORT Error hipGetDeviceCount(int* count) {
  const std::lock_guard lock(state().mutex);
  *count = static_cast<int>(kDevices.size());
  return enter("hipGetDeviceCount");
}
FULMEN_FAKE_EXPORT Error hipRuntimeGetVersion(int* version) {
  const std::lock_guard lock(state().mutex);
  *version = 70051831;  // 7.0.51831
  return enter("hipRuntimeGetVersion");
}
FULMEN_FAKE_EXPORT Error hipGetDevice(int* device) {
  const std::lock_guard lock(state().mutex);
  *device = current;
  return enter("hipGetDevice", false);
}
FULMEN_FAKE_EXPORT Error hipSetDevice(int device) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipSetDevice", false); error != 0) return error;
  if (device < 0 || static_cast<std::size_t>(device) >= kDevices.size()) return kInvalidDevice;
  current = device;
  return 0;
}
FULMEN_FAKE_EXPORT Error hipDeviceGetName(char* name, int bytes, int device) {
  const std::lock_guard lock(state().mutex);
  copy_text(name, kDevices.at(static_cast<std::size_t>(device)).name,
            static_cast<std::size_t>(bytes));
  return enter("hipDeviceGetName");
}
FULMEN_FAKE_EXPORT Error hipDeviceTotalMem(std::size_t* bytes, int /*device*/) {
  const std::lock_guard lock(state().mutex);
  *bytes = std::size_t{24} << 30U;
  return enter("hipDeviceTotalMem");
}
FULMEN_FAKE_EXPORT Error hipDeviceGetAttribute(int* value, int attribute, int device) {
  const std::lock_guard lock(state().mutex);
  const Device& d = kDevices.at(static_cast<std::size_t>(device));
  switch (attribute) {
    case 5:
      *value = 2'500'000;
      break;  // hipDeviceAttributeClockRate
    case 60:
      *value = 1'250'000;
      break;  // hipDeviceAttributeMemoryClockRate
    case 19:
      *value = 6 << 20;
      break;  // hipDeviceAttributeL2CacheSize
    case 63:
      *value = d.units;
      break;  // hipDeviceAttributeMultiprocessorCount
    case 74:
      *value = static_cast<int>(kMaxLds);
      break;  // hipDeviceAttributeMaxSharedMemoryPerBlock
    case 87:
      *value = d.wave;
      break;  // hipDeviceAttributeWarpSize
    default:
      state().complain("an attribute that no driver asks for: " + std::to_string(attribute));
      return kInvalidValue;
  }
  return enter("hipDeviceGetAttribute");
}
FULMEN_FAKE_EXPORT Error hipGetDevicePropertiesR0600(void* properties, int device) {
  const std::lock_guard lock(state().mutex);
  const Device& d = kDevices.at(static_cast<std::size_t>(device));
  auto* bytes = static_cast<char*>(properties);
  std::memset(bytes, 0, 1472);
  copy_text(bytes, d.name, 256);
  copy_text(bytes + 1160, d.arch, 256);  // gcnArchName in ROCm 6 and 7
  return enter("hipGetDevicePropertiesR0600");
}

FULMEN_FAKE_EXPORT Error hipModuleLoadData(Module** module, const void* image) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipModuleLoadData", !state().relaxed); error != 0) return error;
  auto loaded = std::make_unique<Module>();
  loaded->device = current;
  loaded->code = fulmen::fake::read_code_object(image);
  if (!loaded->code.error.empty()) return kInvalidImage;
  // EI_ABIVERSION 2 is version 4. HIP before 6.3 knows no version above 5, ROCm 5.0 and 5.1 none
  // above 4.
  if (static_cast<const unsigned char*>(image)[8] != 2)
    state().complain("a code object that some release of HIP cannot load");
  const std::string arch = kDevices.at(static_cast<std::size_t>(current)).arch;
  if (arch.substr(0, arch.find(':')) != loaded->code.chip) return kNoBinaryForGpu;
  std::string error;
  loaded->executable =
      fulmen::fake::make_executable(image, loaded->code.bytes, loaded->code.chip, error);
  if (loaded->executable == nullptr) {
    state().complain(error);
    return kInvalidImage;
  }
  ++state().modules;
  *module = loaded.get();
  modules().push_back(std::move(loaded));
  return 0;
}
FULMEN_FAKE_EXPORT Error hipModuleUnload(Module* module) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipModuleUnload"); error != 0) return error;
  if (!module->alive) state().complain("a module is unloaded twice");
  module->alive = false;
  --state().modules;
  return 0;
}
FULMEN_FAKE_EXPORT Error hipModuleGetFunction(Function** function, Module* module,
                                              const char* name) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipModuleGetFunction", !state().relaxed); error != 0) return error;
  if (!module->alive) state().complain("a function of an unloaded module");
  const auto kernel = std::find_if(module->code.kernels.begin(), module->code.kernels.end(),
                                   [&](const CodeObjectKernel& k) { return k.name == name; });
  if (kernel == module->code.kernels.end()) return kNotFound;
  module->functions.push_back(std::make_unique<Function>(Function{module, *kernel}));
  *function = module->functions.back().get();
  return 0;
}
FULMEN_FAKE_EXPORT Error hipModuleLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y,
                                               unsigned grid_z, unsigned block_x, unsigned block_y,
                                               unsigned block_z, unsigned shared, void* stream,
                                               void** parameters, void** extra) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipModuleLaunchKernel", false); error != 0) return error;
  if (const Error error = check_launch(*function, {grid_x, grid_y, grid_z},
                                       {block_x, block_y, block_z}, shared, parameters, extra);
      error != 0) {
    return error;
  }
  const auto* block = static_cast<const std::byte*>(extra[1]);
  state().launches.push_back({function->kernel.name,
                              current,
                              nullptr,
                              grid_x,
                              block_x,
                              shared,
                              stream,
                              {block, block + function->kernel.argument_bytes}});
  if (const std::string error = function->module->executable->run(state().launches.back());
      !error.empty()) {
    state().complain(error);
    return state().last_error = kLaunchFailure;
  }
  return 0;
}

FULMEN_FAKE_EXPORT Error hipMalloc(void** memory, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipMalloc"); error != 0) return error;
  *memory = state().allocate(bytes, current);
  return 0;
}
FULMEN_FAKE_EXPORT Error hipFree(void* memory) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipFree"); error != 0) return error;
  state().free("hipFree", memory);
  return 0;
}
FULMEN_FAKE_EXPORT Error hipMemcpy(void* to, const void* from, std::size_t bytes, int kind) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipMemcpy"); error != 0) return error;
  if (kind != 4) state().complain("hipMemcpy of a kind other than hipMemcpyDefault");
  state().check_range("hipMemcpy", to, bytes);
  state().check_range("hipMemcpy", from, bytes);
  std::memmove(to, from, bytes);
  return 0;
}
FULMEN_FAKE_EXPORT Error hipMemset(void* to, int byte, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipMemset"); error != 0) return error;
  if (state().find(to) == nullptr) return kInvalidValue;
  state().check_range("hipMemset", to, bytes);
  std::memset(to, byte, bytes);
  return 0;
}
FULMEN_FAKE_EXPORT Error hipDeviceSynchronize() {
  const std::lock_guard lock(state().mutex);
  return enter("hipDeviceSynchronize");
}
// hipStreamCaptureModeRelaxed is 2; threads begin with 0, global.
FULMEN_FAKE_EXPORT Error hipThreadExchangeStreamCaptureMode(int* mode) {
  const std::lock_guard lock(state().mutex);
  const int before = state().relaxed ? 2 : 0;
  state().relaxed = *mode == 2;
  *mode = before;
  return enter("hipThreadExchangeStreamCaptureMode", false);
}
FULMEN_FAKE_EXPORT Error hipStreamIsCapturing(void* /*stream*/, int* capturing) {
  const std::lock_guard lock(state().mutex);
  *capturing = state().capturing ? 1 : 0;  // hipStreamCaptureStatusActive
  return enter("hipStreamIsCapturing", false);
}
FULMEN_FAKE_EXPORT Error hipStreamSynchronize(void* /*stream*/) {
  const std::lock_guard lock(state().mutex);
  return enter("hipStreamSynchronize");
}

struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
};
FULMEN_FAKE_EXPORT Error hipPointerGetAttributes(PointerAttributes* attributes,
                                                 const void* pointer) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipPointerGetAttributes", false); error != 0) return error;
  if (pointer == state().registered) {  // page-locked: hipMemoryTypeHost is 1
    *attributes = {1, 0, state().registered_at, state().registered, 0, 0};
    return 0;
  }
  const fulmen::fake::Allocation* allocation = state().find(pointer);
  // As ROCm 6 and 7 do: ordinary memory is no error, but of no type (0) and no device (-2). Device
  // memory is type 2.
  const bool unknown = allocation == nullptr || allocation->device < 0;
  *attributes = {unknown ? 0 : 2,
                 unknown ? -2 : allocation->device,
                 unknown ? nullptr : const_cast<void*>(pointer),
                 nullptr,
                 0,
                 0};
  return 0;
}

struct MemoryLocation {
  int type, id;
};
FULMEN_FAKE_EXPORT Error hipMemGetAccess(unsigned long long* flags, const MemoryLocation* location,
                                         void* memory) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipMemGetAccess", false); error != 0) return error;
  const fulmen::fake::Allocation* allocation = state().find(memory);
  if (location->type != 1) state().complain("hipMemGetAccess of something other than a device");
  if (allocation == nullptr || !allocation->mapped) {
    state().last_error = kInvalidValue;
    return kInvalidValue;
  }
  *flags = (allocation->other_access >> static_cast<unsigned>(location->id) & 1U) != 0 ? 3 : 0;
  return 0;
}

struct Event {
  int device = 0;
  double at_ms = 0;
};
FULMEN_FAKE_EXPORT Error hipEventCreate(Event** event) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipEventCreate"); error != 0) return error;
  *event = new Event{.device = current};
  ++state().events;
  return 0;
}
FULMEN_FAKE_EXPORT Error hipEventDestroy(Event* event) {
  const std::lock_guard lock(state().mutex);
  if (const Error error = enter("hipEventDestroy"); error != 0) return error;
  delete event;
  --state().events;
  return 0;
}
FULMEN_FAKE_EXPORT Error hipEventRecord(Event* event, void* /*stream*/) {
  const std::lock_guard lock(state().mutex);
  if (event->device != current) state().complain("an event of another device");
  event->at_ms = state().clock_ms;
  return enter("hipEventRecord");
}
FULMEN_FAKE_EXPORT Error hipEventSynchronize(Event* /*event*/) {
  const std::lock_guard lock(state().mutex);
  return enter("hipEventSynchronize");
}
FULMEN_FAKE_EXPORT Error hipEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
  const std::lock_guard lock(state().mutex);
  *milliseconds = fulmen::fake::kExecutes ? static_cast<float>(end->at_ms - begin->at_ms) : 0.5F;
  return enter("hipEventElapsedTime");
}
