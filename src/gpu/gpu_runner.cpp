#include "gpu/gpu_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "gpu/launch/mask_bits.h"
#include "gpu/launch/tensor_gradients.h"
#include "gpu/launch/work_tiles.h"
#include "gpu/loaded_kernels.h"
#include "gpu/missing_row.h"

namespace fulmen::gpu {

GpuRunner::GpuRunner(const Driver& driver, const Device& device, const Problem& problem,
                     LaunchPlan plan, KernelConfig config, bool trust_pointers)
    : driver_(driver),
      device_(device),
      problem_(problem),
      plan_(std::move(plan)),
      config_(std::move(config)),
      trust_pointers_(trust_pointers) {}

const LaunchPlan& GpuRunner::plan_for(bool whole_rows) const noexcept {
  return whole_rows || plan_.unaligned == nullptr ? plan_ : *plan_.unaligned;
}

Result<std::vector<GpuRunner::LoadedLaunch>> GpuRunner::loaded(bool whole_rows) const {
  std::vector<Specialisation> wanted;
  std::vector<const KernelLaunch*> launched;
  for (const KernelLaunch& launch : plan_for(whole_rows).launches) {
    if (launch.workgroups == 0) continue;
    launched.push_back(&launch);
    Specialisation& s = wanted.emplace_back(launch.specialisation);
    s.whole_rows = s.whole_rows != 0 && whole_rows ? 1 : 0;
    s.whole_bias = s.whole_bias != 0 && whole_rows ? 1 : 0;
  }
  Result<std::vector<KernelOnDevice>> loaded = load_kernels(driver_, device_, wanted);
  if (!loaded.ok()) return loaded.status();
  std::vector<LoadedLaunch> launches;
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    const Specialisation& s = wanted[n];
    KernelOnDevice& kernel = loaded.value()[n];
    const bool maps = s.tensor_maps != 0;
    const std::size_t bytes = s.backward ? maps ? sizeof(kernels::TmaBackwardArguments)
                                                : sizeof(kernels::BackwardArguments)
                              : maps ? sizeof(kernels::TmaForwardArguments)
                                         : sizeof(kernels::ForwardArguments);
    launches.push_back({kernel.function, launched[n]->workgroups, s.workgroup, s.lds_bytes, bytes,
                        launched[n]->programmatic_launch, std::move(kernel.code),
                        std::move(kernel.name), kernel.scratch_bytes, std::move(kernel.note)});
  }
  return launches;
}

Status GpuRunner::load() {
  if (problem_.paged()) {
    const Result<const void*> row = missing_row(driver_, device_);
    if (!row.ok()) return row.status();
    missing_row_ = row.value();
  }
  Result<std::vector<LoadedLaunch>> launches = loaded(true);
  if (!launches.ok()) return launches.status();
  aligned_ = std::move(launches).value();
  for (const LoadedLaunch& launch : aligned_) {
    if (launch.scratch_bytes > 0)
      config_.notes.push_back(fmt::format("\"{}\" keeps registers in {} bytes of scratch a lane",
                                          launch.name, launch.scratch_bytes));
    if (!launch.note.empty()) config_.notes.push_back(launch.note);
  }
  return {};
}

Status GpuRunner::load_unaligned() const {
  if (unaligned_.made() != nullptr) return {};
  const std::scoped_lock lock(loading_);
  if (unaligned_.made() != nullptr) return {};
  Result<std::vector<LoadedLaunch>> launches = loaded(false);
  if (launches.ok()) unaligned_.get([&] { return std::move(launches).value(); });
  return launches.status();
}

Status GpuRunner::check_scratch() const {
  for (const LoadedLaunch& launch : aligned_) {
    if (launch.scratch_bytes <= kMostScratch) continue;
    return {StatusCode::unsupported,
            fmt::format("its compiler gave \"{}\" {} bytes of scratch a lane, up to {} are "
                        "accepted: its registers would go through "
                        "memory. Another compiler may do better (FULMEN_AMD_COMPILER); forced by "
                        "name it runs as it is",
                        launch.name, launch.scratch_bytes, kMostScratch)};
  }
  return {};
}

std::size_t GpuRunner::workspace_bytes() const noexcept {
  const auto floats = [](const LaunchPlan& plan) {
    return plan.partial_out_floats + 2 * plan.partial_row_floats + plan.tile_counter_floats +
           plan.code_floats + mask_words(plan) + plan.row_statistics_floats +
           plan.row_share_floats + plan.tensor_sum_floats + plan.bias_partial_floats +
           plan.query_sum_floats;
  };
  return static_cast<std::size_t>(std::max(floats(plan_for(true)), floats(plan_for(false)))) *
         sizeof(float);
}

