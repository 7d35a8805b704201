// The part of the HIP runtime that Fulmen calls, declared from its documentation (ROCm 5 to 7): no
// vendor header is needed to build. All calls here have the same types in all of these releases.
#pragma once

#include <cstddef>

#include "fulmen/status.h"

namespace fulmen::gpu::hip {

using Error = int;  // hipError_t, 0 is success
using Stream = void*;
using ModuleHandle = struct HipModule*;
using FunctionHandle = struct HipFunction*;
using Event = struct HipEvent*;

constexpr int kMemcpyDefault = 4;

// hipPointerAttribute_t begins with the memory's type, whose numbers changed with ROCm 6, and the
// device.
struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  int is_managed;
  unsigned flags;
  std::byte reserved[64];
};

// hipMemLocation
struct MemoryLocation {
  int type = 1;  // a device
  int id = 0;
};

struct Api {
  Error (*hipInit)(unsigned flags);
  Error (*hipGetDeviceCount)(int* count);
  Error (*hipRuntimeGetVersion)(int* version);
  Error (*hipGetDevice)(int* device);
  Error (*hipSetDevice)(int device);
  Error (*hipDeviceGetName)(char* name, int bytes, int device);
  Error (*hipDeviceTotalMem)(std::size_t* bytes, int device);
  Error (*hipDeviceGetAttribute)(int* value, int attribute, int device);
  Error (*hipModuleLoadData)(ModuleHandle* module, const void* code);
  Error (*hipModuleUnload)(ModuleHandle module);
  Error (*hipModuleGetFunction)(FunctionHandle* function, ModuleHandle module, const char* name);
  Error (*hipModuleLaunchKernel)(FunctionHandle function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y,
                                 unsigned block_z, unsigned shared_bytes, Stream stream,
                                 void** parameters, void** extra);
  Error (*hipMalloc)(void** memory, std::size_t bytes);
  Error (*hipFree)(void* memory);
  // Null before ROCm 5.2.
  Error (*hipMallocAsync)(void** memory, std::size_t bytes, Stream stream);
  Error (*hipFreeAsync)(void* memory, Stream stream);
  Error (*hipMemcpy)(void* to, const void* from, std::size_t bytes, int kind);
  Error (*hipMemset)(void* to, int byte, std::size_t bytes);
  Error (*hipDeviceSynchronize)();
  Error (*hipStreamSynchronize)(Stream stream);
  Error (*hipPointerGetAttributes)(PointerAttributes* attributes, const void* pointer);
  // Null before HIP 5.2.
  Error (*hipMemGetAccess)(unsigned long long* flags, const MemoryLocation* location, void* memory);
  Error (*hipEventCreate)(Event* event);
  Error (*hipEventDestroy)(Event event);
  Error (*hipEventRecord)(Event event, Stream stream);
  Error (*hipEventSynchronize)(Event event);
  Error (*hipEventElapsedTime)(float* milliseconds, Event begin, Event end);
  Error (*hipGetLastError)();
  const char* (*hipGetErrorName)(Error error);
  const char* (*hipGetErrorString)(Error error);
  // Null in the first releases of HIP 5.
  Error (*hipThreadExchangeStreamCaptureMode)(int* mode);
  Error (*hipStreamIsCapturing)(Stream stream, int* state);
  // One of these: the struct grew with ROCm 6. Only its gcnArchName is read, at an offset that
  // depends on which it is.
  Error (*hipGetDevicePropertiesR0600)(void* properties, int device);
  Error (*hipGetDeviceProperties)(void* properties, int device);
};

struct OpenApi {
  Api api{};
  std::string path;
};
// Opened once a process. The error says what is missing and where it was looked for.
Result<const OpenApi*> open_api();

// Returns "gfx1100" from a properties struct: the text behind the product's name that begins with
// "gfx". Its offset differs between releases.
std::string arch_of(const std::byte* properties, std::size_t bytes);

}  // namespace fulmen::gpu::hip
