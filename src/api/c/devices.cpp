// The C ABI: devices, their memory, and kernels.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "api/c/translation.h"
#include "plan/registry.h"

using fulmen::Status;
using fulmen::StatusCode;
using fulmen::c_api::done_quietly;
using fulmen::c_api::guarded;
using fulmen::c_api::null_argument;

namespace {

// The device that a caller names, or the default one, with its backend.
struct FoundDevice {
  std::string name;
  std::shared_ptr<const fulmen::Backend> backend;
};

fulmen::Result<FoundDevice> find_device(const char* device) {
  FoundDevice found{device != nullptr && *device != '\0' ? device : fulmen::default_device(),
                    nullptr};
  auto backend = fulmen::usable_backend_of(found.name);
  if (!backend.ok()) return backend.status();
  found.backend = std::move(backend).value();
  return found;
}

}  // namespace

extern "C" {

int fulmen_visit_devices(void (*visit)(void* context, const fulmen_device_info* device),
                         void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    for (const auto& backend : fulmen::backends()) {
      for (const fulmen::DeviceInfo& d : fulmen::devices_of(*backend)) {
        const fulmen_device_info info{sizeof info,
                                      d.name.c_str(),
                                      d.chip.c_str(),
                                      d.features.c_str(),
                                      d.usable,
                                      d.reason.c_str(),
                                      backend->uses_host_memory()};
        visit(context, &info);
      }
    }
    return {};
  });
}

const char* fulmen_default_device(void) {
  const bool done = done_quietly([] { fulmen::c_api::given_text() = fulmen::default_device(); });
  return done ? fulmen::c_api::given_text().c_str() : "cpu";
}

int fulmen_set_default_device(const char* device) {
  return guarded(
      [&]() -> Status { return fulmen::set_default_device(device != nullptr ? device : ""); });
}

int fulmen_device_allocate(const char* device, size_t bytes, void** memory) {
  return guarded([&]() -> Status {
    if (memory == nullptr) return null_argument("memory");
    *memory = nullptr;
    auto found = find_device(device);
    if (!found.ok()) return found.status();
    *memory = found->backend->allocate(found->name, std::max<size_t>(bytes, 1));
    if (*memory != nullptr) return {};
    return {StatusCode::out_of_memory,
            fmt::format("no memory for {} bytes on device {}", bytes, found->name)};
  });
}

void fulmen_device_free(const char* device, void* memory) {
  if (memory == nullptr) return;
  const bool done = done_quietly([&] {
    const auto found = find_device(device);
    // There is nothing to free of an unknown device.
    if (found.ok()) found->backend->free(found->name, memory);
  });
  static_cast<void>(done);
}

int fulmen_device_copy(const char* device, void* to, const void* from, size_t bytes) {
  return guarded([&]() -> Status {
    if (to == nullptr && bytes > 0) return null_argument("to");
    if (from == nullptr && bytes > 0) return null_argument("from");
    auto found = find_device(device);
    if (!found.ok() || bytes == 0) return found.status();
    return found->backend->copy(found->name, to, from, bytes);
  });
}

int fulmen_device_synchronize(const char* device, void* stream) {
  return guarded([&]() -> Status {
    auto found = find_device(device);
    return found.ok() ? found->backend->synchronize(found->name, stream) : found.status();
  });
}

int fulmen_visit_kernels(void (*visit)(void* context, const char* backend, const char* kernel,
                                       const char* layout),
                         void* context) {
  return guarded([&]() -> Status {
    if (visit == nullptr) return null_argument("visit");
    for (const auto& backend : fulmen::backends()) {
      const std::string name(backend->name());
      for (const fulmen::Kernel* kernel : backend->kernels()) {
        visit(context, name.c_str(), std::string(kernel->name()).c_str(),
              std::string(kernel->layout()).c_str());
      }
    }
    return {};
  });
}

}  // extern "C"
