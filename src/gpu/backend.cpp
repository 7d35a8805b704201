#include "gpu/backend.h"

#include <fmt/format.h>

#include <vector>

#include "gpu/append_kv.h"
#include "gpu/compile/cache/cache.h"
#include "gpu/device_list.h"
#include "gpu/gpu_kernel.h"
#include "gpu/launch/family.h"
#include "gpu/unused_rows.h"

namespace fulmen::gpu {
namespace {

// The targets that a driver's devices can have.
bool has_target(const Driver& driver, const Target& target) {
  if (!target.vendor || driver.name() == "emulated") return true;
  return (driver.name() == "cuda") == (target.vendor == Vendor::nvidia);
}

class GpuBackend final : public Backend {
 public:
  explicit GpuBackend(const Driver& driver) : driver_(driver), devices_(driver) {
    for (const Family* family : families()) {
      if (!has_target(driver, family->target())) continue;
      owned_.push_back(make_gpu_kernel(driver, *family));
      kernels_.push_back(owned_.back().get());
    }
  }

  std::string_view name() const noexcept override { return driver_.name(); }
  std::vector<DeviceInfo> devices() const override {
    std::vector<DeviceInfo> list;
    const auto devices = devices_.devices();
    for (const Device& device : *devices) list.push_back(device.info);
    if (has_prebuilt()) return list;
    const Result<const Compiler*> compiler = driver_.compiler();
    if (compiler.ok()) return list;
    for (std::size_t n = 0; n < list.size(); ++n) {
      DeviceInfo& info = list[n];
      if (!info.usable || source_has_prebuilt(std::string((*devices)[n].chip.arch))) continue;
      info.usable = false;
      info.reason = fmt::format(
          "there are no prebuilt kernels (FULMEN_KERNEL_PATH; in Python the packages "
          "fulmen-kernels-amd and fulmen-kernels-nvidia) and no compiler: {}",
          compiler.status().message());
    }
    return list;
  }
  const std::vector<const Kernel*>& kernels() const override { return kernels_; }

  bool uses_host_memory() const noexcept override { return false; }
  void* allocate(const std::string& name, std::size_t bytes) const noexcept override {
    const Device* device = devices_.find(name);
    if (device == nullptr) return nullptr;
    const Result<void*> memory = driver_.allocate(device->ordinal, bytes);
    return memory.ok() ? memory.value() : nullptr;
  }
  void free(const std::string& name, void* memory) const noexcept override {
    if (const Device* device = devices_.find(name); device != nullptr && memory != nullptr)
      driver_.free(device->ordinal, memory);
  }
  void* allocate_in_stream(const std::string& name, void* stream,
                           std::size_t bytes) const noexcept override {
    const Device* device = devices_.find(name);
    if (device == nullptr) return nullptr;
    const Result<void*> memory = driver_.allocate_in_stream(device->ordinal, stream, bytes);
    return memory.ok() ? memory.value() : nullptr;
  }
  void free_in_stream(const std::string& name, void* stream, void* memory) const noexcept override {
    const Device* device = devices_.find(name);
    if (device != nullptr && memory != nullptr)
      driver_.free_in_stream(device->ordinal, stream, memory);
  }
  Status copy(const std::string& name, void* to, const void* from,
              std::size_t bytes) const override {
    const Device* device = devices_.find(name);
    if (device == nullptr) return {StatusCode::unavailable, "device " + name + " cannot be used"};
    return bytes == 0 ? Status{} : driver_.copy(device->ordinal, to, from, bytes);
  }
  Status append_kv(const std::string& name, void* stream, const KvCacheProblem& problem,
                   const KvCacheTensors& tensors,
                   const KvCacheOptions& /*options*/) const override {
    const Device* device = devices_.find(name);
    if (device == nullptr) return {StatusCode::unavailable, "device " + name + " cannot be used"};
    return gpu::append_kv(driver_, *device, stream, problem, tensors);
  }
  bool is_capturing(const std::string& name, void* stream) const noexcept override {
    const Device* device = devices_.find(name);
    return device != nullptr && driver_.is_capturing(device->ordinal, stream);
  }
  Status synchronize(const std::string& name, void* stream) const override {
    const Device* device = devices_.find(name);
    if (device == nullptr) return {StatusCode::unavailable, "device " + name + " cannot be used"};
    return driver_.synchronize(device->ordinal, stream);
  }
  Status zero_unused_rows(const std::string& name, void* stream, const Problem& problem,
                          const AttentionTensors& tensors) const override {
    const Device* device = devices_.find(name);
    if (device == nullptr) return {StatusCode::unavailable, "device " + name + " cannot be used"};
    return gpu::zero_unused_rows(driver_, *device, stream, problem, tensors);
  }

 private:
  const Driver& driver_;
  DeviceList devices_;
  std::vector<std::unique_ptr<const Kernel>> owned_;
  std::vector<const Kernel*> kernels_;
};

}  // namespace

std::shared_ptr<const Backend> make_gpu_backend(const Driver& driver) {
  return std::make_shared<GpuBackend>(driver);
}

}  // namespace fulmen::gpu
