// Clears the tile counter of the dynamic scheduler, in the launch before prefill_tma.h. One
// workgroup.
#include "core/config.h"

namespace fulmen::kernels {

FULMEN_DEVICE void clear_tile_counter(const ForwardArguments& a) {
  if (thread_id() == 0) global_store(a.tile_counter, 0);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::clear_tile_counter)
