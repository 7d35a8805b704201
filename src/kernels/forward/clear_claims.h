// The launch before prefill_tma.h where its workgroups claim tiles: none is claimed yet. One workgroup.
#include "core/config.h"

namespace fulmen::kernels {

FULMEN_DEVICE void clear_claims(const ForwardArguments& a) {
  if (thread_id() == 0) global_store(a.claims, 0);
}

}  // namespace fulmen::kernels

FULMEN_KERNEL(fulmen::kernels::ForwardArguments, fulmen::kernels::clear_claims)
