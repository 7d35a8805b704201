#include "gpu/drivers/hip/hip_api.h"

#include <fmt/format.h>

#include <cctype>
#include <cstring>

#include "gpu/libraries/amd_libraries.h"
#include "runtime/found_once.h"
#include "runtime/platform/libraries.h"

namespace fulmen::gpu::hip {
namespace {

Result<const OpenApi*> open() {
  Result<FoundLibrary> library = find_library(hip_search());
  if (!library.ok()) return library.status();
  auto* opened = new OpenApi;
  opened->path = library->path;
  std::string missing;
  const auto load = [&](auto& function, const char* name, bool needed) {
    platform::find_symbol(library->handle, name, function);
    if (function == nullptr && needed)
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", name);
  };
  Api& a = opened->api;
#define FULMEN_LOAD(name) load(a.name, #name, true)
  FULMEN_LOAD(hipInit);
  FULMEN_LOAD(hipGetDeviceCount);
  FULMEN_LOAD(hipRuntimeGetVersion);
  FULMEN_LOAD(hipGetDevice);
  FULMEN_LOAD(hipSetDevice);
  FULMEN_LOAD(hipDeviceGetName);
  FULMEN_LOAD(hipDeviceTotalMem);
  FULMEN_LOAD(hipDeviceGetAttribute);
  FULMEN_LOAD(hipModuleLoadData);
  FULMEN_LOAD(hipModuleUnload);
  FULMEN_LOAD(hipModuleGetFunction);
  FULMEN_LOAD(hipModuleLaunchKernel);
  FULMEN_LOAD(hipMalloc);
  FULMEN_LOAD(hipFree);
  FULMEN_LOAD(hipMemcpy);
  FULMEN_LOAD(hipMemset);
  FULMEN_LOAD(hipDeviceSynchronize);
  FULMEN_LOAD(hipStreamSynchronize);
  FULMEN_LOAD(hipPointerGetAttributes);
  FULMEN_LOAD(hipEventCreate);
  FULMEN_LOAD(hipEventDestroy);
  FULMEN_LOAD(hipEventRecord);
  FULMEN_LOAD(hipEventSynchronize);
  FULMEN_LOAD(hipEventElapsedTime);
  FULMEN_LOAD(hipGetLastError);
  FULMEN_LOAD(hipGetErrorName);
  FULMEN_LOAD(hipGetErrorString);
#undef FULMEN_LOAD
  load(a.hipMallocAsync, "hipMallocAsync", false);
  load(a.hipFreeAsync, "hipFreeAsync", false);
  load(a.hipMemGetAccess, "hipMemGetAccess", false);
  load(a.hipThreadExchangeStreamCaptureMode, "hipThreadExchangeStreamCaptureMode", false);
  load(a.hipStreamIsCapturing, "hipStreamIsCapturing", false);
  load(a.hipGetDevicePropertiesR0600, "hipGetDevicePropertiesR0600", false);
  load(a.hipGetDeviceProperties, "hipGetDeviceProperties",
       a.hipGetDevicePropertiesR0600 == nullptr);
  if (missing.empty()) return opened;
  const Status status(StatusCode::unavailable,
                      fmt::format("{} lacks {}: HIP 5 or newer is needed", opened->path, missing));
  delete opened;
  return status;
}

}  // namespace

Result<const OpenApi*> open_api() {
  constinit static FoundOnce<Result<const OpenApi*>> found;
  return found.get(open);
}

std::string arch_of(const std::byte* properties, std::size_t bytes) {
  constexpr std::size_t kNameBytes = 256;  // every release's struct begins with the product's name
  const std::string_view text(reinterpret_cast<const char*>(properties), bytes);
  for (std::size_t at = text.find("gfx", kNameBytes); at != std::string_view::npos;
       at = text.find("gfx", at + 1)) {
    std::size_t end = at + 3;
    while (end < text.size() && std::isxdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    // The name of a chip, not a word within the product's name.
    if (end >= at + 6 && end < text.size() && (text[end] == '\0' || text[end] == ':'))
      return std::string(text.substr(at, end - at));
  }
  return {};
}

}  // namespace fulmen::gpu::hip
