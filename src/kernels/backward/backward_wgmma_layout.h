// Where the tiles of backward/backward_wgmma.h lie in LDS, in bytes: the same formulas for the
// host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

struct WarpgroupShape {
  int head_dim, head_dim_v, block_m, block_n;
  int buffers;        // of tiles of columns
  bool second_early;  // else there is one of their second tensor
  bool second_rows;   // whether a product takes the second (v or dout) rows
};

// LDS of backward_wgmma.h, all in panels (targets/sm90/target.h): the workgroup's rows, tiles of
// columns, and numbers of each column.
struct WarpgroupLayout {
  int first_rows_at, second_rows_at;
  int first_at, first_bytes, second_at, second_bytes;  // the tiles of columns, a tile's bytes
  int numbers_at, number_bytes, total;

  FULMEN_ALGORITHM static WarpgroupLayout of(const WarpgroupShape& s) {
    WarpgroupLayout l{};
    l.second_rows_at = s.block_m * 2 * s.head_dim;
    l.first_at = l.second_rows_at + (s.second_rows ? s.block_m * 2 * s.head_dim_v : 0);
    l.first_bytes = s.block_n * 2 * s.head_dim;
    l.second_at = l.first_at + s.buffers * l.first_bytes;
    l.second_bytes = s.block_n * 2 * s.head_dim_v;
    l.numbers_at = l.second_at + (s.second_early ? s.buffers : 1) * l.second_bytes;
    l.number_bytes = 8 * s.block_n;
    l.total = l.numbers_at + s.buffers * l.number_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
