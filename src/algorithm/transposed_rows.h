// Transposed tiles in LDS, in bytes: the same formulas for the host and for kernels.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::algorithm {

// Bytes from row to row of a transposed tile of block_n keys, of which a product takes `depth`.
// 16 keys: they are read 8 bytes at a time by 16 lanes of 16 rows, and written 8 bytes at a time by
// 16 lanes: of one row with 64 keys, of two rows 8 apart with 32. 8 bytes more put all of these in
// different banks. 32 keys: they are read 16 bytes at a time by 8 lanes of 8 rows.
FULMEN_ALGORITHM int transposed_pitch(int block_n, int depth) {
  return 2 * block_n + (depth == 32 ? 16 : 8);
}

// Where row `dim` begins. Tiles of 16 keys are written to four rows at once, 8 apart: the second
// two would lie in the banks of the first. So would the second of two rows of 32 keys, with the
// pitch of a depth of 32.
FULMEN_ALGORITHM int transposed_row(int dim, int block_n, int depth) {
  const int row = dim * transposed_pitch(block_n, depth);
  if (depth == 32) return row + (block_n == 32 ? dim / 8 * 64 : 0);
  return row + (block_n == 16 ? dim / 16 * 32 : 0);
}

// Bytes behind each row of a tile that lies as it comes, beside transposed ones (depth > 0). Its
// rows' pieces of 16 bytes are read from 8 rows at once: 16 bytes put them in different banks.
// transposes: LDS does so while it is read, from 64 banks; pieces then come from 16 rows, which are
// four, eight and four of a piece and of the next one, and 32 bytes from 8 rows.
FULMEN_ALGORITHM int row_padding(int depth, bool transposes) {
  if (depth == 0) return 0;
  return transposes ? 32 : 16;
}

}  // namespace fulmen::algorithm
