// Where flat addresses begin that mean LDS and scratch. Linux's driver chooses the same: no address
// of a process is there.
#pragma once

#include <cstdint>

namespace fulmen::gpu::isa {

constexpr uint64_t kSharedBase = uint64_t{1} << 48U, kPrivateBase = uint64_t{2} << 48U;

inline bool is_in_aperture(uint64_t address, uint64_t base) {
  return address >> 32U == base >> 32U;
}

}  // namespace fulmen::gpu::isa
