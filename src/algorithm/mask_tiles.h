// Which tiles of queries each block of keys is multiplied with, as masks as bits say:
// MaskBits::lists, for backward_tma.h and backward_tma_wide.h. backward/mask_tiles.h makes them.
// Freestanding.
#pragma once

#include "algorithm/mask_bits.h"

namespace fulmen::algorithm {

constexpr int kMaskTileKeys = 128;  // a block's; a tile has kMaskRows queries

// A tile of a list.
struct MaskTile {
  static constexpr int kTileBits = 16;
  static constexpr Index kMost = Index{1} << kTileBits;  // tiles, and blocks
  unsigned word;

  FULMEN_ALGORITHM static MaskTile of(int tile, int before) {
    return {static_cast<unsigned>(before) << kTileBits | static_cast<unsigned>(tile)};
  }
  FULMEN_ALGORITHM int tile() const { return static_cast<int>(word & (kMost - 1)); }
  // Blocks that are taken before, in whose lists the tile is.
  FULMEN_ALGORITHM int before() const { return static_cast<int>(word >> kTileBits); }
};

// A plane is what a batch and a KV head have: a tile is in the list where any of the query heads
// has it. Blocks are taken one after the other, from the last to the first and with tiles from the
// first to the last, or both the other way round: upwards. Tiles in which no query has a key are
// in the list of the block that is taken first.
struct MaskTiles {
  // A list's head: its length, whether its plane is taken upwards, and from word 4 on the block's
  // keys that some query attends.
  static constexpr int kHeadWords = 8, kUpwardsAt = 1, kKeysAt = 4;
  Index blocks, tiles;

  FULMEN_ALGORITHM static MaskTiles of(Index seqlen_q, Index seqlen_k) {
    return {(seqlen_k + kMaskTileKeys - 1) / kMaskTileKeys, (seqlen_q + kMaskRows - 1) / kMaskRows};
  }
  // The head is followed by the tiles.
  FULMEN_ALGORITHM Index list_words() const { return kHeadWords + (tiles + 3) / 4 * 4; }
  // Where a list begins.
  FULMEN_ALGORITHM Index list(Index plane, Index block) const {
    return (plane * blocks + block) * list_words();
  }
  // Words of all lists, so many that what follows is aligned.
  FULMEN_ALGORITHM Index words(Index planes) const { return (list(planes, 0) + 15) / 16 * 16; }
};

}  // namespace fulmen::algorithm
