// Runs the waves of a workgroup.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "gpu/drivers/isa/wave.h"

namespace fulmen::gpu::isa {

// Which wave runs when: each to its next barrier, from the first to the last or the other way round; or a random one for a
// random number of instructions.
enum class Order : uint8_t { in_order, reversed, random };

struct Schedule {
  Order order = Order::in_order;
  uint64_t seed = 1;  // of random orders, and of what registers hold before they are written
};

using Counts = std::array<uint64_t, kKinds>;

// Empty, or what the kernel did wrong, with the instruction and the wave.
std::string run_workgroup(const Program& program, const Schedule& schedule, int waves, int64_t workgroup, const LaunchData& launch,
                          MemoryMap& memory, Counts& counts);

}  // namespace fulmen::gpu::isa
