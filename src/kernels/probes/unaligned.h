// Probe: whether one instruction loads or stores 16 bytes at any multiple of 2. in: bytes. out:
// lane l's 16 bytes from byte 2 l on, at byte 18 l + 2.
#include "probes/probe.h"

namespace fulmen::kernels {

FULMEN_DEVICE void unaligned(const ProbeArguments& a) {
  const int l = lane_id();
  const Words<4> piece =
      global_load_unaligned<Words<4>>(static_cast<const unsigned char*>(a.in) + 2 * l);
  global_store_unaligned(static_cast<unsigned char*>(a.out) + 18 * l + 2, piece);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::unaligned)
