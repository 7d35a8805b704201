// What prefill_portable.h and backward_portable.h of the kernels need to know of a target.
#pragma once

namespace fulmen::gpu {

struct PortableTiles {
  int block_m, block_n;
  int chunk;  // dims that are in LDS at once
  int workgroup;
};

}  // namespace fulmen::gpu
