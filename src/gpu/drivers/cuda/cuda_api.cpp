#include "gpu/drivers/cuda/cuda_api.h"

#include <fmt/format.h>

#include <string>

#include "gpu/libraries/nvidia_libraries.h"
#include "runtime/found_once.h"
#include "runtime/platform/libraries.h"

namespace fulmen::gpu::cuda {
namespace {

// Returns the names that the library lacks.
std::string load_functions(void* handle, Api& a) {
  std::string missing;
  const auto load = [&](auto& function, const char* name, bool needed) {
    platform::find_symbol(handle, name, function);
    if (function == nullptr && needed)
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
#define FULMEN_LOAD(name) load(a.name, #name, true)
  FULMEN_LOAD(cuInit);
  FULMEN_LOAD(cuDriverGetVersion);
  FULMEN_LOAD(cuDeviceGetCount);
  FULMEN_LOAD(cuDeviceGet);
  FULMEN_LOAD(cuDeviceGetName);
  FULMEN_LOAD(cuDeviceGetAttribute);
  FULMEN_LOAD(cuDeviceTotalMem_v2);
  FULMEN_LOAD(cuDevicePrimaryCtxRetain);
  FULMEN_LOAD(cuCtxGetCurrent);
  FULMEN_LOAD(cuCtxGetDevice);
  FULMEN_LOAD(cuCtxPushCurrent_v2);
  FULMEN_LOAD(cuCtxPopCurrent_v2);
  FULMEN_LOAD(cuCtxSynchronize);
  FULMEN_LOAD(cuLibraryLoadData);
  FULMEN_LOAD(cuLibraryUnload);
  FULMEN_LOAD(cuLibraryGetKernel);
  FULMEN_LOAD(cuKernelGetFunction);
  FULMEN_LOAD(cuKernelSetAttribute);
  FULMEN_LOAD(cuLaunchKernelEx);
  FULMEN_LOAD(cuMemAlloc_v2);
  FULMEN_LOAD(cuMemFree_v2);
  FULMEN_LOAD(cuTensorMapEncodeTiled);
  FULMEN_LOAD(cuMemcpy);
  FULMEN_LOAD(cuMemsetD8_v2);
  FULMEN_LOAD(cuPointerGetAttribute);
  FULMEN_LOAD(cuMemcpyAsync);
  FULMEN_LOAD(cuMemsetD8Async);
  FULMEN_LOAD(cuStreamCreate);
  FULMEN_LOAD(cuStreamDestroy_v2);
  FULMEN_LOAD(cuStreamSynchronize);
  FULMEN_LOAD(cuStreamIsCapturing);
  FULMEN_LOAD(cuThreadExchangeStreamCaptureMode);
  FULMEN_LOAD(cuEventCreate);
  FULMEN_LOAD(cuEventDestroy_v2);
  FULMEN_LOAD(cuEventRecord);
  FULMEN_LOAD(cuEventSynchronize);
  FULMEN_LOAD(cuEventElapsedTime);
  FULMEN_LOAD(cuGetErrorName);
  FULMEN_LOAD(cuGetErrorString);
#undef FULMEN_LOAD
  load(a.cuMemAllocAsync, "cuMemAllocAsync", false);
  load(a.cuMemFreeAsync, "cuMemFreeAsync", false);
  return missing;
}

fulmen::Result<const OpenApi*> open() {
  fulmen::Result<FoundLibrary> library = find_library(cuda_search());
  if (!library.ok()) return library.status();
  auto* opened = new OpenApi;
  opened->path = library->path;
  const std::string missing = load_functions(library->handle, opened->api);
  if (missing.empty()) return opened;
  const Status status(
      StatusCode::unavailable,
      fmt::format("{} lacks {}: a driver of CUDA 12 or newer is needed", opened->path, missing));
  delete opened;
  return status;
}

}  // namespace

fulmen::Result<const OpenApi*> open_api() {
  constinit static fulmen::FoundOnce<fulmen::Result<const OpenApi*>> found;
  return found.get(open);
}

}  // namespace fulmen::gpu::cuda
