#include "gpu/gpu_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/choice.h"
#include "gpu/compile/kernel_source.h"
#include "gpu/device_list.h"
#include "gpu/first_use.h"
#include "gpu/gpu_runner.h"
#include "gpu/launch/tensor_gradients.h"
#include "runtime/log_once.h"
#include "tuning/results.h"
#include "tuning/sources.h"

namespace fulmen::gpu {
namespace {

class GpuKernel final : public Kernel {
 public:
  GpuKernel(const Driver& driver, const Family& family)
      : driver_(driver),
        family_(family),
        name_(fmt::format("{}.{}.{}", driver.name(), family.name(), family.target().name)) {}
  std::string_view name() const noexcept override { return name_; }
  Pass pass() const noexcept override { return family_.pass(); }
  bool dropout() const noexcept override { return family_.dropout(); }
  bool deterministic() const noexcept override { return family_.deterministic(); }
  // A workgroup has query rows of its own, and has read them all before it stores; split keys are
  // combined by a later launch.
  bool out_over_q() const noexcept override { return family_.pass() == Pass::forward; }
  bool variable_lengths() const noexcept override { return family_.variable_lengths(); }
  bool quantized_kv() const noexcept override { return family_.quantized_kv(); }
  bool score_functions() const noexcept override { return family_.score_functions(); }
  bool takes(Precision precision) const noexcept override {
    return family_.has_products(precision);
  }
  bool block_masks() const noexcept override { return family_.score_functions(); }
  bool paged() const noexcept override {
    return family_.pass() == Pass::forward && family_.variable_lengths();
  }
  Support supports(const Problem& problem, const std::string& device_name) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr) return Support::no("device " + device_name + " cannot be used");
    if (!device->chip.runs(family_.target())) {
      return Support::no(fmt::format("{} has the matrix instructions of {}", device->chip.arch,
                                     device->chip.target->name));
    }
    Support support = family_.serves(problem, device->chip);
    if (!support.yes) return support;
    const auto plan = [&] {
      return family_.plan(problem, device->chip, device->properties.compute_units);
    };
    if (std::string refusal = first_use_refusal(*device, name_, plan); !refusal.empty())
      return Support::no(std::move(refusal));
    return support;
  }
  double rank(const Problem& problem) const override { return gpu::rank(family_, problem); }
  Result<std::unique_ptr<Runner>> prepare(const Problem& problem, const std::string& device_name,
                                          const AttentionOptions& options) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr)
      return Status(StatusCode::unavailable, fmt::format("device {} cannot be used", device_name));
    const int compute_units = device->properties.compute_units;
    const tuning::Space space = family_.space(problem, device->chip, compute_units);
    tuning::Choice choice = tuning::usual_choice(space);
    if (tuning::is_anything_asked(options, tuning::known_chip(device->chip.arch), name_)) {
      Result<tuning::Choice> asked =
          tuning::tuned_choice(problem, options, identity(problem, *device), space);
      if (!asked.ok()) return asked.status();
      choice = std::move(asked).value();
    }
    Result<std::unique_ptr<Runner>> prepared =
        prepare_with(choice, space, problem, *device, options);
    const bool refused = !prepared.ok() && prepared.status().code() != StatusCode::out_of_memory;
    if (!refused || choice.values == space.usual() || !options.tuning.empty()) return prepared;
    // Kept results were found with one compiler: what another one makes of them is no reason
    // against the kernel.
    tuning::Choice usual = tuning::usual_choice(space);
    usual.notes.push_back("its tuned configuration is passed over: " +
                          sentence_of(prepared.status().message()));
    log_line_once(fmt::format("{} on {}: {}", name_, device->info.name, usual.notes.back()));
    return prepare_with(usual, space, problem, *device, options);
  }
  Result<KernelTuning> tuning(const Problem& problem, const std::string& device_name,
                              const AttentionOptions& options) const override {
    const Device* device = DeviceList(driver_).find(device_name);
    if (device == nullptr)
      return Status(StatusCode::unavailable, fmt::format("device {} cannot be used", device_name));
    const tuning::Space space =
        family_.space(problem, device->chip, device->properties.compute_units);
    if (space.parameters.empty()) return Kernel::tuning(problem, device_name, options);
    KernelTuning tuning = identity(problem, *device);
    for (const tuning::Values& values : tuning::configurations(space)) {
      tuning.configurations.push_back(tuning::to_text(space, values));
    }
    return tuning;
  }

 private:
  Result<std::unique_ptr<Runner>> prepare_with(const tuning::Choice& choice,
                                               const tuning::Space& space, const Problem& problem,
                                               const Device& device,
                                               const AttentionOptions& options) const {
    const int compute_units = device.properties.compute_units;
    LaunchPlan plan = choice.values == space.usual()
                          ? family_.plan(problem, device.chip, compute_units)
                          : family_.tuned_plan(problem, device.chip, compute_units, choice.values);
    KernelConfig config{name_, 0, 0, plan.num_splits, 0, choice.parameters, choice.notes};
    if (plan.backward.query_counters > 0 && plan.backward.adds_in_order == 0) {
      config.notes.emplace_back(
          "blocks of keys add to dq as they come: gradients may differ in bits from run to run");
    }
    if (has_tensor_gradients(problem)) config.notes.push_back(tensor_gradients_note(problem));
    std::erase_if(plan.launches, [](const KernelLaunch& launch) { return launch.workgroups == 0; });
    // The tiles of the first launch that has some: the backward pass begins with one that goes by
    // rows, and so do quantized keys that become numbers.
    const bool multiplies = std::any_of(
        plan.launches.begin(), plan.launches.end(),
        [](const KernelLaunch& launch) { return launch.specialisation.target != nullptr; });
    for (const KernelLaunch& launch : plan.launches) {
      if (problem.pass == Pass::backward && launch.specialisation.outputs == 0) continue;
      if (multiplies && launch.specialisation.target == nullptr) continue;
      config.block_m = launch.specialisation.block_m;
      config.block_n = launch.specialisation.block_n;
      break;
    }
    auto runner = std::make_unique<GpuRunner>(driver_, device, problem, std::move(plan),
                                              std::move(config), options.trust_pointers);
    if (Status status = runner->load(); !status.ok()) return status;
    if (options.kernel.empty()) {
      if (Status status = runner->check_scratch(); !status.ok()) return status;
    }
    if (checks_first_use(driver_, options)) {
      Result<std::string> said = check_first_use(
          {driver_, device, name_, problem, *runner, options, family_, choice.values});
      if (!said.ok()) return said.status();
      runner->set_first_use(std::move(said).value());
    }
    return std::unique_ptr<Runner>(std::move(runner));
  }
  KernelTuning identity(const Problem& problem, const Device& device) const {
    const int compute_units = device.properties.compute_units;
    std::vector<std::string_view> entries;
    for (const KernelLaunch& launch : family_.plan(problem, device.chip, compute_units).launches) {
      const std::string_view entry = launch.specialisation.entry;
      if (std::find(entries.begin(), entries.end(), entry) == entries.end())
        entries.push_back(entry);
    }
    const Result<const Compiler*> compiler = driver_.compiler();
    const std::string& software = device.properties.software;  // begins with the driver
    return {
        .kernel = name_,
        .chip = std::string(device.chip.arch),
        .compute_units = compute_units,
        .build = kernel_source_identity(entries, family_.target().name),
        .problem_class = tuning::problem_class(problem),
        .configurations = {},
        .product = device.properties.name,
        .driver = software.substr(0, software.find(", ")),
        .compiler = compiler.ok() ? compiler.value()->identity(device.chip.arch) : std::string()};
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
