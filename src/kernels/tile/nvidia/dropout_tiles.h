// Dropout of probabilities in registers, of 16 rows and up to 128 keys at once.
#pragma once

#include "core/dropout.h"
#include "core/matrix.h"
#include "tile/modified_scores.h"

namespace fulmen::kernels {

// The mask of 16 queries and kTiles x 16 keys. Of each tile a lane computes one block of random
// numbers and needs two elements of each of four, whose other lanes are lane_id() ^ 1, 4 and 5
// (tile/dropout_tile.h has one tile, of any target). It keeps the tiles' bits in bytes, a bit a
// tile, and two exchanges bring it its own, whatever the number of tiles.
template <int kTiles>
class DropoutTiles {
 public:
  static_assert(kTiles <= 8, "dropout: a bit of a byte for each tile");

  // first_query, first_key: multiples of 16. All lanes of a wave meet here.
  FULMEN_DEVICE static DropoutTiles of(const DropoutMask& mask, Int64 first_query,
                                       Int64 first_key) {
    const int lane = lane_id();
    const bool odd_keys = lane % 2 != 0, odd_row = lane / 4 % 2 != 0;
    // The lane's block: of the lower 8 queries or the upper ones, by odd_keys, and of the first or
    // the second 8 keys, by odd_row.
    const unsigned row_pair = (static_cast<unsigned>(first_query) + (odd_keys ? 8U : 0U) +
                               static_cast<unsigned>(lane / 4)) /
                              2;
    const unsigned quad =
        block_column(first_key) + (odd_row ? 2U : 0U) + static_cast<unsigned>(lane % 4 / 2);
    // Bytes, of the block's keys 0 and 1 or 2 and 3: the first key of both queries, the second.
    unsigned low = 0, high = 0;
#pragma unroll
    for (int f = 0; f < kTiles; ++f) {
      const auto stays = mask.stays_of_block(row_pair, quad + 4U * static_cast<unsigned>(f));
      const unsigned bits = 0x01010101U << f;
      low |= byte_signs(stays.word[0], stays.word[1]) & bits;
      high |= byte_signs(stays.word[2], stays.word[3]) & bits;
    }
    // The lane's two keys, of the block of the lower queries and of that of the upper ones.
    const unsigned others_keys = shuffle_xor(odd_keys ? low : high, 1);
    const unsigned lower = odd_keys ? others_keys : low, upper = odd_keys ? high : others_keys;
    // The lane's queries, of the blocks of the first 8 keys and of the second.
    const unsigned even = alternate_bytes(lower, upper, false),
                   odd = alternate_bytes(lower, upper, true);
    const unsigned others_rows = shuffle_xor(odd_row ? even : odd, 4);
    DropoutTiles tiles{};
    tiles.kept_[0] = odd_row ? others_rows : even;
    tiles.kept_[1] = odd_row ? odd : others_rows;
    return tiles;
  }
  // Bit f: whether the lane's element e of tile f stays.
  FULMEN_DEVICE unsigned byte(int e) const { return kept_[e / 4] >> (8 * (e % 4)) & 0xFFU; }

 private:
  // Philox counts in 32 bits.
  FULMEN_DEVICE static unsigned block_column(Int64 key) {
    return static_cast<unsigned>(static_cast<unsigned long long>(key) >> 2U);
  }
  unsigned kept_[2];  // of the lane's 4 elements of 8 keys a byte each
};

// Zeroes dropped probabilities of 16 rows and the keys from first_key on, as tile/drop.h does.
// kFirst: tiles before it are done.
template <int kFirst = 0, int kTiles>
FULMEN_DEVICE void drop_tiles(const RowMap& map, Int64 first_row, Int64 first_key,
                              TileRow<kTiles>& probability) {
  const DropoutMask mask(map.arguments, map.batch, map.first_head);
  constexpr int kLeft = kTiles - kFirst, kAtOnce = kLeft < 8 ? kLeft : 8;
  const auto tiles = DropoutTiles<kAtOnce>::of(mask, first_row, first_key + kScoreTile * kFirst);
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const unsigned kept = tiles.byte(e);
#pragma unroll
    for (int f = 0; f < kAtOnce; ++f) {
      float& p = probability[kFirst + f][e];
      p = (kept >> f & 1U) != 0 ? p : 0.0F;
    }
  }
  if constexpr (kAtOnce < kLeft) {
    drop_tiles<kFirst + kAtOnce>(map, first_row, first_key, probability);
  }
}

}  // namespace fulmen::kernels
