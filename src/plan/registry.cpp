#include "plan/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "fulmen/names.h"
#include "fulmen/printable.h"
#include "plan/function_options.h"
#include "runtime/environment.h"
#include "runtime/fork_safe.h"
#include "runtime/made_problem.h"
#include "runtime/platform/memory.h"
#include "runtime/precision.h"

namespace fulmen {
namespace {

struct Registry {
  WorkLock changing;  // the list, for which backends are asked for their names
  Mutex mutex;
  std::shared_ptr<const BackendList> list = std::make_shared<const BackendList>(builtin_backends());
  const std::size_t builtin = list->size();  // the first ones
  std::string default_device;
};

// Never destroyed: plans and user threads may outlive static destruction.
Registry& registry() {
  constinit static MadeOnce<Registry> made;
  return made.get();
}

std::string_view backend_name(std::string_view device) {
  return device.substr(0, device.find(':'));
}

}  // namespace

void* Backend::allocate(const std::string& /*device*/, std::size_t bytes) const noexcept {
  constexpr std::size_t kAlignment = 64;
  if (bytes > SIZE_MAX - kAlignment) return nullptr;  // rounded up it would be little
  return platform::allocate_aligned(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

void Backend::free(const std::string& /*device*/, void* memory) const noexcept {
  platform::free_aligned(memory);
}

void* Backend::allocate_in_stream(const std::string& device, void* /*stream*/,
                                  std::size_t bytes) const noexcept {
  return allocate(device, bytes);
}

void Backend::free_in_stream(const std::string& device, void* /*stream*/,
                             void* memory) const noexcept {
  free(device, memory);
}

Status Backend::copy(const std::string& /*device*/, void* to, const void* from,
                     std::size_t bytes) const {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

bool Backend::is_capturing(const std::string& /*device*/, void* /*stream*/) const noexcept {
  return false;
}

Status Backend::synchronize(const std::string& /*device*/, void* /*stream*/) const { return {}; }

Result<KernelTuning> Kernel::tuning(const Problem& /*problem*/, const std::string& /*device*/,
                                    const AttentionOptions& /*options*/) const {
  return Status(StatusCode::unsupported,
                fmt::format("{} has no parameters for this problem", printable(name())));
}

std::shared_ptr<const BackendList> backend_list() {
  const std::scoped_lock lock(registry().mutex);
  return registry().list;
}

std::shared_ptr<const Backend> backend_of(std::string_view device) {
  const auto list = backend_list();  // kept: another thread may register and so replace it
  for (const auto& backend : *list) {
    if (backend->name() == backend_name(device)) return backend;
  }
  return nullptr;
}

std::vector<DeviceInfo> devices_of(const Backend& backend) {
  const auto unusable = [&](std::string why) -> std::vector<DeviceInfo> {
    return {{std::string(backend.name()), "", "", false,
             fmt::format("its backend threw while it listed its devices{}", why)}};
  };
  try {
    return backend.devices();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return unusable(fmt::format(": {}", error.what()));
  } catch (...) {
    return unusable("");
  }
}

Support support_of(const Kernel& kernel, const Problem& problem, const std::string& device) {
  if (kernel.pass() != problem.pass) {
    return Support::no(problem.pass == Pass::backward ? "it computes the forward pass"
                                                      : "it computes gradients");
  }
  if (problem.dropout > 0 && !kernel.dropout()) return Support::no("it has no dropout");
  if (problem.variable_lengths() && !kernel.variable_lengths()) {
    return Support::no(
        "it has no sequences of different lengths (cu_seqlens, seqlens_k, block_table, leftpad_k)");
  }
  if (problem.functions.any() && !kernel.score_functions())
    return Support::no("it has no score functions (score_mod, mask_mod)");
  if (problem.has_block_mask() && !kernel.block_masks())
    return Support::no("it has no block masks (kv_indices)");
  if (problem.paged() && !kernel.paged())
    return Support::no("it reads no keys and values in pages (block_table)");
  if (problem.quantized_kv() && !kernel.quantized_kv())
    return Support::no("it reads k and v of q's dtype alone, without scales");
  if (Support taken = takes_precision(problem, kernel.takes(problem.precision)); !taken.yes)
    return taken;
  if (problem.deterministic && !kernel.deterministic()) {
    return Support::no(
        "it is not deterministic, it adds with atomics: options.deterministic = false allows it");
  }
  Support support = kernel.supports(problem, device);
  if (!support.yes) support.reason = printable(support.reason);  // it may be a program's own kernel
  return support;
}

namespace {

// For a message: where the device's name comes from, if it is that of the environment variable.
std::string_view origin_of(std::string_view device) {
  return !device.empty() && device == environment("FULMEN_DEVICE") ? " (FULMEN_DEVICE)" : "";
}

}  // namespace

Result<std::shared_ptr<const Backend>> usable_backend_of(std::string_view device) {
  if (Status status = check_device(device); !status.ok()) return status;
  auto backend = backend_of(device);
  if (backend != nullptr) return backend;
  return Status(StatusCode::unavailable,
                fmt::format("device is \"{}\": its backend was just unregistered", device));
}

Status check_device(std::string_view device) {
  const auto backend = backend_of(device);
  if (backend != nullptr) {
    if (device == "cpu") return {};  // always there: planning on it builds no list
    std::string why;
    for (const DeviceInfo& info : devices_of(*backend)) {
      // A backend's own name is any device of it that works; where none can, it may list itself,
      // which is the reason for each.
      const bool none = info.name == backend->name() && !info.usable;
      if (info.name != device && backend->name() != device && !none) continue;
      if (info.usable) return {};
      why += fmt::format("{}{}", why.empty() ? "" : "; ",
                         info.reason.empty() ? "no reason is given" : printable(info.reason));
    }
    if (!why.empty())
      return {StatusCode::unavailable, fmt::format("device \"{}\"{} cannot be used: {}",
                                                   printable(device), origin_of(device), why)};
  }
  std::vector<std::string> known;
  for (const DeviceInfo& info : devices())
    known.push_back(info.name + (info.usable ? "" : "\nnot usable"));
  return {StatusCode::unavailable,
          fmt::format("device is \"{}\"{}: there is no such device here; {}", printable(device),
                      origin_of(device), names_like(device, known))};
}

namespace {

Status check_names(const BackendList& list, const Backend& backend) {
  const std::string_view name = backend.name();
  if (name.empty() || name.find(':') != std::string_view::npos) {
    return {StatusCode::invalid_argument,
            fmt::format("backend name is \"{}\": a name without ':' is needed, since device names "
                        "are \"name:selector\"",
                        printable(name))};
  }
  std::map<std::string_view, std::string_view> taken;  // kernel: its backend
  for (const auto& other : list) {
    if (other->name() == name) {
      return {StatusCode::invalid_argument,
              fmt::format("backend name is \"{}\": a backend of that name is registered already",
                          printable(name))};
    }
    for (const Kernel* kernel : other->kernels()) taken.emplace(kernel->name(), other->name());
  }
  for (const Kernel* kernel : backend.kernels()) {
    if (kernel == nullptr) {
      return {
          StatusCode::invalid_argument,
          fmt::format("backend \"{}\" lists a null kernel: pointers to kernels are needed", name)};
    }
    if (kernel->name().empty()) {
      return {StatusCode::invalid_argument,
              fmt::format("a kernel of backend \"{}\" has the name \"\": one is needed", name)};
    }
    if (const auto [at, added] = taken.emplace(kernel->name(), name); !added) {
      return {StatusCode::invalid_argument,
              fmt::format(
                  "kernel name \"{}\" is taken by backend \"{}\": names are unique in the process",
                  printable(at->first), printable(at->second))};
    }
  }
  return {};
}

}  // namespace

Status register_backend(std::shared_ptr<const Backend> backend) {
  if (backend == nullptr)
    return {StatusCode::invalid_argument, "backend is null: an implementation is needed"};
  try {
    Registry& r = registry();
    const std::scoped_lock changing(r.changing);
    const auto list = backend_list();
    if (Status status = check_names(*list, *backend); !status.ok()) return status;
    auto longer = std::make_shared<BackendList>(*list);
    longer->push_back(std::move(backend));
    const std::scoped_lock lock(r.mutex);
    r.list = std::move(longer);
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to register the backend"};
  } catch (...) {
    return {StatusCode::internal,
            "registering failed: the backend threw while it was asked for its names"};
  }
}

Status unregister_backend(const std::string& name) {
  try {
    // Destroys the backend, if anything does, after the locks.
    std::shared_ptr<const BackendList> before;
    Registry& r = registry();
    const std::scoped_lock changing(r.changing);
    const auto list = backend_list();
    const auto at = std::find_if(list->begin(), list->end(),
                                 [&](const auto& backend) { return backend->name() == name; });
    if (at == list->end()) {
      return {StatusCode::invalid_argument,
              fmt::format("backend name is \"{}\": no backend of that name is registered", name)};
    }
    const auto index = at - list->begin();
    if (static_cast<std::size_t>(index) < r.builtin) {
      return {StatusCode::invalid_argument,
              fmt::format("backend name is \"{}\": one that a program registered is accepted, this "
                          "one is built in",
                          name)};
    }
    auto shorter = std::make_shared<BackendList>(*list);
    shorter->erase(shorter->begin() + index);
    const std::scoped_lock lock(r.mutex);
    if (backend_name(r.default_device) == name) r.default_device.clear();
    before = std::exchange(r.list, std::move(shorter));
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to unregister the backend"};
  }
}

std::vector<std::shared_ptr<const Backend>> backends() { return *backend_list(); }

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  const auto list = backend_list();  // kept: another thread may register and so replace it
  for (const auto& backend : *list) {
    for (DeviceInfo& info : devices_of(*backend)) all.push_back(std::move(info));
  }
  return all;
}

std::string default_device() {
  {
    const std::scoped_lock lock(registry().mutex);
    if (!registry().default_device.empty()) return registry().default_device;
  }
  std::string device = environment("FULMEN_DEVICE");
  return device.empty() ? "cpu" : device;
}

Status set_default_device(const std::string& device) {
  try {
    if (!device.empty()) {
      if (Status status = check_device(device); !status.ok()) return status;
    }
    const std::scoped_lock lock(registry().mutex);
    registry().default_device = device;
    return {};
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "no memory to set the default device"};
  } catch (...) {
    return {StatusCode::internal,
            "setting the default device failed: a backend threw while it listed its devices"};
  }
}

Result<std::vector<Candidate>> candidates(const Problem& given, const std::string& asked_device) {
  try {
    if (Status status = check_made(given); !status.ok()) return status;
    const Problem problem = for_kernels(given);
    const std::string device = asked_device.empty() ? default_device() : asked_device;
    const auto backend = usable_backend_of(device);
    if (!backend.ok()) return backend.status();
    std::vector<Candidate> all;
    for (const Kernel* kernel : backend.value()->kernels()) {
      all.push_back({std::string(kernel->name()), support_of(*kernel, problem, device),
                     kernel->rank(problem)});
    }
    return all;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "no memory to list the candidates");
  } catch (...) {
    return Status(StatusCode::internal, "listing the candidates failed: a backend threw");
  }
}

}  // namespace fulmen
