// Runs the waves of a workgroup.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

// Which wave runs when: each to its next barrier, from the first to the last or the other way round; or a random one for a
// random number of instructions.
enum class Order : uint8_t { in_order, reversed, random };

struct Schedule {
  Order order = Order::in_order;
  uint64_t seed = 1;  // of random orders, and of what registers hold before they are written
};

using Counts = std::array<uint64_t, kKinds>;

// What a one-dimensional launch tells the kernel. Bytes of arguments that are not given, which the runtime would fill in, are 0xFF.
LaunchData launch_data(const Program& program, std::span<const std::byte> arguments, uint32_t workgroups, uint32_t workgroup_size);

// Empty, or what the kernel did wrong, with the instruction and the wave.
std::string run_workgroup(const Program& program, const Schedule& schedule, int waves, int64_t workgroup, const LaunchData& launch,
                          MemoryMap& memory, Counts& counts);

}  // namespace fulmen::gpu::isa
