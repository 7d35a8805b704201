#include "plan/registry.h"

#include <fmt/format.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

namespace fulmen {
namespace {

struct Registry {
  std::mutex mutex;
  std::shared_ptr<const BackendList> list = std::make_shared<const BackendList>(builtin_backends());
  std::string default_device;
};

// Never destroyed: plans and user threads may outlive static destruction.
Registry& registry() {
  static auto* const kRegistry = new Registry;
  return *kRegistry;
}

std::string_view backend_name(std::string_view device) { return device.substr(0, device.find(':')); }

bool is_device(const Backend& backend, std::string_view device, std::string* why) {
  for (const DeviceInfo& info : backend.devices()) {
    if (info.name != device) continue;
    if (!info.usable && why != nullptr) *why = info.reason;
    return info.usable;
  }
  return false;
}

}  // namespace

std::shared_ptr<const BackendList> backend_list() {
  const std::scoped_lock lock(registry().mutex);
  return registry().list;
}

std::shared_ptr<const Backend> backend_of(std::string_view device) {
  for (const auto& backend : *backend_list()) {
    if (backend->name() == backend_name(device)) return backend;
  }
  return nullptr;
}

Status check_device(std::string_view device) {
  const auto backend = backend_of(device);
  if (backend != nullptr && backend->name() == device) return {};  // the backend itself: its first device
  std::string why;
  if (backend != nullptr && is_device(*backend, device, &why)) return {};
  if (!why.empty()) return {StatusCode::unavailable, fmt::format("device \"{}\" cannot be used: {}", device, why)};
  std::string known;
  for (const DeviceInfo& info : devices()) {
    known += fmt::format("{}\"{}\"{}", known.empty() ? "" : ", ", info.name, info.usable ? "" : " (not usable)");
  }
  return {StatusCode::unavailable, fmt::format("device is \"{}\": there is no such device here; known are {}", device, known)};
}

Status register_backend(std::shared_ptr<const Backend> backend) {
  if (backend == nullptr) return {StatusCode::invalid_argument, "backend is null: an implementation is needed"};
  if (backend->name().empty() || backend->name().find(':') != std::string_view::npos) {
    return {StatusCode::invalid_argument,
            fmt::format("backend name is \"{}\": a name without ':' is needed, since device names are \"name:selector\"",
                        backend->name())};
  }
  try {
    Registry& r = registry();
    const std::scoped_lock lock(r.mutex);
    for (const auto& other : *r.list) {
      if (other->name() == backend->name()) {
        return {StatusCode::invalid_argument,
                fmt::format("backend name is \"{}\": a backend of that name is registered already", backend->name())};
      }
      for (const Kernel* theirs : other->kernels()) {
        for (const Kernel* ours : backend->kernels()) {
          if (theirs->name() == ours->name()) {
            return {StatusCode::invalid_argument,
                    fmt::format("kernel name \"{}\" is taken by backend \"{}\"", ours->name(), other->name())};
          }
        }
      }
    }
    auto longer = std::make_shared<BackendList>(*r.list);
    longer->push_back(std::move(backend));
    r.list = std::move(longer);
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to register the backend"};
  }
}

std::vector<std::shared_ptr<const Backend>> backends() { return *backend_list(); }

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  for (const auto& backend : *backend_list()) {
    for (DeviceInfo& info : backend->devices()) all.push_back(std::move(info));
  }
  return all;
}

std::string default_device() {
  {
    const std::scoped_lock lock(registry().mutex);
    if (!registry().default_device.empty()) return registry().default_device;
  }
  const char* environment = std::getenv("FULMEN_DEVICE");
  return environment != nullptr && *environment != '\0' ? environment : "cpu";
}

Status set_default_device(const std::string& device) {
  if (!device.empty()) {
    if (Status status = check_device(device); !status.ok()) return status;
  }
  const std::scoped_lock lock(registry().mutex);
  registry().default_device = device;
  return {};
}

Result<std::vector<Candidate>> candidates(const Problem& problem, const std::string& device) {
  if (Status status = check_device(device); !status.ok()) return status;
  std::vector<Candidate> all;
  for (const Kernel* kernel : backend_of(device)->kernels()) {
    all.push_back({std::string(kernel->name()), kernel->supports(problem, device), kernel->rank(problem)});
  }
  return all;
}

}  // namespace fulmen
