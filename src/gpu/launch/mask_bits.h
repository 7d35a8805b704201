// The keep-mask as bits (kernels/core/arguments.h: MaskBits), which kernels of tiles read: the launch that makes them, and their
// room.
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Has a kernel read the keep-mask, if there is one, as bits: not where these would take far more memory than the mask itself.
void read_mask_as_bits(const Problem& problem, Specialisation& s);
// A kernel whose tiles the TMA brings reads a keep-mask as bits alone.
Support takes_mask_bits(const Specialisation& s);
// The launch that makes the bits, before all others of a plan that has kernels which read them. Last of what makes a plan.
void add_mask_bits(const Problem& problem, LaunchPlan& plan);

}  // namespace fulmen::gpu
