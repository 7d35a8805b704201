// AMD chips whose machine code is executed on the host, one instruction after the other
// (docs/internals/emulator.md).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/machine_code/workgroup.h"
#include "gpu/driver.h"

namespace fulmen::gpu::isa {

// Sets the order of waves for the whole process: "in-order", "reversed", "random:<seed>".
// $FULMEN_ISA_ORDER sets the first one. Errors: any other order.
Status set_schedule(const std::string& order);

// What the middle workgroup of a launch executed, wave by wave.
struct TracedLaunch {
  const Program& program;
  std::string_view kernel;
  int64_t workgroups = 0;
  std::span<const std::vector<TraceStep>> trace;
};
// Calls the function after each launch from now on, in the whole process; null ends that. Not while
// one runs.
void observe_traces(std::function<void(const TracedLaunch&)> observer);

struct LaunchCounts {
  std::string arch, kernel;
  int64_t workgroups = 0;
  Counts counts{};
  Work work;
  int registers = 0;  // of a lane
};
// Returns what launches executed since the last call and forgets it. At most the last
// 1,000 launches are kept.
std::deque<LaunchCounts> take_counts();

}  // namespace fulmen::gpu::isa
