// Dropout's mask of a tile of 16 queries and 16 keys in registers.
#pragma once

#include "core/dropout.h"
#include "core/matrix.h"

namespace fulmen::kernels {

// The elements that a lane holds are of kBlocks blocks of random numbers, each of 2 queries and 4
// keys, and so are those of kBlocks - 1 other lanes. Each of these lanes computes one block, and
// they tell each other which elements stay, a bit for each.
template <bool kRowsAreKeys>
class DropoutTile {
 public:
  // first_query, first_key: multiples of 16. All lanes of a wave meet here.
  FULMEN_DEVICE static DropoutTile of(const DropoutMask& mask, Int64 first_query, Int64 first_key) {
    DropoutTile tile{};
    if constexpr (!kDropout) return tile;
    int own = 0;
#pragma unroll
    for (int n = 0; n < kExchanges; ++n)
      own += (lane_id() & block_sharer(kRowsAreKeys, n)) != 0 ? 1 << n : 0;
    const int row = tile_row(row_slot(own * kRun)), column = tile_column(own * kRun);
    const int query = kRowsAreKeys ? column : row, key = kRowsAreKeys ? row : column;
    unsigned kept =
        mask.kept_of_block(block_of(first_query, 1) + query / 2, block_of(first_key, 2) + key / 4)
        << (4 * (own % 4));
#pragma unroll
    for (int n = 0; n < kExchanges && n < 2; ++n)
      kept |= shuffle_xor(kept, block_sharer(kRowsAreKeys, n));
    // Where the lane's elements of a block begin.
    const int first =
        kRowsAreKeys ? row % 4 + 16 * (tile_column(0) % 2) : tile_column(0) % 4 + 16 * (row % 2);
    if constexpr (kBlocks > 4) {
      const unsigned others = shuffle_xor(kept, block_sharer(kRowsAreKeys, 2));
      tile.kept_[0] = (own < 4 ? kept : others) >> first;
      tile.kept_[kWords - 1] = (own < 4 ? others : kept) >> first;
    } else {
      tile.kept_[0] = kept >> first;
    }
    return tile;
  }
  // Returns true if the lane's element e stays.
  FULMEN_DEVICE bool keeps(int e) const {
    if constexpr (!kDropout) return true;
    const int block = e / kRun;
    return (kept_[block / 4] >> (4 * (block % 4) + kStep * (e % kRun)) & 1U) != 0;
  }

 private:
  // Philox counts in 32 bits.
  FULMEN_DEVICE static unsigned block_of(Int64 index, int log2) {
    return static_cast<unsigned>(static_cast<unsigned long long>(index) >> log2);
  }
  static constexpr int kColumnStep = kColumnRun == 1 ? 2 : 1;
  // Neighbouring elements of a lane in a block, and the distance of their bits.
  static constexpr int kRun = kRowsAreKeys      ? 2 / kColumnStep
                              : kColumnRun == 1 ? 2
                              : kColumnRun < 4  ? kColumnRun
                                                : 4;
  static constexpr int kStep = kRowsAreKeys ? 16 : kColumnStep;
  static constexpr int kBlocks = kElements / kRun, kWords = (kBlocks + 3) / 4;
  static constexpr int kExchanges = kBlocks == 1 ? 0 : kBlocks == 2 ? 1 : kBlocks == 4 ? 2 : 3;
  static_assert(kBlocks == 1 << kExchanges, "dropout: as many lanes as blocks");

  unsigned kept_[kWords];
};

}  // namespace fulmen::kernels
