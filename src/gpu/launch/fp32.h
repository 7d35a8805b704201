// The families of fp32 by parts (kernels/tile/fp32).
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

const Family* make_prefill_fp32(const Target& target);
const Family* make_backward_fp32(const Target& target);

// Yes for fp32 alone.
Support takes_fp32(const Problem& problem);

}  // namespace fulmen::gpu
