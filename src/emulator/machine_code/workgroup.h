// Runs the waves of a workgroup.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

// The order of waves: each runs to its next barrier, from the first to the last or in reverse; or a
// random wave runs a random number of instructions.
enum class Order : uint8_t { in_order, reversed, random };

struct Schedule {
  Order order = Order::in_order;
  uint64_t seed = 1;  // for random orders and for registers before they are written
};

using Counts = std::array<uint64_t, kKinds>;

// What a one-dimensional launch tells the kernel. Bytes of arguments that the runtime would fill in
// are 0xFF.
LaunchData launch_data(const Program& program, std::span<const std::byte> arguments,
                       uint32_t workgroups, uint32_t workgroup_size);

// Returns an empty string, or what the kernel did wrong, with the instruction and the wave.
std::string run_workgroup(const Program& program, const Schedule& schedule, int waves,
                          int64_t workgroup, const LaunchData& launch, MemoryMap& memory,
                          Counts& counts);

}  // namespace fulmen::gpu::isa
