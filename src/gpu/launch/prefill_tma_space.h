// What prefill_tma.cpp and prefill_fp8.cpp share: a tile shape's place in a kernel and in the
// tuner's space.
#pragma once

#include "gpu/launch/prefill_tma_schedule.h"
#include "tuning/space.h"

namespace fulmen::gpu {

// Sets what a kernel has of the shape and the scheduler.
void set_shape(const PrefillTmaShape& shape, TileScheduler scheduler, Specialisation& s);

// What a tuner may say of the shape.
struct PrefillTmaOptions {
  int most_warpgroups;
  std::vector<int> block_n, buffers, min_workgroups;
};
// The parameters of the space, in its order: block_m, block_n, buffers, min_workgroups, ping_pong,
// persistent, splits_last.
std::vector<tuning::ParameterRange> parameters_of(const PrefillTmaChoice& usual,
                                                  PrefillTmaOptions options);
PrefillTmaShape shape_of_values(std::span<const int> values);
TileScheduler scheduler_of_values(std::span<const int> values);
bool splits_last(std::span<const int> values);
// The choice that the values say.
PrefillTmaChoice choice_of_values(const Problem& problem, std::span<const int> values,
                                  int compute_units);
// Refuses splits that are not worth it.
Support takes_splits(const Problem& problem, std::span<const int> values, int compute_units);
// Whether tiles of that shape have the LDS, the warpgroups and the registers that they need.
// operand_registers: a lane's beside outputs and scores.
Support tiles_fit(const PrefillTmaShape& shape, const Specialisation& s, const Chip& chip,
                  int operand_registers);

}  // namespace fulmen::gpu
