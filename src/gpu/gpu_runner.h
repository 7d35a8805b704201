// What runs a plan on a GPU: its kernels, loaded, and the arguments of their launches.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "fulmen/backend.h"
#include "gpu/device_list.h"
#include "gpu/driver.h"
#include "gpu/launch/family.h"
#include "runtime/fork_safe.h"

namespace fulmen::gpu {

// A second set of kernels serves pointers that are not multiples of 16, compiled when first met.
class GpuRunner final : public Runner {
 public:
  GpuRunner(const Driver& driver, const Device& device, const Problem& problem, LaunchPlan plan,
            KernelConfig config, bool trust_pointers);
  GpuRunner(const GpuRunner&) = delete;
  GpuRunner& operator=(const GpuRunner&) = delete;
  ~GpuRunner() override { unaligned_.destroy(); }

  // Before anything else. Errors: those of load_kernels().
  Status load();
  // Errors: a kernel whose compiler was short of registers, by more of them than a lane has.
  Status check_scratch() const;
  const KernelConfig& config() const noexcept override { return config_; }
  std::size_t workspace_bytes() const noexcept override;
  Status run(void* stream, const AttentionTensors& tensors, void* workspace) const override;

  const LaunchPlan& plan() const noexcept { return plan_; }
  // Names the code of all launches, in order: equal for equal machine code.
  std::string code_identity() const;
  void set_first_use(std::string text) { config_.first_use = std::move(text); }

 private:
  struct LoadedLaunch {
    Function function;
    int64_t workgroups = 0;
    int workgroup_size = 0;
    int lds_bytes = 0;
    std::size_t argument_bytes = 0;
    bool programmatic_launch = false;
    std::string code;  // its hash
    std::string name;
    int64_t scratch_bytes = 0;  // of a lane
    std::string note;
  };
  static constexpr int64_t kMostScratch = 1024;  // 256 registers

  // whole_rows: pointers are multiples of 16.
  const LaunchPlan& plan_for(bool whole_rows) const noexcept;
  Result<std::vector<LoadedLaunch>> loaded(bool whole_rows) const;
  Status load_unaligned() const;
  // All arguments but tensor maps. set_arguments() returns the first address of the workspace
  // behind what these use.
  float* set_arguments(const LaunchPlan& plan, const AttentionTensors& tensors, void* workspace,
                       kernels::ForwardArguments& arguments) const;
  void set_backward_arguments(const LaunchPlan& plan, const AttentionTensors& tensors,
                              void* workspace, kernels::BackwardArguments& arguments) const;
  // Arguments: those of the pass with tensor maps, which are encoded for a kernel that takes them.
  template <class Arguments>
  Status launch(bool whole_rows, void* stream, Arguments& arguments) const;
  // A tensor in boxes of so many rows, and heads.
  Status encode_tensor_map(const kernels::View& view, const Problem::Shape& of,
                           const Specialisation& s, int box_rows, kernels::TensorMap& map,
                           int box_heads = 1) const;
  // Encodes the tensor maps of q, k and v; in the backward pass block_m counts keys.
  template <class Arguments>
  Status encode_queries(Arguments& a, const Specialisation& s) const;
  template <class Arguments>
  Status encode_keys(Arguments& a, const Specialisation& s) const;
  Status encode_tensor_maps(kernels::TmaForwardArguments& a, const Specialisation& s) const;
  Status encode_codes(kernels::TmaForwardArguments& a, const Specialisation& s) const;
  Status encode_numbers(kernels::TmaForwardArguments& arguments, const Specialisation& s) const;
  Status encode_tensor_maps(kernels::TmaBackwardArguments& a, const Specialisation& s) const;
  // Whether pointers are what the plan's launches take; else plan_.unaligned serves.
  bool usual_launches_serve(const AttentionTensors& tensors) const;
  bool pointers_are_whole(const AttentionTensors& tensors) const;
  Status check_memory(const AttentionTensors& tensors, const void* workspace) const;

  const Driver& driver_;
  const Device& device_;
  Problem problem_;
  LaunchPlan plan_;
  KernelConfig config_;
  bool trust_pointers_;
  const void* missing_row_ = nullptr;  // kernels::ForwardArguments
  std::vector<LoadedLaunch> aligned_;
  mutable WorkLock loading_;
  mutable std::atomic<bool> said_ = false;  // that v is not k's memory
  mutable MadeOnce<const std::vector<LoadedLaunch>> unaligned_;
};

}  // namespace fulmen::gpu
