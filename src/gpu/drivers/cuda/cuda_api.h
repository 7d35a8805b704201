// The part of libcuda that Fulmen calls, declared from the documentation of the CUDA driver API (12
// and 13): no vendor header is needed to build.
#pragma once

#include <cstddef>

#include "fulmen/status.h"

namespace fulmen::gpu::cuda {

using Result = int;  // CUresult, 0 is success
using Device = int;
using DevicePointer = unsigned long long;
using Context = struct ContextHandle*;
using Library = struct LibraryHandle*;
using KernelHandle = struct KernelObject*;
using Stream = void*;
using Event = struct EventHandle*;

// CUdevice_attribute
constexpr int kClockRate = 13, kMultiprocessors = 16, kMemoryClockRate = 36, kL2CacheBytes = 38,
              kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;
constexpr int kSharedMemoryOptin = 97;
constexpr int kPointerMemoryType = 2, kPointerDeviceOrdinal = 9, kPointerAccessFlags = 16;
constexpr int kMemoryHost = 1;
constexpr int kFunctionMaxDynamicSharedBytes = 8;

// CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion
constexpr int kTensorMapFloat16 = 6, kTensorMapBfloat16 = 9, kTensorMapSwizzle128 = 3;
constexpr int kTensorMapPromote128 = 2, kTensorMapPromote256 = 3;

constexpr unsigned kStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

constexpr int kProgrammaticStreamSerialization = 6;  // CUlaunchAttributeID

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  alignas(8) union {
    char bytes[64];
    int programmatic_stream_serialization_allowed;
  } value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Api {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int* version);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDeviceGet)(Device* device, int ordinal);
  Result (*cuDeviceGetName)(char* name, int bytes, Device device);
  Result (*cuDeviceGetAttribute)(int* value, int attribute, Device device);
  Result (*cuDeviceTotalMem_v2)(std::size_t* bytes, Device device);
  Result (*cuDevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*cuCtxGetCurrent)(Context* context);
  Result (*cuCtxGetDevice)(Device* device);
  Result (*cuCtxPushCurrent_v2)(Context context);
  Result (*cuCtxPopCurrent_v2)(Context* context);
  Result (*cuCtxSynchronize)();
  Result (*cuLibraryLoadData)(Library* library, const void* code, int* jit_options,
                              void** jit_values, unsigned jit_count, int* options, void** values,
                              unsigned count);
  Result (*cuLibraryUnload)(Library library);
  Result (*cuLibraryGetKernel)(KernelHandle* kernel, Library library, const char* name);
  Result (*cuKernelGetFunction)(void** function, KernelHandle kernel);
  Result (*cuKernelSetAttribute)(int attribute, int value, KernelHandle kernel, Device device);
  Result (*cuLaunchKernelEx)(const LaunchConfig* config, KernelHandle kernel, void** parameters,
                             void** extra);
  Result (*cuMemAlloc_v2)(DevicePointer* pointer, std::size_t bytes);
  Result (*cuMemFree_v2)(DevicePointer pointer);
  // CUtensorMap*, CUtensorMapDataType, rank, memory, extents, strides in bytes but the first, box,
  // strides of elements, interleave, swizzle, promotion to L2, fill.
  Result (*cuTensorMapEncodeTiled)(void* map, int dtype, unsigned rank, void* memory,
                                   const unsigned long long* extents,
                                   const unsigned long long* strides, const unsigned* box,
                                   const unsigned* element_strides, int interleave, int swizzle,
                                   int promotion, int fill);
  // Null before CUDA 11.2.
  Result (*cuMemAllocAsync)(DevicePointer* pointer, std::size_t bytes, Stream stream);
  Result (*cuMemFreeAsync)(DevicePointer pointer, Stream stream);
  Result (*cuMemcpy)(DevicePointer to, DevicePointer from, std::size_t bytes);
  Result (*cuMemsetD8_v2)(DevicePointer to, unsigned char byte, std::size_t count);
  Result (*cuPointerGetAttribute)(void* value, int attribute, DevicePointer pointer);
  Result (*cuMemcpyAsync)(DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream);
  Result (*cuMemsetD8Async)(DevicePointer to, unsigned char byte, std::size_t count, Stream stream);
  Result (*cuStreamCreate)(Stream* stream, unsigned flags);
  Result (*cuStreamDestroy_v2)(Stream stream);
  Result (*cuStreamSynchronize)(Stream stream);
  Result (*cuStreamIsCapturing)(Stream stream, int* state);
  Result (*cuThreadExchangeStreamCaptureMode)(int* mode);
  Result (*cuEventCreate)(Event* event, unsigned flags);
  Result (*cuEventDestroy_v2)(Event event);
  Result (*cuEventRecord)(Event event, Stream stream);
  Result (*cuEventSynchronize)(Event event);
  Result (*cuEventElapsedTime)(float* milliseconds, Event begin, Event end);
  Result (*cuGetErrorName)(Result result, const char** text);
  Result (*cuGetErrorString)(Result result, const char** text);
};

// Opened once a process. The error says what is missing and where it was looked for.
struct OpenApi {
  Api api{};
  std::string path;
};
fulmen::Result<const OpenApi*> open_api();

}  // namespace fulmen::gpu::cuda
