#include "gpu/gpu_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

#include "gpu/choice.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/device_list.h"
#include "gpu/loaded_kernels.h"
#include "runtime/tensor_table.h"
#include "tuning/results.h"
#include "tuning/sources.h"

namespace fulmen::gpu {
namespace {

struct LoadedLaunch {
  Function function;
  int64_t workgroups = 0;
  int workgroup_size = 0;
  int lds_bytes = 0;
  std::size_t argument_bytes = 0;
  bool programmatic_launch = false;
};

// The launches of a plan. A second set serves pointers that are not multiples of 16, compiled when first met.
class GpuRunner final : public Runner {
 public:
  GpuRunner(const Driver& driver, const Device& device, const Problem& problem, LaunchPlan plan, KernelConfig config,
            bool trust_pointers)
      : driver_(driver),
        device_(device),
        problem_(problem),
        plan_(std::move(plan)),
        config_(std::move(config)),
        trust_pointers_(trust_pointers) {}

  Status load(bool whole_rows, std::vector<LoadedLaunch>& launches) const {
    const bool others = !whole_rows && !plan_.unaligned_launches.empty();
    for (const KernelLaunch& launch : others ? plan_.unaligned_launches : plan_.launches) {
      Specialisation s = launch.specialisation;
      s.whole_rows = s.whole_rows && whole_rows;
      s.whole_bias = s.whole_bias && whole_rows;
      Result<Function> function = load_kernel(driver_, device_, s);
      if (!function.ok()) return function.status();
      const std::size_t bytes = s.backward
                                    ? s.tensor_maps ? sizeof(kernels::TmaBackwardArguments) : sizeof(kernels::BackwardArguments)
                                : s.tensor_maps ? sizeof(kernels::TmaForwardArguments)
                                                : sizeof(kernels::ForwardArguments);
      launches.push_back({function.value(), launch.workgroups, s.workgroup, s.lds_bytes, bytes, launch.programmatic_launch});
    }
    return {};
  }
  Status load() { return load(true, aligned_); }

  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override {
    const int64_t floats = plan_.partial_out_floats + 2 * plan_.partial_row_floats + plan_.row_statistics_floats +
                           plan_.bias_partial_floats + plan_.query_sum_floats;
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  Status run(void* stream, const AttentionTensors& tensors, void* workspace) const override {
    if (plan_.launches.empty()) return {};
    if (!trust_pointers_) {
      if (Status status = check_memory(tensors, workspace); !status.ok()) return status;
    }
    const std::vector<LoadedLaunch>* launches = &aligned_;
    if (plan_.launches.front().specialisation.whole_rows && !pointers_are_whole(tensors)) {
      const std::scoped_lock lock(mutex_);
      if (unaligned_.empty()) {
        if (Status status = load(false, unaligned_); !status.ok()) return status;
      }
      launches = &unaligned_;
    }
    kernels::BackwardArguments arguments = plan_.arguments;
    set_pointers(problem_, tensors, arguments);
    arguments.partial_out = static_cast<float*>(workspace);
    arguments.partial_max = arguments.partial_out + plan_.partial_out_floats;
    arguments.partial_sum = arguments.partial_max + plan_.partial_row_floats;
    arguments.row_statistics = arguments.partial_sum + plan_.partial_row_floats;
    float* const bias_partials = arguments.row_statistics + plan_.row_statistics_floats;
    arguments.bias_partials = plan_.bias_partial_floats > 0 ? bias_partials : nullptr;
    arguments.query_sums = plan_.query_sum_floats > 0 ? bias_partials + plan_.bias_partial_floats : nullptr;
    arguments.query_sum_floats = plan_.query_sum_floats;
    kernels::TmaForwardArguments forward;
    kernels::TmaBackwardArguments backward;
    const void* first = &arguments;
    const bool others = launches == &unaligned_ && !plan_.unaligned_launches.empty();
    if (others && plan_.unaligned_row_tiles > 0) arguments.row_tiles = plan_.unaligned_row_tiles;
    if (const Specialisation* s = others ? nullptr : with_tensor_maps(); s != nullptr) {
      static_cast<kernels::ForwardArguments&>(forward) = arguments;
      static_cast<kernels::BackwardArguments&>(backward) = arguments;
      if (Status status = s->backward ? encode_tensor_maps(backward, *s) : encode_tensor_maps(forward, *s); !status.ok()) {
        return status;
      }
      first = s->backward ? static_cast<const void*>(&backward) : &forward;
    }
    for (const LoadedLaunch& l : *launches) {
      Launch launch{l.workgroups, l.workgroup_size, l.lds_bytes, stream, first, l.argument_bytes, l.programmatic_launch};
      if (Status status = driver_.launch(device_.ordinal, l.function, launch); !status.ok()) {
        return {status.code(), fmt::format("kernel {} on {}: {}", config_.kernel, device_.info.name, status.message())};
      }
    }
    return {};
  }

 private:
  // The launch whose kernel takes tensor maps; null: none does.
  const Specialisation* with_tensor_maps() const {
    for (const KernelLaunch& launch : plan_.launches) {
      if (launch.specialisation.tensor_maps) return &launch.specialisation;
    }
    return nullptr;
  }
  // A tensor in boxes of so many rows.
  Status encode_tensor_map(const kernels::View& view, int dims, int64_t rows, int heads, int batch, const Specialisation& s,
                           int box_rows, kernels::TensorMap& map) const {
    constexpr int64_t kBytes = 2, kUnused = 16;  // a stride that nothing is reached by
    const auto stride = [](int64_t elements, int64_t extent) { return extent > 1 ? elements * kBytes : kUnused; };
    const TensorMapShape shape{view.data,
                               s.tensor_dtype() == DType::fp16,
                               {dims, rows, heads, batch},
                               {stride(view.row, rows), stride(view.head, heads), stride(view.batch, batch)},
                               box_rows};
    return driver_.encode_tensor_map(device_.ordinal, shape, map);
  }
  // Of q, k and v: in the backward pass block_m are keys.
  template <class Arguments>
  Status encode_inputs(Arguments& a, const Specialisation& s) const {
    const int queries = s.backward ? s.block_n : s.block_m, keys = s.backward ? s.block_m : s.block_n;
    Status status = encode_tensor_map(a.q, a.head_dim, a.seqlen_q, a.num_heads, a.batch, s, queries, a.q_map);
    if (status.ok()) status = encode_tensor_map(a.k, a.head_dim, a.seqlen_k, a.num_kv_heads, a.batch, s, keys, a.k_map);
    if (status.ok()) status = encode_tensor_map(a.v, a.head_dim_v, a.seqlen_k, a.num_kv_heads, a.batch, s, keys, a.v_map);
    return status;
  }
  Status encode_tensor_maps(kernels::TmaForwardArguments& a, const Specialisation& s) const { return encode_inputs(a, s); }
  Status encode_tensor_maps(kernels::TmaBackwardArguments& a, const Specialisation& s) const {
    if (Status status = encode_inputs(a, s); !status.ok()) return status;
    return encode_tensor_map(a.dout, a.head_dim_v, a.seqlen_q, a.num_heads, a.batch, s, s.block_n, a.dout_map);
  }
  bool pointers_are_whole(const AttentionTensors& t) const {
    constexpr std::uintptr_t kPiece = 16;
    using T = AttentionTensors;
    using P = Problem;
    std::uintptr_t bits = 0;
    for (const auto& [tensor, spec] : {std::pair{TensorMember<T>(&T::q), &P::q},
                                       {&T::k, &P::k},
                                       {&T::v, &P::v},
                                       {&T::out, &P::out},
                                       {&T::bias, &P::bias},
                                       {&T::dout, &P::dout},
                                       {&T::dq, &P::dq},
                                       {&T::dk, &P::dk},
                                       {&T::dv, &P::dv}}) {
      // A forward call may carry pointers of the backward pass.
      if ((problem_.*spec).present) bits |= reinterpret_cast<std::uintptr_t>((t->*tensor).data);
    }
    return bits % kPiece == 0;
  }

  Status check_memory(const AttentionTensors& t, const void* workspace) const {
    const auto check = [&](const char* name, const char* member, const void* data) -> Status {
      if (data == nullptr) return {};
      Status status = driver_.check_memory(device_.ordinal, data);
      if (status.ok()) return {};
      return {StatusCode::invalid_argument,
              fmt::format("{}{} is {}: memory of {} is needed ({})", name, member, data, device_.info.name, status.message())};
    };
    for (const TensorField& field : kTensorTable) {
      if (!(problem_.*field.spec).present) continue;
      if (Status status = check(field.name, ".data", (t->*field.tensor).data); !status.ok()) return status;
    }
    return check("workspace", "", workspace);
  }

  const Driver& driver_;
  const Device& device_;
  Problem problem_;
  LaunchPlan plan_;
  KernelConfig config_;
  bool trust_pointers_;
  std::vector<LoadedLaunch> aligned_;
  mutable std::mutex mutex_;
  mutable std::vector<LoadedLaunch> unaligned_;
};

class GpuKernel final : public Kernel {
 public:
  GpuKernel(const Driver& driver, const Family& family)
      : driver_(driver), family_(family), name_(fmt::format("{}.{}.{}", driver.name(), family.name(), family.target().name)) {}
  std::string_view name() const noexcept override { return name_; }
  Pass pass() const noexcept override { return family_.pass(); }
  bool dropout() const noexcept override { return family_.dropout(); }
  bool deterministic() const noexcept override { return family_.deterministic(); }
  // A workgroup has query rows of its own, and has read them all before it stores; split keys are combined by a later launch.
  bool out_over_q() const noexcept override { return family_.pass() == Pass::forward; }
  bool variable_lengths() const noexcept override { return family_.variable_lengths(); }
  bool paged() const noexcept override { return family_.pass() == Pass::forward && family_.variable_lengths(); }
  Support supports(const Problem& problem, const std::string& device_name) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr) return Support::no("device " + device_name + " cannot be used");
    if (!device->chip.runs(family_.target())) {
      return Support::no(fmt::format("{} has the matrix instructions of {}", device->chip.arch, device->chip.target->name));
    }
    return family_.supports(problem, device->chip);
  }
  double rank(const Problem& problem) const override { return gpu::rank(family_, problem); }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& device_name,
                                          const AttentionOptions& options) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr) return Status(StatusCode::unavailable, fmt::format("device {} cannot be used", device_name));
    const int compute_units = device->properties.compute_units;
    const tuning::Space space = family_.space(problem, device->chip, compute_units);
    tuning::Choice choice = tuning::usual_choice(space);
    if (tuning::is_anything_asked(options, tuning::known_chip(device->chip.arch), name_)) {
      Result<tuning::Choice> asked = tuning::tuned_choice(problem, options, identity(problem, *device), space);
      if (!asked.ok()) return asked.status();
      choice = std::move(asked).value();
    }
    const bool usual = choice.values == space.usual();
    LaunchPlan plan = usual ? family_.plan(problem, device->chip, compute_units)
                            : family_.tuned_plan(problem, device->chip, compute_units, choice.values);
    KernelConfig config{name_, 0, 0, plan.num_splits, 0, std::move(choice.parameters), std::move(choice.notes)};
    std::erase_if(plan.launches, [](const KernelLaunch& launch) { return launch.workgroups == 0; });
    // The tiles of the first launch that has some: the backward pass begins with one that goes by rows.
    for (const KernelLaunch& launch : plan.launches) {
      if (problem.pass == Pass::backward && launch.specialisation.outputs == 0) continue;
      config.block_m = launch.specialisation.block_m;
      config.block_n = launch.specialisation.block_n;
      break;
    }
    auto runner =
        std::make_unique<GpuRunner>(driver_, *device, problem, std::move(plan), std::move(config), options.trust_pointers);
    if (Status status = runner->load(); !status.ok()) return status;
    return std::unique_ptr<Runner>(std::move(runner));
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& device_name,
                              const AttentionOptions& options) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr) return Status(StatusCode::unavailable, fmt::format("device {} cannot be used", device_name));
    const tuning::Space space = family_.space(problem, device->chip, device->properties.compute_units);
    if (space.parameters.empty()) return Kernel::tuning(problem, device_name, options);
    KernelTuning tuning = identity(problem, *device);
    for (const tuning::Values& values : tuning::configurations(space)) {
      tuning.configurations.push_back(tuning::to_text(space, values));
    }
    return tuning;
  }

 private:
  KernelTuning identity(const Problem& problem, const Device& device) const {
    const int compute_units = device.properties.compute_units;
    std::vector<std::string_view> entries;
    for (const KernelLaunch& launch : family_.plan(problem, device.chip, compute_units).launches) {
      const std::string_view entry = launch.specialisation.entry;
      if (std::find(entries.begin(), entries.end(), entry) == entries.end()) entries.push_back(entry);
    }
    const Result<const Compiler*> compiler = driver_.compiler();
    const std::string& software = device.properties.software;  // begins with the driver
    return {.kernel = name_,
            .chip = std::string(device.chip.arch),
            .compute_units = compute_units,
            .build = kernel_source_identity(entries, family_.target().name),
            .problem_class = tuning::problem_class(problem),
            .configurations = {},
            .product = device.properties.name,
            .driver = software.substr(0, software.find(", ")),
            .compiler = compiler.ok() ? compiler.value()->identity() : std::string()};
  }
  const Driver& driver_;
  const Family& family_;
  std::string name_;
};

}  // namespace

std::unique_ptr<const Kernel> make_gpu_kernel(const Driver& driver, const Family& family) {
  return std::make_unique<GpuKernel>(driver, family);
}

}  // namespace fulmen::gpu
