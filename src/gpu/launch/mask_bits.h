// Masks as bits (kernels/core/arguments.h: MaskBits), which kernels of tiles read: the launches
// that make them, of the keep-mask, mask_mod and a block mask, and their room.
#pragma once

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Makes a kernel read the keep-mask, if there is one, as bits, unless these would take far more
// memory than the mask itself.
void read_mask_as_bits(const Problem& problem, Specialisation& s);
// Says no where the mask is read as bytes: a kernel whose tiles the TMA brings takes bits alone.
Support takes_mask_bits(const Specialisation& s);
// Puts the launch that makes the bits before all others of a plan that has kernels which read them.
// Call it last.
void add_mask_bits(const Problem& problem, LaunchPlan& plan);
// Whether a mask's lists say what tiles blocks of keys go over (kernels/backward/mask_tiles.h).
bool goes_over_lists(const Specialisation& s);
// Words of these lists.
int64_t mask_list_words(const Problem& problem);
// Words of the workspace that a plan's bits take.
int64_t mask_words(const LaunchPlan& plan);
// Sets their addresses, from `at` on. Returns what follows them.
float* set_mask_bits(const LaunchPlan& plan, float* at, kernels::ForwardArguments& arguments);

}  // namespace fulmen::gpu
