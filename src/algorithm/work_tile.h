// Work tiles of sequences of different lengths, which no formula counts: sequences/work_tiles.h
// lists them in memory, in the launch before the kernels that take them. Freestanding.
#pragma once

#include "algorithm/key_range.h"

namespace fulmen::algorithm {

// Tiles of `rows` query rows, 64 a warpgroup, of a sequence for `heads` heads that share keys. One
// query would take a tile for each head, and each tile would read all keys. So the heads share
// tiles where these are fewer: rows are queries times heads, query after query, and a warpgroup has
// whole queries. Else each head has tiles of its own: tiles of the first queries come for each
// head, then those of the next ones.
struct SharedTiles {
  int heads, group_queries, rows;  // group_queries: of a warpgroup

  FULMEN_ALGORITHM static SharedTiles of(int heads, int rows) { return {heads, 64 / heads, rows}; }
  FULMEN_ALGORITHM int queries() const { return rows / 64 * group_queries; }
  // A shared tile's queries and outputs take more time: an eighth of all tiles has to be saved.
  FULMEN_ALGORITHM bool is_shared(Index q_len) const {
    return heads > 1 && 8 * count(q_len, queries()) <= 7 * heads * count(q_len, rows);
  }
  // Tiles of the first head, or of all that share them.
  FULMEN_ALGORITHM int count(Index q_len) const {
    return static_cast<int>(count(q_len, is_shared(q_len) ? queries() : rows));
  }
  // How many heads each of them is listed for.
  FULMEN_ALGORITHM int copies(Index q_len) const { return is_shared(q_len) ? 1 : heads; }

 private:
  // In 32 bits, as queries() is no constant.
  FULMEN_ALGORITHM static Index count(Index q_len, int of_tile) {
    return (static_cast<unsigned>(q_len) + static_cast<unsigned>(of_tile) - 1) /
           static_cast<unsigned>(of_tile);
  }
};

// A tile of a sequence's queries. `tile`: its number of SharedTiles::count(), times copies(), and
// that of the copy. 32 bytes.
struct alignas(16) WorkTile {
  int batch, tile;
  // Where the sequence lies (algorithm/sequences.h), clamped to the tensors.
  int q_row, q_len, k_row, k_len;
  int marks;  // the sum of kCut, where clamping changed it, and kShared, where heads share the tile
  int cost;   // larger ones are taken earlier

  static constexpr int kCut = 1, kShared = 2;
};

// The work tiles of all heads, or of the first one of those that share tiles. Tiles lie in runs of
// `run_tiles`, whose keys and values the L2 holds for section_heads heads; within a run those of
// most work come first.
struct WorkTable {
  WorkTile* tiles;
  int* count;     // how many there are
  int capacity;   // for how many there is room
  int run_tiles;  // up to kMostRunTiles for each of the heads that may share tiles
  // SharedTiles of these heads; head_reciprocal: 2^32 / heads, rounded up.
  int heads, group_queries;
  unsigned head_reciprocal;
};
constexpr int kMostRunTiles = 1024;

}  // namespace fulmen::algorithm
