// Probe: the order in which waves start. out: a counter, 0, then for each wave of the grid the
// number that it drew.
#include "probes/probe.h"

namespace fulmen::kernels {

FULMEN_DEVICE void start_order(const ProbeArguments& a) {
  constexpr int kWaves = kWorkgroup / kWaveSize;
  const int wave = wave_id();
  if (lane_id() == 0)
    answer(a, 1 + workgroup_id() * kWaves + wave, global_draw(static_cast<unsigned*>(a.out)));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::start_order)
