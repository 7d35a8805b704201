// Work tiles of sequences of different lengths, which no formula counts: sequences/work_tiles.h
// lists them in memory, in the launch before the kernels that take them. Freestanding.
#pragma once

namespace fulmen::algorithm {

// A tile of a sequence's queries. 32 bytes.
struct alignas(16) WorkTile {
  int batch, tile;
  // Where the sequence lies (algorithm/sequences.h), clamped to the tensors; cut: 1 where that
  // changed it.
  int q_row, q_len, k_row, k_len, cut;
  int cost;  // larger ones are taken earlier
};

// The work tiles of all heads. Tiles lie in runs of `run_tiles`, whose keys and values the L2 holds
// for section_heads heads; within a run those of most work come first.
struct WorkTable {
  WorkTile* tiles;
  int* count;     // how many there are
  int capacity;   // for how many there is room
  int run_tiles;  // at most kMostRunTiles
};
constexpr int kMostRunTiles = 1024;

}  // namespace fulmen::algorithm
