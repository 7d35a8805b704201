// Where the tiles of backward/bias_gradient.h lie in LDS, in bytes: the same formulas for the host,
// which reserves it, and for the kernel.
#pragma once

#include "algorithm/transposed_rows.h"

namespace fulmen::kernels {

struct BiasGradientLayout {
  int keys_at, values_at, queries_at, dout_at;  // in a buffer
  int first_pitch, second_pitch;                // of k and q; of v and dout
  int buffer_bytes, total;

  // padding: of rows, as algorithm/transposed_rows.h says; NVIDIA swizzles.
  FULMEN_ALGORITHM static BiasGradientLayout of(int padding, int head_dim, int head_dim_v,
                                                int block_m, int block_n, int buffers) {
    BiasGradientLayout l{};
    l.first_pitch = 2 * head_dim + padding;
    l.second_pitch = 2 * head_dim_v + padding;
    l.values_at = block_n * l.first_pitch;
    l.queries_at = l.values_at + block_n * l.second_pitch;
    l.dout_at = l.queries_at + block_m * l.first_pitch;
    l.buffer_bytes = l.dout_at + block_m * l.second_pitch;
    l.total = buffers * l.buffer_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
