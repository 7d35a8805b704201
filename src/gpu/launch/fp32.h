// The families of fp32 by parts (kernels/tile/fp32).
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

const Family* make_prefill_fp32(const Target& target);
const Family* make_backward_fp32(const Target& target);

// Yes for fp32 of up to so many dims, and for no other dtype.
Support takes_fp32(const Problem& problem, const Target& target, int most_dims);
// specialise_for(), which knows whole rows of 16 bits alone, for fp32.
void specialise_fp32_for(const Problem& problem, Specialisation& s);

}  // namespace fulmen::gpu
