// Tiles of fp32 in flight to LDS, and their products by parts: FloatTile, HeldRows, FloatSums,
// multiply_columns(), multiply_values().
#pragma once

#include "algorithm/transposed_rows.h"
#include "tile/fp32/tiles.h"
#include "tile/kept_keys.h"
#include "tile/rows.h"
#include "tile/values.h"

#if defined(FULMEN_TARGET_SM80)
#include "tile/fp32/nvidia.h"
#else
#include "tile/fp32/amd.h"
#endif

namespace fulmen::kernels {

// A second run, which is rare: it takes the code for masked tiles alone.
template <bool kGuarded>
constexpr bool kRunsAgain = kGuarded && !kGuardsAlways;

// Returns true if any wave has found something. All waves come here, when they have read LDS.
FULMEN_DEVICE bool any_wave(bool found) {
  barrier();
  const bool mine = any_lane(found);
  const int word = 4 * wave_id();
  if (lane_id() == 0) lds_store(word, mine ? 1U : 0U);
  barrier();
  unsigned all = 0;
#pragma unroll
  for (int w = 0; w < kFloatWaves; ++w) all |= lds_load<unsigned>(4 * w);
  barrier();
  return all != 0;
}

template <int kDims>
FULMEN_DEVICE bool has_nan(FloatSums<kDims>& sums) {
  bool found = false;
#pragma unroll
  for (int t = 0; t < kFloatRowTiles; ++t)
    sums.for_each(t, [&](float& x, int /*slot*/) { found = found || x != x; });
  return found;
}

}  // namespace fulmen::kernels
