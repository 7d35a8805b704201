// Where the tiles of a kernel lie in LDS, in bytes: the same formulas for the host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

struct ForwardShape {
  bool transposed_values;  // V^T in LDS (AMD); NVIDIA's ldmatrix transposes while it reads
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;          // of K and V tiles
  bool queries_in_lds;  // else in registers
};

struct ForwardLayout {
  int key_pitch;  // bytes from row to row: a column of 16-byte pieces lies in different banks
  int value_pitch;
  int key_bytes, value_bytes;  // a tile's
  int queries_at, total;       // K tiles first, then V tiles, then Q

  FULMEN_ALGORITHM static ForwardLayout of(const ForwardShape& s) {
    ForwardLayout l{};
    if (s.transposed_values) {
      // Eight rows' pieces in eight different groups of four banks.
      l.key_pitch = 2 * s.head_dim + 16;
      // Rows of V^T are read 16 bytes at a time by 8 lanes of 8 rows, and written 8 bytes at a time by 16 lanes: of one row with 64
      // keys, of two rows 8 apart with 32. 16 bytes more, or 8, put all of these in different banks.
      l.value_pitch = 2 * s.block_n + (s.block_n % 64 == 0 ? 16 : 8);
      l.value_bytes = s.head_dim_v * l.value_pitch;
    } else {
      // Lanes read 4 pieces (64 bytes) of two rows at a time.
      l.key_pitch = 2 * s.head_dim + (2 * s.head_dim % 128 == 64 ? 0 : 64);
      l.value_pitch = 2 * s.head_dim_v + 16;
      l.value_bytes = s.block_n * l.value_pitch;
    }
    l.key_bytes = s.block_n * l.key_pitch;
    l.value_bytes = (l.value_bytes + 15) / 16 * 16;
    l.queries_at = s.buffers * (l.key_bytes + l.value_bytes);
    l.total = l.queries_at + (s.queries_in_lds ? s.block_m * l.key_pitch : 0);
    return l;
  }
};

}  // namespace fulmen::kernels
