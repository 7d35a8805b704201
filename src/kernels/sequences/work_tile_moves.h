// A work tile's entry from and to memory and LDS, by 16 bytes.
#pragma once

#include "core/config.h"

namespace fulmen::kernels {

struct WorkTileWords {
  Words<4> half[2];
  FULMEN_DEVICE static WorkTileWords of(const WorkTile& tile) {
    return __builtin_bit_cast(WorkTileWords, tile);
  }
  FULMEN_DEVICE WorkTile tile() const { return __builtin_bit_cast(WorkTile, *this); }
};
static_assert(sizeof(WorkTileWords) == sizeof(WorkTile), "a work tile is 32 bytes");

FULMEN_DEVICE WorkTile load_work_tile(const WorkTile* from) {
  const auto* half = reinterpret_cast<const Words<4>*>(from);
  return WorkTileWords{{global_load(half), global_load(half + 1)}}.tile();
}
FULMEN_DEVICE void store_work_tile(WorkTile* to, const WorkTile& tile) {
  const WorkTileWords words = WorkTileWords::of(tile);
  auto* half = reinterpret_cast<Words<4>*>(to);
  global_store(half, words.half[0]);
  global_store(half + 1, words.half[1]);
}

FULMEN_DEVICE void lds_store_work_tile(int at, const WorkTile& tile) {
  const WorkTileWords words = WorkTileWords::of(tile);
  lds_store(at, words.half[0]);
  lds_store(at + 16, words.half[1]);
}
// All lanes of a wave get the same.
FULMEN_DEVICE WorkTile lds_load_work_tile(int at) {
  WorkTileWords words{{lds_load<Words<4>>(at), lds_load<Words<4>>(at + 16)}};
#pragma unroll
  for (int w = 0; w < 8; ++w) {
    unsigned& word = words.half[w / 4].word[w % 4];
    word = static_cast<unsigned>(broadcast(static_cast<int>(word)));
  }
  return words.tile();
}

}  // namespace fulmen::kernels
