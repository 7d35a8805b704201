// Where the tiles of forward/boards.h lie in LDS, in bytes: the same formulas for the host, which
// reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

struct BoardsShape {
  int head_dim, block;
  int buffers;  // boards
  bool bias;    // of 16 bits, beside the board
};

// LDS of boards.h: a board's queries, keys and values as swizzled rows, and its bias.
struct BoardsLayout {
  int k_at, v_at, bias_at;  // in a buffer, which begins with the queries
  int buffer_bytes, total;

  FULMEN_ALGORITHM static BoardsLayout of(const BoardsShape& s) {
    BoardsLayout l{};
    l.k_at = s.block * 2 * s.head_dim;
    l.v_at = 2 * l.k_at;
    l.bias_at = 3 * l.k_at;
    l.buffer_bytes = l.bias_at + (s.bias ? s.block * 2 * s.block : 0);
    l.total = s.buffers * l.buffer_bytes;
    return l;
  }
};

}  // namespace fulmen::kernels
