#include "gpu/gpu_kernel.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <mutex>

#include "gpu/device_list.h"
#include "gpu/loaded_kernels.h"

namespace fulmen::gpu {
namespace {

struct LoadedLaunch {
  Function function;
  int64_t workgroups = 0;
  int workgroup_size = 0;
  int lds_bytes = 0;
};

// The launches of a plan. A second set serves pointers that are not multiples of 16, compiled when first met.
class GpuRunner final : public Runner {
 public:
  GpuRunner(const Driver& driver, const Device& device, LaunchPlan plan, KernelConfig config)
      : driver_(driver), device_(device), plan_(std::move(plan)), config_(std::move(config)) {}

  Status load(bool whole_rows, std::vector<LoadedLaunch>& launches) const {
    for (const KernelLaunch& launch : plan_.launches) {
      Specialisation s = launch.specialisation;
      s.whole_rows = s.whole_rows && whole_rows;
      s.whole_bias = s.whole_bias && whole_rows;
      Result<Function> function = load_kernel(driver_, device_, s);
      if (!function.ok()) return function.status();
      launches.push_back({function.value(), launch.workgroups, s.workgroup, s.lds_bytes});
    }
    return {};
  }
  Status load() { return load(true, aligned_); }

  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    return static_cast<std::size_t>(plan_.partial_out_floats + 2 * plan_.partial_row_floats) * sizeof(float);
  }

  Status run(void* stream, const AttentionTensors& tensors, void* workspace) const override {
    if (plan_.launches.front().workgroups == 0) return {};
    if (Status status = check_memory(tensors, workspace); !status.ok()) return status;
    const std::vector<LoadedLaunch>* launches = &aligned_;
    if (plan_.launches.front().specialisation.whole_rows && !pointers_are_whole(tensors)) {
      const std::scoped_lock lock(mutex_);
      if (unaligned_.empty()) {
        if (Status status = load(false, unaligned_); !status.ok()) return status;
      }
      launches = &unaligned_;
    }
    kernels::ForwardArguments arguments = plan_.arguments;
    set_pointers(tensors, arguments);
    arguments.partial_out = static_cast<float*>(workspace);
    arguments.partial_max = arguments.partial_out + plan_.partial_out_floats;
    arguments.partial_sum = arguments.partial_max + plan_.partial_row_floats;
    for (const LoadedLaunch& l : *launches) {
      Launch launch{l.workgroups, l.workgroup_size, l.lds_bytes, stream, &arguments, sizeof(arguments)};
      if (Status status = driver_.launch(device_.ordinal, l.function, launch); !status.ok()) {
        return {status.code(), fmt::format("kernel {} on {}: {}", config_.kernel, device_.info.name, status.message())};
      }
    }
    return {};
  }

 private:
  static bool pointers_are_whole(const AttentionTensors& t) {
    constexpr std::uintptr_t kPiece = 16;
    std::uintptr_t bits = 0;
    for (const void* data : {t.q.data, t.k.data, t.v.data, t.out.data, t.bias.data}) {
      bits |= reinterpret_cast<std::uintptr_t>(data);
    }
    return bits % kPiece == 0;
  }

  Status check_memory(const AttentionTensors& t, const void* workspace) const {
    struct Named {
      const char* name;
      const void* data;
    };
    for (const auto& [name, data] :
         {Named{"q", t.q.data}, Named{"k", t.k.data}, Named{"v", t.v.data}, Named{"out", t.out.data}, Named{"bias", t.bias.data},
          Named{"keep_mask", t.keep_mask.data}, Named{"alibi_slopes", t.alibi_slopes.data}, Named{"sinks", t.sinks.data},
          Named{"lse", t.lse.data}, Named{"workspace", workspace}}) {
      if (data == nullptr) continue;
      if (Status status = driver_.check_memory(device_.ordinal, data); !status.ok()) {
        return {StatusCode::invalid_argument,
                fmt::format("{}{} is {}: memory of {} is needed ({})", name, data == workspace ? "" : ".data", data,
                            device_.info.name, status.message())};
      }
    }
    return {};
  }

  const Driver& driver_;
  const Device& device_;
  LaunchPlan plan_;
  KernelConfig config_;
  std::vector<LoadedLaunch> aligned_;
  mutable std::mutex mutex_;
  mutable std::vector<LoadedLaunch> unaligned_;
};

class GpuKernel final : public Kernel {
 public:
  GpuKernel(const Driver& driver, const Family& family)
      : driver_(driver), family_(family), name_(fmt::format("{}.{}.{}", driver.name(), family.name(), family.target())) {}
  std::string_view name() const noexcept override { return name_; }
  Support supports(const Problem& problem, const std::string& device_name) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr) return Support::no("device " + device_name + " cannot be used");
    if (family_.target() != "portable" && family_.target() != device->chip.target) {
      return Support::no(fmt::format("{} has the matrix instructions of {}", device->chip.arch, device->chip.target));
    }
    return family_.supports(problem, device->chip);
  }
  double rank(const Problem& problem) const override { return family_.rank(problem); }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& device_name,
                                          const AttentionOptions& /*options*/) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr) return Status(StatusCode::unavailable, fmt::format("device {} cannot be used", device_name));
    LaunchPlan plan = family_.plan(problem, device->chip, device->properties.compute_units);
    const Specialisation& s = plan.launches.front().specialisation;
    KernelConfig config{name_, s.block_m, s.block_n, plan.num_splits, 0};
    auto runner = std::make_unique<GpuRunner>(driver_, *device, std::move(plan), std::move(config));
    if (Status status = runner->load(); !status.ok()) return status;
    return std::unique_ptr<Runner>(std::move(runner));
  }

 private:
  const Driver& driver_;
  const Family& family_;
  std::string name_;
};

}  // namespace

std::unique_ptr<const Kernel> make_gpu_kernel(const Driver& driver, const Family& family) {
  return std::make_unique<GpuKernel>(driver, family);
}

}  // namespace fulmen::gpu
