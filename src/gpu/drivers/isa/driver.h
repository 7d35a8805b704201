// AMD chips whose machine code is executed on the host, one instruction after the other (docs/internals/emulator.md).
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "emulator/machine_code/workgroup.h"
#include "gpu/driver.h"

namespace fulmen::gpu::isa {

// How waves are ordered from now on, in the whole process: "in-order", "reversed", "random:<seed>". $FULMEN_ISA_ORDER is
// what it begins with. Errors: none of these.
Status set_schedule(const std::string& order);

struct LaunchCounts {
  std::string arch, kernel;
  int64_t workgroups = 0;
  Counts counts{};
};
// What launches have executed since the last call, by class, and forgets them: the last 1,000 launches.
std::deque<LaunchCounts> take_counts();

}  // namespace fulmen::gpu::isa