std::string GpuRunner::code_identity() const {
  std::string text;
  for (const LoadedLaunch& launch : aligned_) text += launch.code + "\n";
  return text;
}

Status GpuRunner::run(void* stream, const AttentionTensors& tensors, void* workspace) const {
  if (plan_.launches.empty()) return {};
  if (!trust_pointers_) {
    if (Status status = check_memory(tensors, workspace); !status.ok()) return status;
  }
  const bool whole_rows = usual_launches_serve(tensors);
  if (!whole_rows) {
    if (Status status = load_unaligned(); !status.ok()) return status;
  }
  if (problem_.pass == Pass::forward) {
    kernels::TmaForwardArguments arguments;
    set_arguments(plan_for(whole_rows), tensors, workspace, arguments);
    return launch(whole_rows, stream, arguments);
  }
  kernels::TmaBackwardArguments arguments;
  set_backward_arguments(plan_for(whole_rows), tensors, workspace, arguments);
  return launch(whole_rows, stream, arguments);
}

float* GpuRunner::set_arguments(const LaunchPlan& plan, const AttentionTensors& tensors,
                                void* workspace, kernels::ForwardArguments& arguments) const {
  arguments = plan.arguments;
  set_pointers(problem_, tensors, arguments);
  arguments.missing_row = missing_row_;
  arguments.codes = static_cast<unsigned char*>(workspace);
  arguments.partial_out = static_cast<float*>(workspace) + plan.code_floats;
  arguments.partial_max = arguments.partial_out + plan.partial_out_floats;
  arguments.partial_sum = arguments.partial_max + plan.partial_row_floats;
  float* const behind = arguments.partial_sum + plan.partial_row_floats;
  arguments.tile_counter = plan.tile_counter_floats > 0 ? reinterpret_cast<int*>(behind) : nullptr;
  set_work_table(plan, behind, arguments.work);
  return set_mask_bits(plan, behind + plan.tile_counter_floats, arguments);
}

void GpuRunner::set_backward_arguments(const LaunchPlan& plan, const AttentionTensors& tensors,
                                       void* workspace,
                                       kernels::BackwardArguments& arguments) const {
  arguments.row_statistics = set_arguments(plan, tensors, workspace, arguments);
  set_gradients(problem_, tensors, arguments);
  arguments.row_shares = arguments.row_statistics + plan.row_statistics_floats;
  float* const tensor_sums = arguments.row_shares + plan.row_share_floats;
  set_tensor_gradients(problem_, tensors, tensor_sums, arguments.tensor_gradients);
  float* const bias_partials = tensor_sums + plan.tensor_sum_floats;
  arguments.bias_partials = plan.bias_partial_floats > 0 ? bias_partials : nullptr;
  arguments.bias_parts = plan.backward.bias_parts;
  arguments.query_sums =
      plan.query_sum_floats > 0 ? bias_partials + plan.bias_partial_floats : nullptr;
  arguments.query_sum_floats = plan.query_sum_floats;
  arguments.query_counters = plan.backward.query_counters;
  const bool stores = plan.backward.query_counters > 0 && plan.backward.adds_to_zeros == 0;
  arguments.stored_sum_floats = stores ? plan.query_sum_floats - plan.backward.query_counters : 0;
  arguments.run_batches = plan.backward.run_batches;
  arguments.last_heads = plan.backward.last_heads;
  arguments.first_blocks = plan.backward.first_blocks;
  arguments.middle_heads = plan.backward.middle_heads;
  arguments.adds_in_order = plan.backward.adds_in_order;
  arguments.block_slots = plan.backward.block_slots;
  arguments.last_blocks = plan.backward.last_blocks;
}

template <class Arguments>
Status GpuRunner::launch(bool whole_rows, void* stream, Arguments& arguments) const {
  for (const KernelLaunch& one : plan_for(whole_rows).launches) {
    if (one.specialisation.tensor_maps == 0) continue;
    if (Status status = encode_tensor_maps(arguments, one.specialisation); !status.ok())
      return status;
    break;
  }
  for (const LoadedLaunch& l : whole_rows ? aligned_ : *unaligned_.made()) {
    // A kernel without tensor maps takes the arguments before them.
    Launch launch{l.workgroups, l.workgroup_size, l.lds_bytes,           stream,
                  &arguments,   l.argument_bytes, l.programmatic_launch, l.name};
    if (Status status = driver_.launch(device_.ordinal, l.function, launch); !status.ok()) {
      return {status.code(), fmt::format("kernel {} on {}: {}", config_.kernel, device_.info.name,
                                         status.message())};
    }
  }
  return {};
}

}  // namespace fulmen::gpu
