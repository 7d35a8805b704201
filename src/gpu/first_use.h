// The first use of compiled kernels on a device: one small problem beside the reference, before
// anybody relies on them. A verdict is kept with the kernels in the cache, so that each is found
// out once.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "fulmen/attention.h"
#include "fulmen/problem.h"
#include "fulmen/status.h"
#include "gpu/gpu_runner.h"
#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Whether it is due: on every GPU that is none of the emulated ones; with FULMEN_FIRST_USE_CHECK=0
// or without options.check_first_use nowhere, with FULMEN_FIRST_USE_CHECK=1 on those, too.
bool checks_first_use(const Driver& driver, const AttentionOptions& options);

// What the check has to know of a plan that is to be used.
struct FirstUse {
  const Driver& driver;
  const Device& device;
  std::string kernel;  // "hip.prefill.gfx11"
  const Problem& problem;
  const GpuRunner& runner;  // of the problem, loaded
  const AttentionOptions& options;
  const Family& family;
  const tuning::Values& values;  // of the family's parameters
};

// A small problem whose plan launches the very kernels of `wanted`; none where there is no such
// problem that the reference computes in so many flops.
struct SmallUse {
  Problem problem;
  LaunchPlan plan;
};
std::optional<SmallUse> find_small_use(const Family& family, const Chip& chip, int compute_units,
                                       const Problem& problem, const LaunchPlan& wanted,
                                       const tuning::Values& values, double most_flops = 8e9);

// What is known, in a sentence: the errors found, or why there was no check. Never while the
// device's default stream is captured. Errors: verification_failed, a result is wrong, or the
// device did not run the kernel.
Result<std::string> check_first_use(const FirstUse& use);

// Why these kernels were refused earlier in this process; empty where they were not.
std::string first_use_refusal(const Device& device, const std::string& kernel,
                              const std::function<LaunchPlan()>& plan);

}  // namespace fulmen::gpu
