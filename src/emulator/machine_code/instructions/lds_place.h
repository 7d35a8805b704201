// A lane's place in LDS, checked.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

// An address has 32 bits: clang lets a base begin below 0, which the offset makes up for, on every
// chip but the first of GCN (AMDGPUSubtarget::hasUsableDSOffset).
inline std::byte* lds_at(Wave& w, uint32_t base, int64_t offset, std::size_t bytes,
                         std::string_view what, int lane) {
  const uint32_t at = base + static_cast<uint32_t>(offset);
  if (uint64_t{at} + bytes > w.group->lds.size()) {
    fail(fmt::format("{} {} bytes of LDS at {} in lane {}: the workgroup has {}", what, bytes, at,
                     lane, w.group->lds.size()));
  }
  if (w.group->arriving.any(at, bytes)) {
    fail(
        fmt::format("{} {} bytes of LDS at {} in lane {}, which a load brings that was not waited "
                    "for",
                    what, bytes, at, lane));
  }
  return w.group->lds.data() + at;
}

}  // namespace fulmen::gpu::isa
