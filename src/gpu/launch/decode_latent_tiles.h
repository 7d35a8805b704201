// What kernels/forward/decode_latent_waves.h needs to know of a target.
#pragma once

#include <span>

namespace fulmen::gpu {

// A wave has 16 of a workgroup's rows, and a share of V's dims of all of them.
struct LatentShape {
  int waves;
  int min_waves;        // a SIMD
  int lds_queries = 0;  // operands of queries, of 32 dims, that are in LDS: registers have no room
};

struct DecodeLatentTiles {
  int block_n;
  std::span<const LatentShape> shapes;  // by waves: the first one that has all rows, or the last
};

}  // namespace fulmen::gpu
