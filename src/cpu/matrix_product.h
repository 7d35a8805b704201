// C = A B or C += A B of operands in whole tiles, for a unit's two columns of tiles.
#pragma once

#include <cstdint>

#include "cpu/matrix_operands.h"

namespace fulmen::cpu {

// A row of sums at a time, in two pairs of tiles by turns: one pair is stored among the products of the other, since a tile's store
// (15 cycles, a product 16) waits for the last product into it.
template <class Tiles, bool kAccumulate>
class UnitProduct {
 public:
  // a: [row_tiles][word_tiles] tiles, a_row floats from row to row; b: [word_tiles][2]; c: [row_tiles][2].
  static __attribute__((noinline)) void run(const float* a, int64_t a_row, const float* b, float* c, int row_tiles,
                                            int word_tiles) {
    UnitProduct product(b, word_tiles);
    int row = 0;
    for (; row + 2 <= row_tiles; row += 2, a += 2 * a_row, c += 2 * kTileRow) {
      product.template row_of_sums<0>(a, c);
      product.template row_of_sums<2>(a + a_row, c + kTileRow);
    }
    if (row < row_tiles) {
      product.template row_of_sums<0>(a, c);
      product.template store<0>();
    } else if (row > 0) {
      product.template store<2>();
    }
  }

 private:
  FULMEN_INLINE UnitProduct(const float* b, int word_tiles) : b_(b), word_tiles_(word_tiles) {}

  template <int kSum>
  FULMEN_INLINE void row_of_sums(const float* a, float* c) {
    constexpr int kOther = kSum ^ 2;
    begin<kSum>(c);
    begin<kSum + 1>(c + kTileFloats);
    const float* b = b_;
    load(a, b);
    Tiles::template dot<kSum, 4, 5>();
    if (waiting_ != nullptr) Tiles::template store<kOther>(waiting_, kTile);
    Tiles::template dot<kSum + 1, 4, 6>();
    if (waiting_ != nullptr) Tiles::template store<kOther + 1>(waiting_ + kTileFloats, kTile);
    for (int word = 1; word < word_tiles_; ++word) {
      a += kTileFloats;
      b += kTileRow;
      load(a, b);
      Tiles::template dot<kSum, 4, 5>();
      Tiles::template dot<kSum + 1, 4, 6>();
    }
    waiting_ = c;
  }
  template <int kSum>
  FULMEN_INLINE void begin(const float* c) {
    if constexpr (kAccumulate) {
      Tiles::template load<kSum>(c, kTile);
    } else {
      Tiles::template zero<kSum>();
    }
  }
  FULMEN_INLINE void load(const float* a, const float* b) {
    Tiles::template load<4>(a, kTile);
    Tiles::template load<5>(b, kTile);
    Tiles::template load<6>(b + kTileFloats, kTile);
  }
  template <int kSum>
  FULMEN_INLINE void store() {
    Tiles::template store<kSum>(waiting_, kTile);
    Tiles::template store<kSum + 1>(waiting_ + kTileFloats, kTile);
  }

  const float* b_;
  int word_tiles_;
  float* waiting_ = nullptr;  // where the pair that is not being added to belongs
};

}  // namespace fulmen::cpu
