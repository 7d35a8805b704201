// Probe: whether a buffer's bound check counts the scalar offset. in: `count` bytes of the buffer,
// and as many behind it, all words not 0. Lane l's word is at 4 l + count - 64: from lane 16 on it
// is past the end. out: [kWaveSize], what each lane read.
#include "probes/probe.h"

namespace fulmen::kernels {

FULMEN_DEVICE void buffer_range(const ProbeArguments& a) {
  const auto bytes = static_cast<unsigned>(a.count);
  const Buffer buffer(a.in, bytes);
  answer(a, lane_id(),
         buffer.load<Words<1>>(static_cast<unsigned>(4 * lane_id()), bytes - 64).word[0]);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::buffer_range)
