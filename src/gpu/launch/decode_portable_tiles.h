// What kernels/forward/decode_portable.h needs to know of a target.
#pragma once

#include <cstdint>

namespace fulmen::gpu {

struct DecodePortableTiles {
  int workgroup;     // lanes
  int block_n;       // keys of a lane, which are in flight at once
  int block_m;       // rows of a workgroup, whose queries and outputs registers hold
  int narrow_above;  // dims, above which a workgroup has half of block_m, above twice as many a
                     // quarter
  int most_rows;     // that share a KV head: each workgroup reads all of K and V
  int64_t min_split_keys;
};

}  // namespace fulmen::gpu
