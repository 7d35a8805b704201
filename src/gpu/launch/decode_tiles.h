// What kernels/forward/decode.h needs to know of a target.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace fulmen::gpu {

// Quantized keys and values come by a ring of tiles in LDS, each wave's own (tile/tile_ring.h).
struct DecodeRingShape {
  int max_head_dim;  // of k and v, rounded up
  int waves;
  int block_n;
  int buffers;
  int min_workgroups;  // that a multiprocessor has registers and LDS for
};

// A workgroup has 16 rows, and its waves take key tiles round-robin.
struct DecodeTiles {
  int waves = 4;
  int block_n = 16;  // keys of a wave's step: with more the operands in flight would spill
  int64_t min_split_keys;
  // Where workgroups with all keys of their rows fill the chip once, they need no second kernel:
  // their waves, 0 where they always split; for head_dim_v up to that, rounded up; up to
  // paired_head_dim two of them run on a multiprocessor at once.
  int unsplit_waves = 0;
  int unsplit_head_dim_v = 0;
  int paired_head_dim = 0;
  // Dims of v that a wave's registers have room for; above, two waves share their keys, or more.
  int wave_head_dim_v = 256;
  int wide_wave_head_dim_v = wave_head_dim_v;  // the same of heads of more than 256
  // Most head dim with a bias where rows are not at multiples of 16 bytes: the addresses of both
  // take registers.
  int most_far_bias_dim = std::numeric_limits<int>::max();
  std::span<const DecodeRingShape> rings = {};  // by max_head_dim; none: operands come from memory
};

}  // namespace fulmen::gpu
