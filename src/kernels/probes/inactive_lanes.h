// Probe: whether v_permlanex16 with fetch-inactive reads the register of a lane that is off. in:
// `count` words, so that no compiler knows them. out: [kWaveSize], for lanes below 16 the word of
// lane l + 16, which is off then, and 0 for the others.
#include "probes/probe.h"

namespace fulmen::kernels {

FULMEN_DEVICE void inactive_lanes(const ProbeArguments& a) {
  // By all lanes: a load that only the branch uses would be moved into it.
  const unsigned mine = evaluated(global_load(static_cast<const unsigned*>(a.in) + lane_id()));
  unsigned other = 0;
  if (lane_id() < 16) other = permlanex16(mine);
  answer(a, lane_id(), other);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::inactive_lanes)
