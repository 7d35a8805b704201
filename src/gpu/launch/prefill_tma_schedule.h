// Which tiles of prefill_tma.h's kernel a problem takes, and how workgroups go over them; for
// prefill_tma.cpp and prefill_fp8.cpp.
#pragma once

#include <algorithm>

#include "gpu/launch/prefill_tma_shapes.h"
#include "gpu/launch/tail_wave.h"

namespace fulmen::gpu {

struct PrefillTmaChoice {
  PrefillTmaShape shape;
  TileScheduler scheduler;
  TailWave last;
};

// Workgroups that run at once.
inline int64_t slots_of(const PrefillTmaShape& shape, int compute_units) {
  return int64_t{std::max(1, compute_units)} * shape.min_workgroups;
}
// By the target's table.
PrefillTmaChoice choose_tiles(const Problem& problem, const PrefillTmaTiles& tiles,
                              int compute_units);
// Schedules a plan that has one launch: sets how many workgroups it has and what they count by, and
// adds the launches that clear the tile counter and merge splits.
void schedule_tiles(const Problem& problem, const Chip& chip, const PrefillTmaChoice& choice,
                    int compute_units, LaunchPlan& plan);

}  // namespace fulmen::gpu
