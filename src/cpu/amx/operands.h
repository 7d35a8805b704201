// Operands that lie in whole matrix tiles (AMX): every tile is 1 KB of neighbours, so that loading
// it touches each of L1's sets once. A left operand is [rows / 16][words / 16] tiles; a right
// operand is [words / 16][2] tiles and a sum [rows / 16][2], a unit of kUnitRows query rows in
// their columns.
#pragma once

#include <cstdint>

#include "cpu/tile/pack.h"

namespace fulmen::cpu {

constexpr int kTile = 16;  // rows, and words of a row
constexpr int kTileFloats = kTile * kTile;
// Query rows that go through the products and the softmax together: their scores and output, and
// what of keys and values is at hand, stay in L1, which stores need more than anything (1 cycle a
// line there, 3.6 beyond).
constexpr int kUnitRows = 2 * kTile;
constexpr int kUnitTiles = kUnitRows / kTile;
constexpr int kUnitsPerTile = kBlockM / kUnitRows;
constexpr int64_t kTileRow = kUnitTiles * kTileFloats;  // floats of a row of a unit's tiles

FULMEN_INLINE int tiles_of(int64_t rows_or_words) {
  return static_cast<int>((rows_or_words + kTile - 1) / kTile);
}

// Where row `row` of a unit's tiles [rows / 16][2] begins, in its first column of tiles.
FULMEN_INLINE int64_t unit_row(int64_t row) { return row / kTile * kTileRow + row % kTile * kTile; }

// Words [first, next whole tile) of a unit's right operand become 0.
template <class Isa>
FULMEN_INLINE void clear_last_words(float* tiles, int first) {
  for (int word = first; word % kTile != 0; ++word) {
#pragma GCC unroll 2
    for (int column = 0; column < kUnitTiles; ++column)
      Isa::store(tiles + unit_row(word) + column * kTileFloats, Isa::zero());
  }
}

// Row `row` (of units of kUnitRows) and word `word` of right operands, one after the other.
struct UnitPlace {
  int word_tiles;
  FULMEN_INLINE int64_t operator()(int word, int row) const {
    const int64_t tile =
        (static_cast<int64_t>(row / kUnitRows) * word_tiles + word / kTile) * kUnitTiles +
        row % kUnitRows / kTile;
    return tile * kTileFloats + word % kTile * kTile + row % kTile;
  }
};

// k rows [keys][dim] -> left operand [keys][words of dim], zeros to the end of the last tile's
// words. alive as in pack_values.
template <class Isa, class Rows>
__attribute__((noinline)) void pack_key_tiles(Rows k, int keys, int64_t dim, float* out,
                                              const uint8_t* alive = nullptr) {
  constexpr int kElements = kTile * Isa::kGroup;
  const int word_tiles = tiles_of(words_of<Isa>(dim));
  for (int key = 0; key < keys; ++key) {
    const auto* row = k[key];
    const bool is_alive = alive == nullptr || alive[key] != 0;
    float* to =
        out + static_cast<int64_t>(key / kTile) * word_tiles * kTileFloats + key % kTile * kTile;
    for (int64_t element = 0; element < dim; element += kElements, to += kTileFloats) {
      Isa::store(to, is_alive ? load_row_words<Isa>(row + element, dim - element) : Isa::zero());
    }
  }
}

// Query rows [rows][dim] of whole units -> two right operands: transposed, the words of dim along
// the sum, [units][words / 16][2]; and pairs, neighbouring rows along the sum, a unit's at its
// place in [dims / 32][.. units][2], whose next 32 dims are pairs_stride floats away. Rows without
// a query or not alive are zeros. pairs may be null: not wanted.
template <class Isa, class Rows>
__attribute__((noinline)) void pack_query_tiles(Rows q, int rows, int64_t dim, const uint8_t* alive,
                                                float* transposed, float* pairs,
                                                int64_t pairs_stride) {
  constexpr int kElements = kTile * Isa::kGroup;
  const int word_tiles = tiles_of(words_of<Isa>(dim));
  for (int row = 0; row < round_up(rows, kUnitRows); row += kTile) {
    const int unit = row / kUnitRows, column = row % kUnitRows / kTile;
    int present = 0;
    for (int i = row; i < row + kTile && i < rows; ++i) present += alive[i];
    for (int word = 0; word < word_tiles; ++word) {
      const int64_t element = static_cast<int64_t>(word) * kElements;
      typename Isa::Vec block[kTile];
      if (present == kTile && dim - element >= kElements) {
#pragma GCC unroll 16
        for (int i = 0; i < kTile; ++i)
          block[i] = load_row_words<Isa>(q[row + i] + element, kElements);
      } else {
        for (int i = 0; i < kTile; ++i) {
          const bool is_alive = row + i < rows && alive[row + i] != 0;
          block[i] =
              is_alive ? load_row_words<Isa>(q[row + i] + element, dim - element) : Isa::zero();
        }
      }
      if (pairs != nullptr) {
        float* to = pairs + word * pairs_stride + unit * kUnitTiles * kTileFloats +
                    column * (kTileFloats / 2);
#pragma GCC unroll 8
        for (int i = 0; i < kTile; i += 2, to += kTile) {
          typename Isa::Vec low, high;
          Isa::interleave(block[i], block[i + 1], low, high);
          Isa::store(to, low);
          Isa::store(to + kTileFloats, high);
        }
      }
      Isa::transpose(block);
      float* to =
          transposed +
          ((static_cast<int64_t>(unit) * word_tiles + word) * kUnitTiles + column) * kTileFloats;
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) Isa::store(to + i * kTile, block[i]);
    }
  }
}

