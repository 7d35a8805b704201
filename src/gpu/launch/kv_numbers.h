// Quantized keys and values for families whose tiles the TMA brings: a launch before theirs writes
// them as numbers of q's dtype, row after row, whatever pages they come from
// (kernels/forward/kv_numbers.h).
#pragma once

#include "gpu/launch/family.h"
#include "kernels/tile/kv_numbers_workspace.h"

namespace fulmen::gpu {

// The problem as these families see it: k and v of q's dtype, in the workspace, without pages and
// scales. Any other problem as it is.
Problem in_numbers(const Problem& problem);
// Where they are in the workspace.
kernels::KvNumbers kv_numbers_of(const Problem& problem);
// Yes if the launch writes the numbers of the problem's formats and scales, or if nothing is
// quantized; else why not.
Support writes_numbers(const Problem& problem, const Target& target);
// What the products' kernel knows of the scales.
void specialise_numbers(const Problem& problem, Specialisation& s);
// Puts the launch before the plan's others.
void add_kv_numbers(const Problem& problem, LaunchPlan& plan);

}  // namespace fulmen::gpu
