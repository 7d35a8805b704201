// What kernels/forward/decode_tma.h needs to know of a target.
#pragma once

#include <cstdint>
#include <span>

namespace fulmen::gpu {

// The first shape counts whose max_head_dim holds the larger of q's and v's rows: those of one
// head, or of two heads that are read as one.
struct DecodeTmaShape {
  int max_head_dim;
  int block_n, buffers, min_workgroups;
};
struct DecodeTmaTiles {
  std::span<const DecodeTmaShape> shapes;
  int64_t min_split_keys;
};

}  // namespace fulmen::gpu
