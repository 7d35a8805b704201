// The tail wave of tiles of queries on Hopper's warpgroups, and what it costs (prefill_tma.cpp).
#pragma once

#include <cstdint>

#include "gpu/launch/family.h"

namespace fulmen::gpu {

// Tiles of 64 rows a warpgroup, of all heads and sequences.
int64_t tiles_of_queries(const Problem& problem, int warpgroups);

// The tail wave: the tiles that are left when all others have filled the device a whole number of
// times, and into how many splits of the keys each of them is cut.
struct TailWave {
  int64_t tiles = 0;
  int splits = 1;
  int64_t split_keys = 0;
  double waves = 0;  // the time it takes, in waves of tiles that are not split
};

// slots: workgroups that run at once.
TailWave tail_wave(const Problem& problem, const PrefillTmaShape& shape, int64_t slots);

// Returns true if tiles of 128 rows, whose tail wave is shorter, have the shorter estimated time. A
// row of theirs takes (32 / head_dim)^2 more time: a quarter of 64 dims, a sixteenth of 128. Many
// tiles of unequal work, with a band, end together whatever their size: empty rows count there, a
// tail wave does not.
bool small_tiles_take_less_time(const Problem& problem, const PrefillTmaShape& shape,
                                int compute_units);

}  // namespace fulmen::gpu
