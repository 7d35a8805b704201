// What prefill_portable.h and backward_portable.h of the kernels need to know of a target.
#pragma once

namespace fulmen::gpu {

struct PortableTiles {
  int block_m, block_n;
  int workgroup;
  // A workgroup's. Chips have as much for two on a compute unit, or more for one.
  int most_lds_bytes;
};

}  // namespace fulmen::gpu
