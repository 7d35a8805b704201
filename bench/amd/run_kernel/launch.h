// Runs the launches of a description on the emulator of machine code.
#pragma once

#include <vector>

#include "bench/amd/run_kernel/buffers.h"
#include "bench/amd/run_kernel/description.h"
#include "bench/amd/run_kernel/timeline.h"
#include "emulator/machine_code/workgroup.h"
#include "gpu/compile/report/amd_metadata.h"

namespace fulmen::run_kernel {

struct RanLaunch {
  gpu::AmdKernelMetadata kernel;
  int lds_bytes = 0;  // dynamic ones included
  int waves = 0;      // of a workgroup
  int64_t workgroups = 0;
  double times = 1;
  gpu::isa::Counts counts{};
  gpu::isa::Work work;
  std::optional<LaunchTime> time;  // of `times` the launch's workgroups that ran
};

// Errors: a code object that cannot be read, or that has no such kernel; arguments that are not the
// kernel's; what the kernel does wrong.
Result<RanLaunch> run_launch(const KernelLaunch& launch, const std::string& arch, Buffers& buffers);

}  // namespace fulmen::run_kernel
