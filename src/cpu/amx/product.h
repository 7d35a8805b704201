// C = A B or C += A B of operands in whole tiles, for a unit's two columns of tiles.
#pragma once

#include <cstdint>

#include "cpu/amx/operands.h"

namespace fulmen::cpu {

// A row of sums at a time, in two pairs of tiles by turns: one pair is stored among the products of
// the other, since a tile's store (15 cycles, a product 16) waits for the last product into it.
template <class Tiles, bool kAccumulate>
class UnitProduct {
 public:
  // a: [row_tiles][word_tiles] tiles, a_row floats from row to row; b: [word_tiles][2]; c:
  // [row_tiles][2].
  static __attribute__((noinline)) void run(const float* a, int64_t a_row, const float* b, float* c,
                                            int row_tiles, int word_tiles) {
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

// Operands and sums where they lie, not in whole tiles: a tile's rows are `stride` floats apart.
struct LeftTiles {  // [rows][word tiles of 16 words]
  const float* at;
  int64_t stride;
};
struct RightTiles {
  const float* at;
  int64_t stride;
  int64_t word_tile, column_tile;  // floats from one to the next
};
struct SumTiles {  // [rows][column tiles of 16]
  float* at;
  int64_t stride;
};

// C = A B or C += A B for kRows tiles of rows, 1 or 2: a column of sums at a time, in two pairs of
// tiles by turns, as above.
template <class Tiles, int kRows, bool kAccumulate>
class RowsProduct {
 public:
  static __attribute__((noinline)) void run(const LeftTiles& a, const RightTiles& b,
                                            const SumTiles& c, int column_tiles, int word_tiles) {
    RowsProduct product(a, b, c, word_tiles);
    int column = 0;
    for (; column + 2 <= column_tiles; column += 2) {
      product.template column_of_sums<0>(column);
      product.template column_of_sums<2>(column + 1);
    }
    if (column < column_tiles) {
      product.template column_of_sums<0>(column);
      product.template store<0>();
    } else if (column > 0) {
      product.template store<2>();
    }
  }

 private:
  FULMEN_INLINE RowsProduct(const LeftTiles& a, const RightTiles& b, const SumTiles& c,
                            int word_tiles)
      : a_(a), b_(b), c_(c), word_tiles_(word_tiles) {}

  template <int kSum>
  FULMEN_INLINE void column_of_sums(int column) {
    float* c = c_.at + column * kTile;
    begin<kSum>(c);
    if constexpr (kRows == 2) begin<kSum + 1>(c + kTile * c_.stride);
    const float* a = a_.at;
    const float* b = b_.at + column * b_.column_tile;
    multiply<kSum>(a, b);
    if (waiting_ != nullptr) store<kSum ^ 2>();
    for (int word = 1; word < word_tiles_; ++word) {
      a += kTile;
      b += b_.word_tile;
      multiply<kSum>(a, b);
    }
    waiting_ = c;
  }
  template <int kSum>
  FULMEN_INLINE void begin(const float* c) {
    if constexpr (kAccumulate) {
      Tiles::template load<kSum>(c, c_.stride);
    } else {
      Tiles::template zero<kSum>();
    }
  }
  template <int kSum>
  FULMEN_INLINE void multiply(const float* a, const float* b) {
    Tiles::template load<4>(b, b_.stride);
    Tiles::template load<5>(a, a_.stride);
    if constexpr (kRows == 2) Tiles::template load<6>(a + kTile * a_.stride, a_.stride);
    Tiles::template dot<kSum, 5, 4>();
    if constexpr (kRows == 2) Tiles::template dot<kSum + 1, 6, 4>();
  }
  template <int kSum>
  FULMEN_INLINE void store() {
    Tiles::template store<kSum>(waiting_, c_.stride);
    if constexpr (kRows == 2)
      Tiles::template store<kSum + 1>(waiting_ + kTile * c_.stride, c_.stride);
  }

  const LeftTiles& a_;
  const RightTiles& b_;
  const SumTiles& c_;
  int word_tiles_;
  float* waiting_ = nullptr;  // where the column that is not being added to belongs
};

}  // namespace fulmen::cpu
