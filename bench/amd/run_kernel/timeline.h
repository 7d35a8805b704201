// How long a compute unit of CDNA takes for a launch, by what one workgroup executed: each wave
// issues its instructions in order, each unit takes one at a time, results come after a latency.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "emulator/machine_code/counting/work.h"
#include "tools/bench/model/rates.h"

namespace fulmen::run_kernel {

// Cycles of units and latencies, of waves of 64 lanes.
struct UnitCycles {
  int simds = 4;
  double matrix_flops = 0;  // a cycle of a SIMD
  int issue = 4, transcendental = 16, branch = 8, barrier = 16;
  int matrix_latency = 8, lds_latency = 64, memory_latency = 600;
};

// Cycles from the start of `resident` equal workgroups to their common end. trace: a workgroup's
// waves.
double timeline(const gpu::isa::Program& program,
                std::span<const std::vector<gpu::isa::TraceStep>> trace, int resident,
                const UnitCycles& units);

struct LaunchTime {
  int resident = 0;  // workgroups of a compute unit, by registers and LDS
  double cycles = 0;
  double seconds = 0;  // of all workgroups, evenly on all compute units
};
// trace: of a workgroup of average length. lds_bytes: of a workgroup. Nothing for chips other than
// gfx90a, gfx942 and gfx950.
std::optional<LaunchTime> time_launch(const gpu::isa::Program& program,
                                      std::span<const std::vector<gpu::isa::TraceStep>> trace,
                                      int lds_bytes, double workgroups);

}  // namespace fulmen::run_kernel
