// Loads from memory to LDS. A lane's words go to M0 + the instruction's offset + the lane's number
// times 4, or times 16 where it loads more than one word (CDNA4 ISA, 9.1.9 and 10.3).
#pragma once

#include "emulator/machine_code/instructions/lds_place.h"
#include "emulator/machine_code/wave.h"

namespace fulmen::gpu::isa {

class LdsLoad {
 public:
  LdsLoad(Wave& w, const Instruction& i, uint32_t bytes)
      : wave_(w), arrival_{0, bytes > 4 ? 16U : 4U, bytes, 0} {
    const uint32_t m0 = w.scalars[kM0] & (w.program->is("gfx950") ? 0x3FFFFU : 0xFFFFU);
    arrival_.begin = m0 + static_cast<uint32_t>(i.offset);
  }
  void put(int lane, const void* from) {
    const uint32_t at = arrival_.begin + arrival_.stride * static_cast<uint32_t>(lane);
    std::memcpy(lds_at(wave_, at, 0, arrival_.bytes, "loads", lane), from, arrival_.bytes);
    arrival_.lanes |= uint64_t{1} << lane;
  }
  // What it loads is read after the wait for it.
  ~LdsLoad() {
    wave_.arrival = arrival_;
    wave_.group->arriving.add(arrival_);
  }
  LdsLoad(const LdsLoad&) = delete;
  LdsLoad& operator=(const LdsLoad&) = delete;

 private:
  Wave& wave_;
  LdsArrival arrival_;
};

}  // namespace fulmen::gpu::isa
