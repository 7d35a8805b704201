// What a call's bool mask keeps of each tile of queries and keys: tiles of which it keeps nothing
// are skipped, and tiles of which it keeps all need no mask. Made once a call (cpu/mask_tiles.h).
#pragma once

#include <cstdint>

#include "cpu/tile/tile.h"
#include "fulmen/problem.h"

namespace fulmen::cpu {

enum class Kept : uint8_t { none, some, all };

// Bytes of a mask that have been looked at: eight at once, whatever the instruction set.
struct MaskBytes {
  uint64_t set = 0;   // not 0 if a byte was
  uint64_t zero = 0;  // not 0 if a byte was 0

  FULMEN_INLINE void add(const uint8_t* bytes, int64_t count) {
    constexpr int64_t kWord = sizeof(uint64_t);
    int64_t i = 0;
    for (; i + kWord <= count; i += kWord) {
      uint64_t word;
      __builtin_memcpy(&word, bytes + i, sizeof word);
      set |= word;
      zero |= (word - 0x0101010101010101) & ~word & 0x8080808080808080;
    }
    for (; i < count; ++i) {
      set |= bytes[i];
      zero |= bytes[i] == 0 ? 1 : 0;
    }
  }
  FULMEN_INLINE Kept kept() const {
    return set == 0 ? Kept::none : zero == 0 ? Kept::all : Kept::some;
  }
};

constexpr int kMaskKeys = 64;  // keys of a summarised tile, whose queries are kBlockM

// What a block mask says of its blocks.
enum class BlockState : uint8_t { none, partial, full };

// A block mask as a table; strides count blocks, 0 where it is broadcast.
struct BlockStates {
  const BlockState* states = nullptr;  // [batch or 1][heads or 1][query blocks][key blocks]
  int64_t batch = 0, head = 0, row = 0;
  int64_t query_blocks = 0;
  int64_t block_q = 1, block_k = 1;

  // The first key after `key` of another block; without a block mask there is none.
  FULMEN_INLINE int64_t block_end(int64_t key) const {
    return states == nullptr ? INT64_MAX : (key / block_k + 1) * block_k;
  }
  // Without a block mask all are masked by mask_mod.
  FULMEN_INLINE BlockState of(int64_t b, int64_t h, int64_t query, int64_t key) const {
    if (states == nullptr) return BlockState::partial;
    const int64_t block = query / block_q;
    // Rows of a tile behind the last query may lie in no block.
    if (block >= query_blocks) return BlockState::none;
    return states[b * batch + h * head + block * row + key / block_k];
  }
};

// Strides count tiles; they are 0 where the mask is broadcast.
struct MaskSummary {
  const Kept* tiles = nullptr;  // [batch or 1][heads or 1][query tiles or 1][key tiles]; null: none
                                // was made
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  // Whether mask_mod or a block mask have a part in it; then there are tiles.
  bool functions = false;
  BlockStates blocks;

  // Of the tile that holds a query and a key.
  FULMEN_INLINE const Kept* at(int64_t b, int64_t h, int64_t query, int64_t key) const {
    return tiles + b * batch + h * head + query / kBlockM * row + key / kMaskKeys;
  }
};

// What the mask keeps of keys [first, first + count) and the query tile that holds `row`. `first`
// is a multiple of kMaskKeys. Kept::some is always a right answer: without a summary it is the
// only one, unless there is no mask.
FULMEN_INLINE Kept kept_of(const Problem& problem, const MaskSummary& mask, int64_t batch,
                           int64_t head, int64_t row, int64_t first, int64_t count) {
  if (!problem.keep_mask.present && !mask.functions) return Kept::all;
  if (mask.tiles == nullptr) return Kept::some;
  const Kept* tile = mask.at(batch, head, row, first);
  const Kept kept = tile[0];
  for (int64_t key = kMaskKeys; key < count; key += kMaskKeys) {
    if (tile[key / kMaskKeys] != kept) return Kept::some;
  }
  return kept;
}

}  // namespace fulmen::cpu
