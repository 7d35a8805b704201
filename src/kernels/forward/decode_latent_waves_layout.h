// Where what forward/decode_latent_waves.h has in LDS lies, in bytes: the same formulas for the
// host, which reserves it, and for the kernel.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::kernels {

// Tiles of keys of 16 bits, row after row: the values of one are read, the keys of the next, and
// the tile after that is written. Probabilities lie as operands, and beside them the rows' rescale
// factors; of two tiles each. Behind `total` come operands of queries.
struct LatentWavesLayout {
  static constexpr int kTiles = 3, kParts = 2;
  int pitch, tile_bytes;
  int probabilities_at, probability_bytes;
  int factors_at, total;

  // Of an operand of all rows' queries: 32 dims.
  FULMEN_ALGORITHM static int query_bytes(int block_m) { return 2 * 32 * block_m; }
  // padding: algorithm::row_padding().
  FULMEN_ALGORITHM static LatentWavesLayout of(int key_dims, int block_m, int block_n,
                                               int padding) {
    LatentWavesLayout l{};
    l.pitch = 2 * key_dims + padding;
    l.tile_bytes = block_n * l.pitch;
    l.probabilities_at = kTiles * l.tile_bytes;
    l.probability_bytes = 2 * block_m * block_n;
    l.factors_at = l.probabilities_at + kParts * l.probability_bytes;
    l.total = l.factors_at + kParts * 4 * block_m;
    return l;
  }
};

}  // namespace fulmen::kernels
