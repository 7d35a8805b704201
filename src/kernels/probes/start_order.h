// In which order do waves start? out: a counter, 0, then for each wave of the grid the number that it drew.
#include "probes/probe.h"

namespace fulmen::kernels {

#if defined(FULMEN_PLATFORM_AMD)
FULMEN_DEVICE unsigned draw(unsigned* counter) {
  return __hip_atomic_fetch_add((__attribute__((address_space(1))) unsigned*)counter, 1U, __ATOMIC_RELAXED,
                                __HIP_MEMORY_SCOPE_AGENT);
}
#elif defined(FULMEN_PLATFORM_EMULATED)
FULMEN_DEVICE unsigned draw(unsigned* counter) {
  const unsigned drawn = global_load(counter);
  global_store(counter, drawn + 1);
  return drawn;
}
#else
FULMEN_DEVICE unsigned draw(unsigned* counter) { return atomicAdd(counter, 1U); }
#endif

FULMEN_DEVICE void start_order(const ProbeArguments& a) {
  constexpr int kWaves = FULMEN_WORKGROUP / kWaveSize;
  if (lane_id() == 0) answer(a, 1 + workgroup_id() * kWaves + wave_id(), draw(static_cast<unsigned*>(a.out)));
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ProbeArguments, fulmen::kernels::start_order)
