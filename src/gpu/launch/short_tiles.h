// What kernels/forward/short.h needs to know of a target.
#pragma once

#include <limits>

namespace fulmen::gpu {

// Scores, outputs and a step's operands are in registers at once.
struct ShortTiles {
  int max_head_dim;
  // Elements of V, keys times dims, that have registers before they are needed; whether they have
  // them beside a keep mask, and where rows are loaded element by element.
  int early_values = std::numeric_limits<int>::max();
  bool early_beside_mask = true;
  bool early_odd_dims = true;
  bool early_is_tuned = true;  // the tuner may ask for V early, whatever the three above say
  // Limits for head dims that are no multiples of 8.
  int most_odd_dim = std::numeric_limits<int>::max(),
      most_odd_keys = std::numeric_limits<int>::max();
};

}  // namespace fulmen::gpu