// Panel [words][value_stride] -> its transposed left operand [value_stride][words], rows of tiles
// out_word_tiles apart; zeros to the end of the last tile's words.
template <class Isa>
__attribute__((noinline)) void transpose_value_tiles(const float* panel, int64_t value_stride,
                                                     int words, float* out, int out_word_tiles) {
  for (int word = 0; word < words; word += kTile) {
    for (int64_t d = 0; d < value_stride; d += kTile) {
      typename Isa::Vec block[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i)
        block[i] =
            word + i < words ? Isa::load(panel + (word + i) * value_stride + d) : Isa::zero();
      Isa::transpose(block);
      float* to = out + (d / kTile * out_word_tiles + word / kTile) * kTileFloats;
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) Isa::store(to + i * kTile, block[i]);
    }
  }
}

// A unit's O^T [value_stride / 16][2] tiles *= factor, by query.
template <class Isa>
__attribute__((noinline)) void rescale_unit(float* output, int64_t value_stride,
                                            const float* factor) {
  for (int column = 0; column < kUnitTiles; ++column) {
    const auto f = Isa::load(factor + column * kTile);
    for (int64_t d = 0; d < value_stride; ++d) {
      float* x = output + (d / kTile * kUnitTiles + column) * kTileFloats + d % kTile * kTile;
      Isa::store(x, Isa::mul(Isa::load(x), f));
    }
  }
}

// A unit's O^T -> rows [kUnitRows][value_stride].
template <class Isa>
__attribute__((noinline)) void transpose_unit_output(const float* output, int64_t value_stride,
                                                     float* rows) {
  for (int column = 0; column < kUnitTiles; ++column) {
    for (int64_t d = 0; d < value_stride; d += kTile) {
      const float* from = output + (d / kTile * kUnitTiles + column) * kTileFloats;
      typename Isa::Vec block[kTile];
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i) block[i] = Isa::load(from + i * kTile);
      Isa::transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kTile; ++i)
        Isa::store(rows + (column * kTile + i) * value_stride + d, block[i]);
    }
  }
}

}  // namespace fulmen::cpu
