// Runs the waves of a workgroup.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "emulator/machine_code/counting/work.h"
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

// What a launch tells the kernel. Bytes of arguments that are not given are 0xFF.
LaunchData launch_data(const Program& program, std::span<const std::byte> arguments,
                       const Grid& grid, int dynamic_lds_bytes = 0);

// workgroup: its number, the first dimension fastest. work: null, or what is added to. Returns an
// empty string, or what the kernel did wrong, with the instruction and the wave.
std::string run_workgroup(const Program& program, const Schedule& schedule, int64_t workgroup,
                          const LaunchData& launch, MemoryMap& memory, Counts& counts,
                          Work* work = nullptr);

}  // namespace fulmen::gpu::isa
