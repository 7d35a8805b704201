// What the families for few queries share: launch/decode*.cpp.
#pragma once

#include <algorithm>

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// A split has at least so many keys.
inline int64_t most_splits(const Problem& p, int64_t min_split_keys) {
  return std::max<int64_t>(1, p.seqlen_k / min_split_keys);
}

// Into how many parts keys are split: the number that costs least; of those that cost 2 % more, the
// smallest. groups: workgroups without splits; slots: workgroups that run at once.
int choose_splits(const Problem& p, int64_t groups, int64_t min_split_keys, int64_t slots);
// Two workgroups a compute unit.
inline int64_t two_workgroups(int compute_units) { return int64_t{2} * std::max(1, compute_units); }
// decode_combine.h behind a plan's launch, whose splits it merges, and their workspace.
void add_combine(const Problem& p, const Chip& chip, const Specialisation& split, LaunchPlan& plan);
// A launch with so many splits, and decode_combine.h where there are several, with their workspace.
// row_tiles: of a KV head; step_keys: that all waves of a workgroup take at once, of which a split
// has whole ones.
LaunchPlan split_plan(const Problem& p, const Chip& chip, const Specialisation& s,
                      int64_t row_tiles, int num_splits, int64_t step_keys);
// The number of splits as the one parameter: 1, 2, 4, ... `most`, and the usual one.
tuning::Space splits_space(const Chip& chip, int usual, int64_t most);

// Yes if the TMA can bring all of a split's keys and values for few queries, whose rows a kernel
// loads by itself; else why not. Strides below 1 and pages are asked for apart.
Support tma_reads_all_keys(const Problem& problem);
// What decode.h says of the problem.
Support decode_serves(const Problem& p, const Target& target, const Chip& chip);
// decode.h's launches with so many splits, and decode_combine.h where there are several.
LaunchPlan decode_plan(const Problem& p, const Target& target, const Chip& chip, int num_splits);

}  // namespace fulmen::gpu
